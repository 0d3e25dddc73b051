"""Models of other libraries as estimators, and the penalty in their training loops.

:mod:`prudent.adapters.sbi` and :mod:`prudent.adapters.lampe` hold what goes into the loops.
"""

from typing import TYPE_CHECKING

from prudent._lazy import attach

if TYPE_CHECKING:
    from prudent.adapters.estimator import Adapted as Adapted
    from prudent.adapters.recognition import adapt as adapt

__getattr__, __dir__, __all__ = attach(__name__)
