"""Packages that import their parts on first use.

The command line answers ``--help`` and wrong input before torch is loaded, which alone takes two
seconds. A package lists where its names live; ``attach`` makes them importable and visible to
``dir`` and completion.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def attach(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The module-level ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: ``__name__`` of the package.
        names: For each public name, the module below the package that defines it. A name that
            maps to itself is a submodule.
    """

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{names[name]}")
        return module if names[name] == name else getattr(module, name)

    def listing() -> list[str]:
        return sorted(names)

    return load, listing
