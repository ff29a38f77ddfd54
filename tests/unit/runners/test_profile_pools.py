"""``pool`` and ``hard_limit`` of a profile: where its jobs run, and how long a claim lasts."""

from __future__ import annotations

from typing import Any

import pytest
from support.jobs import make_job

from mulligan.policies.jobs.job import Job, RunnerSpec
from mulligan.workers.admission.intake import check_job
from mulligan.workers.ledger.stored import rows
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.settings.model import Settings
from mulligan.workers.settings.profile_pools import claim_limit, longest_claim
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

#: No command runs; only its timeout is checked.
pytestmark = pytest.mark.real_models("command")
CODER: dict[str, Any] = {"kind": "command", "argv": ["agent"], "pool": "agent"}


def settings(**coder: Any) -> Settings:
    runners = {"coder": {**CODER, **coder}, "small": {**CODER, "pool": ""}}
    return Settings(runners=runners, allow_inline=True)


def problems(job: Job, **coder: Any) -> list[str]:
    """Return what is wrong with a job, given more options of the profile."""
    chosen = settings(**coder)
    found = check_job(
        job,
        settings=chosen,
        runners=RunnerRegistry(profiles=chosen.runners),
        verifiers=VerifierRegistry(),
        local_paths=True,
    )
    return list(map(str, found))


@pytest.mark.parametrize(
    ("coder", "problem"),
    [
        ({"pool": "agents"}, "pool: must be agent, not 'agents'"),
        ({"pool": ["agent"]}, "pool: must be agent, not ['agent']"),
        ({"kind": "external", "argv": []}, "pool: external work waits for its subject"),
        ({"hard_limit": "5h"}, "hard_limit: 18000 s is more than 4 h"),
        ({"hard_limit": "long"}, "hard_limit: must be seconds above 0"),
        ({"hard_limit": 0}, "hard_limit: must be seconds above 0"),
        ({"hard_limit": True}, "hard_limit: must be seconds above 0"),
        ({"hard_limit": "2h", "pool": ""}, "hard_limit: only a profile with pool"),
    ],
)
def test_a_profile_with_a_wrong_pool_or_limit_is_refused_by_name(
    coder: dict[str, Any], problem: str
) -> None:
    found = problems(make_job(runner="coder"), **coder)
    assert any(f"[runners.coder] of mulligan.toml: {problem}" in each for each in found), found
    assert longest_claim(settings(**coder)) == 3600, "and its limit counts nowhere"


@pytest.mark.parametrize("runner", [CODER, {"profile": "coder", "pool": ""}])
@pytest.mark.parametrize("name", ["pool", "hard_limit"])
def test_a_job_cannot_choose_its_pool_or_limit(runner: dict[str, Any], name: str) -> None:
    registry = RunnerRegistry({"coder": CODER})
    spec = RunnerSpec.model_validate({**runner, name: "agent"})
    found = registry.check(spec, allow_inline=True)
    assert f"runner.{name}" in {problem.field for problem in found}


def test_the_timeout_of_an_agent_fits_into_the_limit_of_its_profile() -> None:
    assert problems(make_job(runner="coder"), timeout="150m", hard_limit="3h") == []
    assert problems(make_job(runner="coder"), timeout=4 * 3600 - 60, hard_limit="4h") == []
    (problem,) = problems(make_job(runner="coder"), timeout="3h", hard_limit="3h")
    assert (
        "more than hard_limit 10800 s; lower it or raise hard_limit in [runners.coder]" in problem
    )
    (problem,) = problems(make_job(runner="coder"), timeout="2h")
    assert "more than hard_limit 3600 s; lower it or raise hard_limit in [runners.coder]" in problem


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("reformulate", []),
        (
            "recheck",
            [
                "delayed_verification: all its steps together may take 6120 s, more than hard_limit"
                " 3600 s; lower the timeouts or raise MULLIGAN_HARD_LIMIT"
            ],
        ),
    ],
)
def test_only_a_claim_that_asks_the_agent_has_its_limit(mode: str, problem: list[str]) -> None:
    """To check again runs in the pool of others, and has the limit of others."""
    slow = {"id": "command.subprocess", "argv": ["true"], "timeout": "50m"}
    job = make_job(
        runner="coder", verifiers=["json.object", slow, slow], delayed_verification={"mode": mode}
    )
    assert problems(job, timeout="2h", hard_limit="4h") == problem


def test_each_job_has_the_pool_and_the_limit_of_its_profile() -> None:
    chosen = settings(hard_limit="3h")
    assert rows.pool_of(make_job(runner="coder"), chosen) == "agent"
    assert rows.pool_of(make_job(runner="small"), chosen) == ""
    assert rows.pool_of(make_job(), chosen) == ""
    assert (claim_limit("coder", chosen), claim_limit("small", chosen)) == (10800, 3600)
    assert (claim_limit(None, chosen), longest_claim(chosen)) == (3600, 10800)
