"""Runners' options: read with every problem at once, and told to those who plan attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from mulligan.policies.problem import Problem
from mulligan.policies.value import Json
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.runners import Runner

Options = TypeVar("Options", bound=BaseModel)

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
    """The options as a value, or BadInput with every problem."""
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        found = problems_of(error, model, what="option")
        raise BadInput(*map(_without_keys, found)) from None


def _without_keys(problem: Problem) -> Problem:
    """A key in the options is not a slip: say how keys are given."""
    if problem.code == "unknown_field" and problem.path[-1] == "api_key":
        return Problem(_KEYS_ARE_NAMED, problem.path, "not_allowed")
    return problem
