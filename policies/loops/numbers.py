"""Numbers of loops. Python takes true for 1, which is never what was meant."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


def refuse_boolean(value: Any) -> Any:
    """Return what is not a boolean as is. A number may be written as text."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "must be a number")
    return value


NotBoolean = BeforeValidator(refuse_boolean)
Whole = Annotated[int, NotBoolean]
