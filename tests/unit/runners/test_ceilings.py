"""``concurrency`` and ``tokens_per_minute`` of a profile: limits of its provider in the fleet."""

from __future__ import annotations

import pytest

from mulligan.policies.jobs.job import RunnerSpec
from mulligan.policies.jobs.provider_limits import ProviderLimits
from mulligan.policies.value import Json
from mulligan.workers.runners.runner_registry import RunnerRegistry

SMALL: dict[str, Json] = {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:8080/v1"}
AGENT: dict[str, Json] = {"kind": "command", "argv": ["/opt/agent"]}
SCRIPTED: dict[str, Json] = {"kind": "scripted", "answers": ["x"]}


def test_the_smallest_limit_of_the_profiles_of_one_provider_counts() -> None:
    registry = RunnerRegistry(
        {
            "small": SMALL | {"concurrency": 20},
            "large": SMALL | {"model": "large", "concurrency": 8},
            "same_host": SMALL | {"model": "other", "tokens_per_minute": 30_000},
            "less": SMALL | {"model": "less", "tokens_per_minute": 90_000},
            "agent": AGENT | {"concurrency": 5},
            "coder": AGENT | {"provider": "account", "concurrency": 2},
            "reviewer": AGENT | {"provider": "account", "concurrency": 9},
            "script": SCRIPTED | {"concurrency": 3},
            "unlimited": {**SMALL, "base_url": "http://127.0.0.1:9090/v1"},
        }
    )
    assert registry.ceilings() == {
        "127.0.0.1:8080": ProviderLimits(concurrency=8, tokens_per_minute=30_000),
        "scripted": ProviderLimits(concurrency=3),
        "account": ProviderLimits(concurrency=2),
        "command:agent": ProviderLimits(concurrency=5),
    }
    assert registry.check_profiles() == []


@pytest.mark.parametrize("name", ["concurrency", "tokens_per_minute"])
@pytest.mark.parametrize("limit", [0, -1, 1.5, "20", True, [5]])
def test_a_senseless_limit_is_refused_and_limits_nothing(name: str, limit: Json) -> None:
    registry = RunnerRegistry({"small": SMALL | {name: limit}})
    (problem,) = registry.check_profiles()
    assert f"[runners.small] of mulligan.toml: {name}: must be a whole number" in str(problem)
    assert registry.ceilings() == {}


@pytest.mark.parametrize("name", ["concurrency", "tokens_per_minute"])
@pytest.mark.parametrize("runner", [SMALL, {"profile": "small"}])
def test_a_job_cannot_set_the_limit_of_a_fleet(name: str, runner: dict[str, Json]) -> None:
    registry = RunnerRegistry({"small": SMALL})
    spec = RunnerSpec.model_validate({**runner, name: 500})
    (problem,) = registry.check(spec, allow_inline=True)
    assert problem.field == f"runner.{name}"
    assert "in mulligan.toml" in problem.message
