"""Reading bodies that another release may have written, or that are damaged.

Work needs a whole body: a claim of one that cannot be read is refused. A person who looks at a job
is better served with what can be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True)
class TolerantRead(Generic[T]):
    """A body as far as it can be read; ``problem`` says what cannot."""

    value: T | None
    problem: str | None = None


def read_tolerantly(model: type[T], text: str) -> TolerantRead[T]:
    """Read a body. Leave out fields that only another release knows."""
    try:
        return TolerantRead(model.model_validate_json(text))
    except ValidationError as error:
        problem = describe(error)
        unknown = [each for each in error.errors() if each["type"] == "extra_forbidden"]
        if not unknown or len(unknown) < error.error_count():
            return TolerantRead(None, problem)
    known = json.loads(text)
    for each in unknown:
        _remove(known, each["loc"])
    try:
        return TolerantRead(model.model_validate(known), problem)
    except ValidationError:
        return TolerantRead(None, problem)


def describe(error: ValueError) -> str:
    """Say where a body is wrong, without the stored texts."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join([error.title, *(str(part) for part in first["loc"])])
    return f"{place}: {first['msg']}"


def _remove(document: Any, place: tuple[int | str, ...]) -> None:
    for part in place[:-1]:
        if isinstance(document, Mapping | list):
            document = document[part]  # type: ignore[index] # a place in this document
    if isinstance(document, dict):
        document.pop(place[-1], None)
