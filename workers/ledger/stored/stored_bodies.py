"""Reading records and bodies that another release may have written, or that are damaged.

Work needs a whole body: a claim of one that cannot be read is refused. A person who looks at a job
is better served with what can be read. Lists leave out a record that cannot be read, and say so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from mulligan.tasks.ports.errors import DamagedRecord

log = logging.getLogger(__name__)

T = TypeVar("T", bound=BaseModel)
R = TypeVar("R")
#: What reading a damaged record raises: a missing field, no number, no JSON, an unknown name.
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError)
#: Keys to name in one line of the log.
_NAMED = 5


@dataclass(frozen=True)
class TolerantRead(Generic[T]):
    """A body as far as it can be read; ``problem`` says what cannot."""

    value: T | None
    problem: str | None = None


def read_record(key: str, read: Callable[[], R]) -> R:
    """Read one record. Raises DamagedRecord, which names its key, if it cannot be read."""
    try:
        return read()
    except _DAMAGE as error:
        what = (
            describe(error) if isinstance(error, ValueError) else f"{type(error).__name__} {error}"
        )
        raise DamagedRecord(f"the record {key} cannot be read: {what}") from error


def read_records(records: Iterable[tuple[str, Callable[[], R]]]) -> list[R]:
    """Read the records of a list by their keys. Leave out and log those that cannot be read."""
    found, damaged, count = [], [], 0
    for key, read in records:
        count += 1
        try:
            found.append(read_record(key, read))
        except DamagedRecord:
            damaged.append(key)
    if damaged:
        more = ", …" if len(damaged) > _NAMED else ""
        log.warning(
            "%d of %d stored records cannot be read and are left out: %s%s",
            len(damaged), count, ", ".join(damaged[:_NAMED]), more,
        )  # fmt: skip
    return found


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
