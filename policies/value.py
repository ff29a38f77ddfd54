"""The base of values that pass between processes: frozen, JSON, no unknown fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, PlainSerializer

#: Anything JSON can hold. pydantic's own JsonValue is recursive and slow to validate.
Json = Any
JsonObject = Mapping[str, Json]

T = TypeVar("T")
#: A set that is written in order: each process would order it differently.
SortedSet = Annotated[
    frozenset[T], PlainSerializer(sorted, return_type=list[Any], when_used="json")
]


class Value(BaseModel):
    """A frozen value. An unknown field is an error, so that no typo is ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def shortened(value: Json, limit: int) -> Json:
    """Return the value, or a shorter one of the same type that ends with "…"."""
    if isinstance(value, str):
        return value if len(value) <= limit else value[: limit - 1] + "…"
    if not isinstance(value, list | dict) or _size(value) <= limit:
        return value
    keys = list(value) if isinstance(value, dict) else range(len(value))
    kept = list[tuple[Any, Json]]()
    for key in keys:
        limit -= _size(value[key]) + (_size(key) if isinstance(value, dict) else 0)
        if limit < 0 and kept:
            break
        kept.append((key, value[key] if limit >= 0 else shortened(value[key], 20)))
    if isinstance(value, dict):
        return {str(shortened(key, 40)): item for key, item in kept} | {"…": "…"}
    return [*(item for _, item in kept), "…"]


def _size(value: Json) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str)) + 2
