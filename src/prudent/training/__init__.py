"""Objectives, the table of methods, and the one training loop."""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.training import methods as methods
    from prudent.training.loop import train as train
    from prudent.training.objectives import balance as balance
    from prudent.training.objectives import bce as bce
    from prudent.training.objectives import nll as nll
    from prudent.training.objectives import weighted_sum as weighted_sum
    from prudent.training.options import Options as Options

__getattr__, __dir__, __all__ = attach(__name__)
