"""Packages that import their parts on first use.

The command line answers ``--help`` and wrong input before torch is loaded, which alone takes two
seconds. A package names its parts once, as imports under ``if TYPE_CHECKING``: type checkers read
them there, and ``attach`` makes them importable and visible to ``dir`` and completion.
"""

import dis
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

Attached = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def attach(package: str, *own: str) -> Attached:
    """The ``__getattr__``, ``__dir__`` and ``__all__`` of the package that calls this.

    The parts are read from the compiled code of the package, which exists wherever the package can
    be imported: they are the imports that were left out.

    Args:
        package: The name of the package.
        own: Names that need no import, to be listed with the others.
    """
    caller = sys._getframe(1)
    places: dict[str, str] = {}
    module = ""
    for step in dis.get_instructions(caller.f_code):
        if step.opname == "IMPORT_NAME":
            module = step.argval
        elif step.opname == "IMPORT_FROM" and step.argval not in caller.f_globals:
            places[step.argval] = module

    class Package(ModuleType):
        """A function keeps its name where the import of a module of that name would take it."""

        def __setattr__(self, name: str, value: Any) -> None:
            if not (isinstance(value, ModuleType) and places.get(name) == value.__name__):
                super().__setattr__(name, value)

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if places[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(places[name]), name)

    sys.modules[package].__class__ = Package
    names = sorted({*own, *places})
    return load, lambda: names, names
