"""How methods are named and drawn; to be read from the table of methods instead."""

from prudent.training.methods import METHODS, look

__all__ = ["LABELS", "STYLES"]

STYLES = {name: tuple(look(name)[1:]) for name in METHODS}
LABELS = {name: look(name).label for name in METHODS}
