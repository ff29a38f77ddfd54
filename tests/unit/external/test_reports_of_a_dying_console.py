"""A reported attempt is stored in one step, whatever dies before or after it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.ledger_scenario import Scenario, ScenarioMaker, attempt_context, intake_of

from mulligan.tasks.external.lane import (
    ReportedAttempt,
    next_task,
    record_attempt,
    report_attempt,
)
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.outcome import Outcome
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.jobs.verify import run_verification
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import ClaimRefused, Entry

REPORT = ReportedAttempt(score=40, answer="5", feedback="2 + 2 is not 5", seconds=3)


class Died(Exception):
    """The console was killed."""


@pytest.fixture
def scenario(new_fake_scenario: ScenarioMaker) -> Scenario:
    return new_fake_scenario()


def record(
    scenario: Scenario, report: ReportedAttempt = REPORT, *, ledger: Any = None, key: str = "ann-17"
) -> tuple[str, Outcome]:
    raw = {"subject": "ann", "task_type": "maths", "prompt": "2+2?", "idempotency_key": key}
    context = attempt_context(scenario)
    intake = intake_of(scenario)
    if ledger is not None:
        context, intake = replace(context, ledger=ledger), replace(intake, ledger=ledger)
    return record_attempt(context, intake, raw, report)


def waiting_job(scenario: Scenario, key: str) -> str:
    """Return a job that waits in the lane, as a report with this key would make it."""
    return scenario.submit(
        subject="ann",
        task_type="maths",
        prompt="2+2?",
        idempotency_key=key,
        runner={"kind": "external"},
        verifiers=["external.score"],
        delayed_verification={"mode": "reformulate"},
    )


class DyingLedger:
    """A ledger whose caller dies at one call: before it has an effect, or after."""

    def __init__(self, ledger: Any, call: str, when: str) -> None:
        self._ledger, self._call, self._when = ledger, call, when

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ledger, name)
        if name != self._call:
            return method

        def die(*args: Any, **options: Any) -> Any:
            if self._when == "after":
                method(*args, **options)
            raise Died

        return die


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["accept", "hold", "settle"])
def test_a_first_attempt_is_recorded_by_its_repetition(
    scenario: Scenario, call: str, when: str
) -> None:
    with pytest.raises(Died):
        record(scenario, ledger=DyingLedger(scenario.ledger, call, when))
    job_id, outcome = record(scenario)
    assert isinstance(outcome, Settled) or outcome == ClaimRefused("stored")
    view = scenario.view(job_id)
    found = [(each.score, each.state) for each in view.attempts]
    assert found == [(40, "settled"), (None, "queued")]
    assert view.attempts[0].output == REPORT.output
    assert len(scenario.ledger.jobs()) == 1
    task = next_task(attempt_context(scenario), "ann")
    assert task is not None
    assert task.mode == "immediate_retry"


@pytest.mark.parametrize(("call", "when"), [("accept", "after"), ("hold", "before")])
def test_a_stored_first_attempt_is_settled_without_its_repetition(
    scenario: Scenario, call: str, when: str
) -> None:
    with pytest.raises(Died):
        record(scenario, ledger=DyingLedger(scenario.ledger, call, when))
    assert next_task(attempt_context(scenario), "ann") is None  # it has been done
    (entry,) = scenario.expire_leases()
    run_attempt(attempt_context(scenario), Entry.parse(entry))
    job_id, outcome = record(scenario)
    assert outcome == ClaimRefused("stored")
    assert scenario.view(job_id).attempts[0].score == 40


def test_another_attempt_with_the_same_key_is_refused(scenario: Scenario) -> None:
    job_id, _ = record(scenario)
    assert record(scenario) == (job_id, ClaimRefused("stored"))
    for other in (replace(REPORT, score=90), replace(REPORT, answer="4")):
        assert record(scenario, other) == (job_id, ClaimRefused("other_report"))
    assert scenario.view(job_id).attempts[0].score == 40


def test_another_attempt_with_the_same_key_is_refused_before_the_first_is_settled(
    scenario: Scenario,
) -> None:
    with pytest.raises(Died):
        record(scenario, ledger=DyingLedger(scenario.ledger, "hold", "before"))
    assert record(scenario, replace(REPORT, score=90))[1] == ClaimRefused("other_report")
    assert isinstance(record(scenario)[1], Settled)


def test_a_task_that_its_subject_holds_cannot_be_reported_without_its_token(
    scenario: Scenario,
) -> None:
    """Given a job that was submitted with the key of a later report."""
    context = attempt_context(scenario)
    held = waiting_job(scenario, "ann-18")
    task = next_task(context, "ann")
    assert task is not None
    assert task.claim.job_id == held
    assert record(scenario, key="ann-18") == (held, ClaimRefused("held"))
    assert isinstance(report_attempt(context, task.lease, replace(REPORT, score=90)), Settled)
    assert record(scenario, key="ann-18") == (held, ClaimRefused("finished"))


def test_a_job_that_waits_for_its_subject_takes_a_report_with_its_key(scenario: Scenario) -> None:
    waiting = waiting_job(scenario, "ann-19")
    recorded, outcome = record(scenario, key="ann-19")
    assert recorded == waiting
    assert isinstance(outcome, Settled)


# -- reports with a token --------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["hold", "store_output", "settle"])
def test_a_report_with_a_token_is_recorded_by_its_repetition(
    scenario: Scenario, call: str, when: str
) -> None:
    job_id, _ = record(scenario)
    context = attempt_context(scenario)
    task = next_task(context, "ann")
    assert task is not None
    good = replace(REPORT, score=90)
    dying: Any = DyingLedger(scenario.ledger, call, when)
    with pytest.raises(Died):
        report_attempt(replace(context, ledger=dying), task.lease, good)
    stored = (call, when) not in {("hold", "before"), ("hold", "after"), ("store_output", "before")}
    if stored:
        other = report_attempt(context, task.lease, replace(good, score=20))
        assert other == ClaimRefused("other_report")
    outcome = report_attempt(context, task.lease, good)
    assert isinstance(outcome, Settled) or outcome == ClaimRefused("stored")
    assert [each.score for each in scenario.view(job_id).attempts] == [40, 90]
    assert report_attempt(context, task.lease, good) == ClaimRefused("stored")
    again = report_attempt(context, task.lease, replace(good, score=20))
    assert again == ClaimRefused("other_report")


def test_a_stored_report_is_settled_within_the_lease_of_a_worker(scenario: Scenario) -> None:
    """Given a console that died after storing: the subject's own lease lasts half an hour."""
    job_id, _ = record(scenario)
    context = attempt_context(scenario)
    task = next_task(context, "ann")
    assert task is not None
    dying: Any = DyingLedger(scenario.ledger, "settle", "before")
    good = replace(REPORT, score=90)
    with pytest.raises(Died):
        report_attempt(replace(context, ledger=dying), task.lease, good)
    assert next_task(context, "ann") is None  # it is not asked for again
    assert scenario.expire_leases() == {f"a:{job_id}/2"}
    claim = scenario.claim(job_id, 2)  # a worker settles it
    assert report_attempt(context, task.lease, good) == ClaimRefused("stored")
    scenario.ledger.requeue(claim.lease, delay=0, detail="the worker stops")
    run_attempt(context, Entry("attempt", job_id, 2))
    assert scenario.view(job_id).state == "succeeded"
    assert report_attempt(context, task.lease, good) == ClaimRefused("stored")


