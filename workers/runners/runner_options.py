"""Read runners' options, and give those that plan an attempt a runner's defaults."""

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

_NO_KEY_IN_OPTIONS = "name the variable that holds the key in api_key_env; never write the key"


@dataclass(frozen=True, kw_only=True)
class RunnerDefaults:
    """What applies unless an attempt overrides it; repair factors multiply these values."""

    timeout: float | None = None
    temperature: float | None = None
    max_tokens: int | None = None


def defaults_of(runner: Runner) -> RunnerDefaults:
    """Return the runner's attribute ``defaults``, or empty ones if it has none."""
    found = getattr(runner, "defaults", None)
    return found if isinstance(found, RunnerDefaults) else RunnerDefaults()


def read_options(model: type[Options], options: Mapping[str, Json]) -> Options:
    """Return the options as a value, or raise BadInput with every problem."""
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        problems = problems_of(error, model, what="option")
        raise BadInput(*map(_explain_api_key, problems)) from None


def _explain_api_key(problem: Problem) -> Problem:
    """Say how keys are given instead of "unknown option"."""
    if problem.code == "unknown_field" and problem.path[-1] == "api_key":
        return Problem(_NO_KEY_IN_OPTIONS, problem.path, "not_allowed")
    return problem
