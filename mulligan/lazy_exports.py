"""Package exports that are imported at first use: importing a package loads none of its modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package (PEP 562).

    ``modules`` maps the full name of each module to the names that the package exports from it,
    separated by spaces. For type checkers the package imports them under ``TYPE_CHECKING`` and
    lists them in ``__all__``; tests/repository/test_exports.py compares the three.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(homes[name])
        except ModuleNotFoundError as error:
            from mulligan.extras import explain_import

            explained = explain_import(error)
            if explained is None:
                raise
            raise ImportError(f"{package}.{name}: {explained}", name=error.name) from None
        return getattr(module, name)

    return load