def test_a_report_that_slow_verifiers_have_settled_may_be_repeated(scenario: Scenario) -> None:
    job_id = scenario.submit(
        task_type="person",
        subject="ann",
        runner={"kind": "external"},
        verifiers=[{"id": "command.subprocess", "argv": ["true"]}],
    )
    context = attempt_context(scenario)
    task = next_task(context, "ann")
    assert task is not None
    report = ReportedAttempt(answer="x")
    report_attempt(context, task.lease, report)
    assert report_attempt(context, task.lease, report) == ClaimRefused("verifying")
    run_verification(context, Entry("verification", job_id, 1, 0))
    assert report_attempt(context, task.lease, report) == ClaimRefused("stored")
    other = report_attempt(context, task.lease, ReportedAttempt(answer="y"))
    assert other == ClaimRefused("other_report")


def test_a_delayed_verification_is_not_reported_twice_with_different_scores(
    scenario: Scenario,
) -> None:
    record(scenario)
    context = attempt_context(scenario)
    retry = next_task(context, "ann")
    assert retry is not None
    report_attempt(context, retry.lease, replace(REPORT, score=90))
    scenario.advance(601)
    check = next_task(context, "ann")
    assert check is not None
    report = replace(REPORT, score=90, prompt="What is the sum of two and two? Write one number.")
    report_attempt(context, check.lease, report)
    assert report_attempt(context, check.lease, report) == ClaimRefused("stored")
    other = report_attempt(context, check.lease, replace(report, score=10))
    assert other == ClaimRefused("other_report")


def test_a_job_without_a_score_is_not_stored(scenario: Scenario) -> None:
    with pytest.raises(BadInput, match="score: is required"):
        record(scenario, replace(REPORT, score=None))
    assert scenario.ledger.jobs() == []


# -- the mandatory retry comes first ---------------------------------------------------------------


def test_the_mandatory_retry_comes_before_the_task_that_a_subject_holds(scenario: Scenario) -> None:
    """Given a subject that holds other work when its retry becomes due."""
    work = scenario.submit_external(subject="ann")
    context = attempt_context(scenario)
    held = next_task(context, "ann")
    assert held is not None
    assert held.claim.job_id == work
    failed, _ = record(scenario)
    retry = next_task(context, "ann")
    assert retry is not None
    assert (retry.claim.job_id, retry.mode) == (failed, "immediate_retry")
    again = next_task(context, "ann")
    assert again is not None
    assert again.token == retry.token
    assert isinstance(report_attempt(context, retry.lease, replace(REPORT, score=90)), Settled)
    offered = next_task(context, "ann")
    assert offered is not None
    assert offered.token == held.token  # it has kept its lease
    assert offered.expires_at == held.expires_at


def test_the_task_below_a_retry_may_be_reported_first(scenario: Scenario) -> None:
    scenario.submit_external(subject="ann")
    context = attempt_context(scenario)
    held = next_task(context, "ann")
    record(scenario)
    retry = next_task(context, "ann")
    assert held is not None
    assert retry is not None
    report_attempt(context, held.lease, ReportedAttempt(answer="{}", score=90))
    again = next_task(context, "ann")
    assert again is not None
    assert again.token == retry.token
