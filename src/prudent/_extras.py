"""Libraries that only some users need."""

import importlib
from typing import Any

from prudent.errors import InputError

# Libraries whose name differs from that of the module.
LIBRARIES = {
    "dask_jobqueue": "dask-jobqueue",
    "pycbc": "PyCBC and LALSuite",
    "sklearn": "scikit-learn",
}


def require(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional library, or say which extra to install for what purpose.

    >>> require("matplotlib", "report", "figures").__name__
    'matplotlib'
    """
    library = module.partition(".")[0]
    try:
        importlib.import_module(library)  # its modules may be loaded although it is not there
        return importlib.import_module(module)
    except ImportError as error:
        verb = "need" if purpose.endswith("s") else "needs"
        raise InputError(
            f"{purpose} {verb} {LIBRARIES.get(library, library)}. In the directory of prudent's "
            f'pyproject.toml: pip install -c constraints.txt -e ".[{extra}]"'
        ) from error
