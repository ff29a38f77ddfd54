"""A job that cannot finish within one claim is refused before it runs."""

from __future__ import annotations

from typing import Any

import pytest
from support.doubles import fake_ledger
from support.jobs import make_job

from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.admission.intake import check_job
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.services import build_services
from mulligan.workers.settings.model import Settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

#: No command runs; only its timeout is checked.
pytestmark = pytest.mark.real_models("command")
RUNNERS = {
    "small": {"kind": "command", "argv": ["agent"], "timeout": "30s"},
    "usual": {"kind": "command", "argv": ["agent"]},
    "endless": {"kind": "command", "argv": ["agent"], "timeout": "2h"},
}
AGENT = {"kind": "command", "argv": ["agent"]}
WORKSPACE = {"snapshot": "sha256:" + "0" * 64, "output_file": "answer.py"}


def settings(**changes: Any) -> Settings:
    return Settings(allow_inline=True, runners=RUNNERS, **changes)


def problems(job: Job, **changes: Any) -> list[str]:
    chosen = settings(**changes)
    found = check_job(
        job,
        settings=chosen,
        runners=RunnerRegistry(profiles=chosen.runners),
        verifiers=VerifierRegistry(),
        local_paths=True,
    )
    return list(map(str, found))


def job_with_tests(*timeouts: str, **more: Any) -> Job:
    verifiers = [{"id": "pytest.subprocess", "timeout": timeout} for timeout in timeouts]
    return make_job(workspace=WORKSPACE, verifiers=verifiers, **more)


def test_a_runner_that_may_outlive_its_claim_is_refused() -> None:
    assert problems(make_job(runner={**AGENT, "timeout": "2h"})) == [
        "runner.timeout: 7200 s and 60 s of slack are more than hard_limit 3600 s;"
        " lower it or raise MULLIGAN_HARD_LIMIT"
    ]
    assert problems(make_job(runner={**AGENT, "timeout": "2h"}), hard_limit="3h") == []
    assert problems(make_job(runner={**AGENT, "timeout": 3540})) == []


def test_a_profile_that_may_outlive_its_claim_is_named() -> None:
    (problem,) = problems(make_job(runner="endless"))
    assert problem.startswith("runner.profile: [runners.endless] of mulligan.toml: timeout: 7200 s")


@pytest.mark.parametrize(
    ("profile", "timeout", "maximum"),
    [
        ("small", "31s", "30 s"),
        ("small", "10h", "30 s"),
        ("usual", "301s", "300 s"),  # runner_timeout
    ],
)
def test_a_job_may_not_raise_the_timeout_of_a_profile(
    profile: str, timeout: str, maximum: str
) -> None:
    (problem,) = problems(make_job(runner={"profile": profile, "timeout": timeout}))
    assert problem.startswith("runner.timeout: ")
    assert f"more than the {maximum} of the profile '{profile}'" in problem


@pytest.mark.parametrize(
    ("profile", "timeout"), [("small", 30), ("small", 5), ("usual", 300), ("endless", 60)]
)
def test_a_job_may_lower_the_timeout_of_a_profile(profile: str, timeout: float) -> None:
    assert problems(make_job(runner={"profile": profile, "timeout": timeout})) == []


def test_a_pytest_verification_counts_three_timeouts() -> None:
    assert problems(job_with_tests("1180s")) == []
    assert problems(job_with_tests("60s", "1h")) == [
        "verifiers[1].timeout: this verification may take 10860 s, more than hard_limit"
        " 3600 s; lower it or raise MULLIGAN_HARD_LIMIT"
    ]
    assert problems(job_with_tests("1h"), hard_limit="4h") == []


def test_a_delayed_verification_must_fit_into_one_claim() -> None:
    four = ["5m"] * 4  # 960 s each
    (problem,) = problems(job_with_tests(*four))
    assert problem.startswith("delayed_verification: all its steps together may take 3840 s")
    assert problems(job_with_tests(*four, task_type="benchmark")) == [], (
        "an exempt type has no cycle"
    )
    assert problems(job_with_tests(*four[1:])) == []
    reformulating = {
        "delayed_verification": {"mode": "reformulate"},
        "runner": {**AGENT, "timeout": 1200},
    }
    (problem,) = problems(job_with_tests(*four[1:], **reformulating))
    assert "may take 4140 s" in problem


def context_of(chosen: Settings) -> AttemptContext:
    ledger = fake_ledger(chosen)
    leases = LeaseKeeper(ledger, interval=chosen.lease / 3)
    return build_services(chosen, ledger, publish=lambda _: None, leases=leases).context


def test_workers_check_the_limit_again() -> None:
    context = context_of(settings())
    with pytest.raises(BadInput, match="more than hard_limit"):
        context.runner(make_job(runner={**AGENT, "timeout": "2h"}).runner)
    with pytest.raises(BadInput, match=r"pytest\.subprocess: timeout: .* more than hard_limit"):
        context.verifier(job_with_tests("1h").verifiers[0])


@pytest.mark.parametrize(
    ("hard_limit", "runner_timeout", "expected"),
    [(3600, 300, 300), (3600, "2h", 3540), (200, 300, 140), (6, 300, 3)],
)
def test_the_default_timeout_is_reduced_to_the_limit(
    hard_limit: float, runner_timeout: float, expected: float
) -> None:
    """A job without a timeout is not refused."""
    fleet = {"hard_limit": hard_limit, "runner_timeout": runner_timeout}
    job = make_job(runner=AGENT, delayed_verification={"mode": "reformulate"})
    assert problems(job, **fleet) == []
    assert context_of(settings(**fleet)).runner(job.runner).timeout == expected
