"""Priors by name, from files and of other libraries, and where they have density."""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.priors.families import LogUniform as LogUniform
    from prudent.priors.families import box as box
    from prudent.priors.given import as_prior as as_prior
    from prudent.priors.given import correlated as correlated
    from prudent.priors.given import from_file as from_file
    from prudent.priors.given import independent as independent
    from prudent.priors.given import truncated as truncated

__getattr__, __dir__, __all__ = attach(__name__)
