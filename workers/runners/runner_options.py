"""Runners' options: read with every problem at once, and told to those who plan attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from rapidfuzz import process

from mulligan.policies.value import Json
from mulligan.tasks.jobs.validation_errors import meaning
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.runners import Runner

Options = TypeVar("Options", bound=BaseModel)

#: A name closer than this is worth suggesting; measured on swapped, missing and doubled letters.
_SIMILAR = 70
_KEYS_ARE_NAMED = "keys are named, never given: use api_key_env with the variable's name"


@dataclass(frozen=True, kw_only=True)
class RunnerDefaults:
    """What a runner does unless an attempt says otherwise: what repair factors multiply."""

    timeout: float | None = None
    temperature: float | None = None
    max_tokens: int | None = None


def defaults_of(runner: Runner) -> RunnerDefaults:
    """A runner may have an attribute ``defaults``; one without it has none to tell."""
    found = getattr(runner, "defaults", None)
    return found if isinstance(found, RunnerDefaults) else RunnerDefaults()


def read_options(model: type[Options], options: Mapping[str, Json]) -> Options:
    """The options as a value, or BadInput with one ``field: problem`` line per error."""
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        fields = model.model_fields
        lines = [_line(detail, fields) for detail in error.errors(include_url=False)]
        raise BadInput(*lines) from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` when something similar is known, else nothing."""
    best = process.extractOne(name, list(known), score_cutoff=_SIMILAR)
    return f"; did you mean {best[0]!r}?" if best else ""


def _line(detail: ErrorDetails, fields: Iterable[str]) -> str:
    place = ".".join(str(part) for part in detail["loc"]) or "options"
    if detail["type"] != "extra_forbidden":
        return f"{place}: {meaning(detail)}"
    name = str(detail["loc"][-1])
    if name == "api_key":
        return f"{place}: {_KEYS_ARE_NAMED}"
    hint = did_you_mean(name, fields) if len(detail["loc"]) == 1 else ""
    return f"{place}: unknown option{hint}"
