"""The base of every value that crosses a process: frozen, strict about names, JSON in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

#: Anything JSON can hold. pydantic's own JsonValue is recursive and slow to validate.
Json = Any
JsonObject = Mapping[str, Json]


class Value(BaseModel):
    """A frozen value. Unknown fields are errors, so that a typo is never silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")
