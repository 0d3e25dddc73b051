"""The version, apart from everything else so that any layer can read it."""

__version__ = "0.1.0"
