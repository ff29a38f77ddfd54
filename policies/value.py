"""The base of values that pass between processes: frozen, JSON, no unknown fields."""

from __future__ import annotations

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
