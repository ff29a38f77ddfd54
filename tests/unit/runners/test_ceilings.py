"""``concurrency`` of a runner profile: the most calls at once to its provider."""

from __future__ import annotations

import pytest

from mulligan.policies.jobs.job import RunnerSpec
from mulligan.policies.value import Json
from mulligan.workers.runners.runner_registry import RunnerRegistry

SMALL: dict[str, Json] = {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:8080/v1"}
SCRIPTED: dict[str, Json] = {"kind": "scripted", "answers": ["x"]}


def test_the_smallest_limit_of_the_profiles_of_one_provider_counts() -> None:
    registry = RunnerRegistry(
        {
            "small": SMALL | {"concurrency": 20},
            "large": SMALL | {"model": "large", "concurrency": 8},
            "same_host": SMALL | {"model": "other"},
            "script": SCRIPTED | {"concurrency": 3},
            "unlimited": {**SMALL, "base_url": "http://127.0.0.1:9090/v1"},
        }
    )
    assert registry.ceilings() == {"127.0.0.1:8080": 8, "scripted": 3}
    assert registry.check_profiles() == []


@pytest.mark.parametrize("limit", [0, -1, 1.5, "20", True, [5]])
def test_a_senseless_limit_is_refused_and_limits_nothing(limit: Json) -> None:
    registry = RunnerRegistry({"small": SMALL | {"concurrency": limit}})
    (problem,) = registry.check_profiles()
    assert "[runners.small] of mulligan.toml: concurrency: must be a whole number" in str(problem)
    assert registry.ceilings() == {}


@pytest.mark.parametrize("runner", [SMALL, {"profile": "small"}])
def test_a_job_cannot_set_the_limit_of_a_fleet(runner: dict[str, Json]) -> None:
    registry = RunnerRegistry({"small": SMALL})
    spec = RunnerSpec.model_validate({**runner, "concurrency": 500})
    (problem,) = registry.check(spec, allow_inline=True)
    assert problem.field == "runner.concurrency"
    assert "in mulligan.toml" in problem.message
