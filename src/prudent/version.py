"""The version, apart from everything else so that any layer can read it."""

__version__ = "0.2.0"
