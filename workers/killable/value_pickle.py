"""Read a pickle from a process that has handled hostile input: values only, nothing that runs."""

from __future__ import annotations

import dataclasses
import enum
import io
import pickle
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from mulligan.tasks.ports.errors import MulliganError

#: What else a value may consist of.
_PLAIN = {
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "complex"),
    ("builtins", "bytearray"),
    ("collections", "OrderedDict"),
    ("decimal", "Decimal"),
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("pathlib", "PosixPath"),
}


def read_value(data: bytes | bytearray) -> Any:
    """Return the value. Raises UnpicklingError if it needs more than values."""
    return _ValueUnpickler(io.BytesIO(data)).load()


class _ValueUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return getattr(import_module(module), name)
        if module.startswith("mulligan."):
            found = getattr(import_module(module), name, None)
            if isinstance(found, type) and _is_value(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not a value")


def _is_value(found: type) -> bool:
    named_tuple = issubclass(found, tuple) and hasattr(found, "_fields")
    return (
        named_tuple
        or dataclasses.is_dataclass(found)
        or issubclass(found, BaseModel | enum.Enum | MulliganError)
    )
