"""Packages that import their parts on first use.

The command line answers ``--help`` and wrong input before torch is loaded, which alone takes two
seconds. A package names its parts once, as imports under ``if TYPE_CHECKING``: type checkers read
them there, and ``attach`` makes them importable and visible to ``dir`` and completion.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

Attached = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def attach(package: str, file: str, *own: str) -> Attached:
    """The ``__getattr__``, ``__dir__`` and ``__all__`` of a package, by its name and its file.

    Names of its ``own``, which need no import, are listed with the others.
    """
    places: dict[str, str] = {}
    for block in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        for line in block.body if isinstance(block, ast.If) else ():
            if isinstance(line, ast.ImportFrom):
                places |= {name.name: str(line.module) for name in line.names}

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if places[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(places[name]), name)

    names = sorted({*own, *places})
    return load, lambda: names, names
