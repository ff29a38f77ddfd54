"""External work on fakeredis: the retry is the subject's next task and is settled once."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.doubles import FakeRunner
from support.ledger_scenario import Scenario, ScenarioMaker, attempt_context, intake_of

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.cycles.guardrail import LOOP_CAP, TIME_SHARE_CAP, Guardrail
from mulligan.policies.failures.failure import Finding
from mulligan.policies.jobs.job import Output
from mulligan.policies.repair.retry import Retry
from mulligan.tasks.external.lane import (
    ExternalTask,
    NotCounted,
    ReportedAttempt,
    next_task,
    parse_token,
    record_attempt,
    report_attempt,
)
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.outcome import Outcome, Rechecked, VerificationPending
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.jobs.verify import run_verification
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import ClaimRefused, Entry, JobView, Lease
from mulligan.workers.ledger import keys

PROMPT = "Write one sentence about yesterday with the past tense of 'to go'."
OTHER = "Yesterday, how did you travel to school? Answer in a full sentence."
AFTER = 601


@dataclass(frozen=True)
class School:
    """A scenario with a context, and the actions of a school's subjects."""

    scenario: Scenario
    context: AttemptContext

    def record(self, score: float | None, *, subject: str = "mia", **fields: Any) -> str:
        job_id, _ = self.recorded(score, subject=subject, **fields)
        return job_id

    def recorded(
        self,
        score: float | None,
        *,
        seconds: float = 10.0,
        feedback: str = "'goed' is not a word",
        **fields: Any,
    ) -> tuple[str, Outcome]:
        raw = {"subject": "mia", "task_type": "past_tense", "prompt": PROMPT, **fields}
        report = ReportedAttempt(score=score, answer="I goed.", feedback=feedback, seconds=seconds)
        return record_attempt(self.context, intake_of(self.scenario), raw, report)

    def next(self, subject: str = "mia", tenant: str | None = None) -> ExternalTask:
        task = next_task(self.context, subject, tenant=tenant)
        assert task is not None
        return task

    def idle(self, subject: str = "mia", tenant: str | None = None) -> bool:
        return next_task(self.context, subject, tenant=tenant) is None

    def report(self, task: ExternalTask, score: float | None, **fields: Any) -> Outcome:
        fields = {"answer": "I went.", "seconds": 10.0, **fields}
        return report_attempt(
            self.context, parse_token(task.token), ReportedAttempt(score=score, **fields)
        )

    def repaired(self, **fields: Any) -> str:
        """Return a job that failed, was repaired, and is due for its delayed verification."""
        job_id = self.record(40, **fields)
        self.report(self.next(), 90)
        self.scenario.advance(AFTER)
        return job_id

    def events(self) -> list[dict[str, Any]]:
        (prefix,) = keys.partition_prefixes(self.scenario.settings.key_prefix, 1)
        rows = self.scenario.ledger.calls.run("XRANGE", f"{prefix}events", "-", "+")
        return [json.loads(fields["data"]) for _, fields in rows]

    def view(self, job_id: str) -> JobView:
        return self.scenario.view(job_id)


@pytest.fixture
def school(new_fake_scenario: ScenarioMaker) -> School:
    scenario = new_fake_scenario(stale_after=50_000, retention=100_000)
    return School(scenario, attempt_context(scenario))


# -- the mandatory retry ---------------------------------------------------------------------------


def test_feedback_and_findings_are_both_in_the_corrected_prompt() -> None:
    finding = Finding(message="the verb is in the present tense", code="tense", path="word 2")
    report = ReportedAttempt(score=40, feedback="Think of yesterday.", findings=[finding])
    messages = [error.message for error in report.result().errors]
    assert messages == ["the verb is in the present tense", "Think of yesterday."]
    repeated = replace(report, feedback=finding.message)
    assert [error.code for error in repeated.result().errors] == ["tense"]


def test_the_mandatory_retry_is_the_subjects_next_task(school: School) -> None:
    job_id, outcome = school.recorded(40)
    assert isinstance(outcome, Settled)
    assert (outcome.verdict.score, outcome.verdict.success) == (40, False)
    school.record(30, subject="noa")
    task = school.next()
    assert (task.mode, task.cycle_id) == ("immediate_retry", f"{job_id}:1:1")
    assert task.lease.entry == Entry("attempt", job_id, 2)
    prompt = task.claim.plan.prompt
    assert prompt is not None
    assert PROMPT in prompt
    assert "'goed' is not a word" in prompt
    assert task.expires_at == pytest.approx(school.scenario.ledger.now() + 1800, abs=60)
    assert school.scenario.cycle(job_id).status is CycleStatus.PENDING_IMMEDIATE_RETRY


@pytest.mark.parametrize("score", [70, 70.5, 100])
def test_a_passing_score_leaves_nothing_to_do(school: School, score: float) -> None:
    job_id = school.record(score)
    assert school.view(job_id).state == "succeeded"
    assert school.view(job_id).attempts[0].output == Output(text="I goed.", elapsed_seconds=10)
    assert school.idle()


@pytest.mark.parametrize("score", [69.999, 69.9999999, 69.99999999999999])
def test_a_score_just_below_70_owes_the_retry_and_is_never_shown_as_70(
    school: School, score: float
) -> None:
    job_id, outcome = school.recorded(score, feedback="")
    assert isinstance(outcome, Settled)
    assert outcome.verdict.decision == Retry(
        reason="score 69.99 is below 70", mode="immediate_retry"
    )
    attempt = school.view(job_id).attempts[0]
    assert (attempt.score, attempt.verdict and attempt.verdict.success) == (score, False)
    assert school.scenario.cycle(job_id).status is CycleStatus.PENDING_IMMEDIATE_RETRY
    retry = school.next().claim.plan.prompt or ""
    assert "the score 69.99 is below 70" in retry
    (shown,) = [e["score"] for e in school.events() if e.get("state") == "settled"]
    assert 69 < shown < 70


def test_findings_appear_in_the_next_prompt(school: School) -> None:
    raw = {"subject": "mia", "task_type": "past_tense", "prompt": PROMPT}
    found = Finding(path="line 2", message="is in the present tense", code="tense")
    report = ReportedAttempt(score=20, answer="I go.", findings=[found])
    record_attempt(school.context, intake_of(school.scenario), raw, report)
    assert "is in the present tense" in (school.next().claim.plan.prompt or "")


def test_only_the_same_subject_gets_the_same_task(school: School) -> None:
    school.record(40)
    task = school.next()
    again = school.next()
    assert again.token == task.token
    assert again.expires_at == pytest.approx(task.expires_at, abs=1)
    assert school.idle("noa")
    assert school.idle("mia", tenant="school")


def test_a_subject_belongs_to_its_tenant(school: School) -> None:
    school.record(40, labels={"tenant": "school"})
    assert school.idle()
    assert school.idle(tenant="other")
    assert school.next(tenant="school").mode == "immediate_retry"


def test_the_token_settles_once(school: School) -> None:
    job_id = school.record(40)
    task = school.next()
    outcome = school.report(task, 90)
    assert isinstance(outcome, Settled)
    view = school.view(job_id)
    assert (view.state, view.best_attempt) == ("succeeded", 2)
    assert view.cycles[0].status is CycleStatus.PENDING_DELAYED_VERIFICATION
    assert school.report(task, 90) == ClaimRefused("stored")
    assert school.report(task, 10) == ClaimRefused("other_report")
    assert school.view(job_id) == view
    assert school.idle()


def test_an_interrupted_report_may_be_repeated(school: School) -> None:
    """Given a stored answer without a verdict."""
    job_id = school.record(40)
    task = school.next()
    school.scenario.ledger.store_output(task.lease, Output(text="I went.", elapsed_seconds=10))
    assert isinstance(school.report(task, 90), Settled)
    assert school.view(job_id).seconds == 20


def test_an_expired_lease_is_refused_and_the_task_is_offered_again(school: School) -> None:
    school.record(40)
    task = school.next()
    school.scenario.advance(1801)
    assert school.report(task, 90) == ClaimRefused("lost")
    school.scenario.sweep()
    again = school.next()
    assert again.lease.entry == task.lease.entry
    assert again.token != task.token
    assert school.report(task, 90) == ClaimRefused("held")
    assert isinstance(school.report(again, 90), Settled)


def test_failed_retries_follow_the_policy_and_are_escalated(school: School) -> None:
    job_id = school.record(40, policy={"max_attempts": 3})
    for mode in ("immediate_retry", "policy_retry"):
        task = school.next()
        assert task.mode == mode
        school.report(task, 40, feedback=f"wrong again: {mode}")
    view = school.view(job_id)
    assert (view.state, len(view.attempts)) == ("escalated", 3)
    assert school.idle()


def test_recording_another_attempt_keeps_the_current_task(school: School) -> None:
    school.record(40)
    task = school.next()
    school.record(90, task_type="plurals")
    assert school.next().token == task.token


def test_a_key_is_recorded_once(school: School) -> None:
    job_id, _ = school.recorded(40, idempotency_key="k")
    again, outcome = school.recorded(40, idempotency_key="k")
    assert (again, outcome) == (job_id, ClaimRefused("stored"))
    assert len(school.view(job_id).attempts) == 2


def test_an_attempt_without_a_score_is_not_stored(school: School) -> None:
    with pytest.raises(BadInput, match="score: is required"):
        school.record(None)
    assert school.scenario.ledger.jobs() == []


def test_an_attempt_without_a_subject_is_refused(school: School) -> None:
    with pytest.raises(BadInput, match="belong together"):
        school.record(40, subject=None)  # type: ignore[arg-type] # a careless caller


@pytest.mark.parametrize(
    "text",
    ["", ".", "x", "a:.t", "a:p00-x/1", "a:p00-x/1.", "v:p00-x/1/0.ab", "d:p00-x/1.ab",
     "a:p00-x/-1.ab", "a:/1.ab", "c:p00-x:1.ab", "a:p00-x/0.ab", "a:p00-x/1e9.ab",
     "a:p00-x/" + "9" * 50 + ".ab", "a:p00-x/1.ÄB", "a:p00-x/1.ab\n", "c:p00-x:1:1:1.ab"],
)  # fmt: skip
def test_an_invalid_token_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="token: is not the token of a task"):
        parse_token(text)


@pytest.mark.parametrize("entry", [Entry("attempt", "p00-x", 2), Entry("cycle", "p00-x", 1, 1)])
def test_a_token_names_its_task(school: School, entry: Entry) -> None:
    assert parse_token(f"{entry}.0a1b") == Lease(entry, "0a1b")
    outcome = report_attempt(school.context, Lease(entry, "0a1b"), ReportedAttempt(score=1))
    assert outcome == ClaimRefused("gone")


def test_a_pause_hides_the_task_until_it_ends(school: School) -> None:
    job_id = school.record(40)
    school.scenario.ledger.pause("task_type:past_tense")
    assert school.idle()
    assert school.view(job_id).waiting_for == "pause"
    school.scenario.ledger.resume("task_type:past_tense")
    assert school.next().claim.job_id == job_id


def test_a_paused_task_type_does_not_block_another_retry(school: School) -> None:
    first = school.record(40, task_type="past_tense")
    second = school.record(40, task_type="plural")
    school.scenario.ledger.pause("task_type:past_tense")
    task = school.next()
    assert (task.claim.job_id, task.mode) == (second, "immediate_retry")
    school.report(task, 90)
    assert school.idle()
    school.scenario.ledger.resume("task_type:past_tense")
    assert school.next().claim.job_id == first


# -- jobs that wait for their first attempt --------------------------------------------------------


def submitted(school: School, *verifiers: Any) -> str:
    return school.scenario.submit(
        task_type="person", subject="mia", runner={"kind": "external"}, verifiers=verifiers
    )


def test_a_job_may_have_verifiers(school: School) -> None:
    job_id = submitted(school, "json.object")
    task = school.next()
    assert (task.mode, task.cycle_id) == ("initial", None)
    outcome = school.report(task, None, answer="no JSON")
    assert isinstance(outcome, Settled)
    assert outcome.verdict.score == 0
    school.report(school.next(), None, answer='{"a": 1}')
    assert school.view(job_id).state == "succeeded"


def test_slow_verifiers_run_as_tasks(school: School) -> None:
    job_id = submitted(school, {"id": "command.subprocess", "argv": ["true"]})
    task = school.next()
    outcome = school.report(task, None, answer="x")
    assert outcome == VerificationPending(entry=task.lease.entry, verifications=1)
    assert school.report(task, None, answer="x") == ClaimRefused("verifying")
    assert school.idle()
    run_verification(school.context, Entry("verification", job_id, 1, 0))
    assert school.view(job_id).attempts[0].score == 100


# -- delayed verification --------------------------------------------------------------------------


def test_a_delayed_verification_is_offered_when_it_is_due(school: School) -> None:
    school.record(40)
    school.report(school.next(), 90)
    assert school.idle()
    school.scenario.advance(AFTER)
    task = school.next()
    assert task.mode == "delayed_verification"
    assert school.next().token == task.token


@pytest.mark.parametrize(
    ("score", "status", "reason"),
    [
        (70, CycleStatus.COMPLETED, None),
        (100, CycleStatus.COMPLETED, None),
        (69.5, CycleStatus.ESCALATED, "delayed verification scored 69.5"),
        (69.9999999, CycleStatus.ESCALATED, "delayed verification scored 69.99"),
        (0, CycleStatus.ESCALATED, "delayed verification scored 0"),
    ],
)
def test_the_score_of_a_delayed_verification_decides(
    school: School, score: float, status: CycleStatus, reason: str | None
) -> None:
    job_id = school.repaired()
    task = school.next()
    outcome = school.report(task, score, prompt=OTHER)
    assert outcome == Rechecked(entry=task.lease.entry, score=score, status=status.value)
    cycle = school.scenario.cycle(job_id)
    assert (cycle.status, cycle.reason or None) == (status, reason)
    assert school.view(job_id).state == "succeeded"
    assert school.report(task, score, prompt=OTHER) == ClaimRefused("stored")
    assert school.report(task, 50, prompt=OTHER) == ClaimRefused("other_report")
    assert school.scenario.cycle(job_id).score == score
    assert school.idle()


def test_invalid_delayed_verifications_are_counted_and_may_be_repeated(school: School) -> None:
    job_id = school.repaired(
        delayed_verification={"mode": "reformulate", "other_family": True, "after": 600}
    )
    task = school.next()
    refused = [
        ("missing_task_family_context", {"prompt": OTHER}),
        ("missing_prompt_context", {"task_family": "plurals"}),
        ("missing_prompt_context", {"task_family": "plurals", "prompt": " "}),
        ("duplicate_task_family", {"task_family": "past_tense", "prompt": OTHER}),
        ("duplicate_prompt_formulation", {"task_family": "plurals", "prompt": PROMPT.upper()}),
    ]
    for reason, fields in refused:
        with pytest.raises(NotCounted, match=reason) as caught:
            school.report(task, 100, **fields)
        assert caught.value.reason == reason
    assert school.scenario.cycle(job_id).status is CycleStatus.PENDING_DELAYED_VERIFICATION
    assert task.cycle_id is not None
    counted = json.loads(school.scenario.cycle_row(task.cycle_id)["delayed_invalid"])
    assert counted == {
        "missing_task_family_context": 1,
        "missing_prompt_context": 2,
        "duplicate_task_family": 1,
        "duplicate_prompt_formulation": 1,
    }
    school.report(task, 80, prompt=OTHER, task_family="plurals")
    assert school.scenario.cycle(job_id).status is CycleStatus.COMPLETED


def test_a_delayed_verification_needs_a_score(school: School) -> None:
    school.repaired()
    task = school.next()
    with pytest.raises(BadInput, match="score: is required"):
        school.report(task, None, prompt=OTHER)
    assert isinstance(school.report(task, 90, prompt=OTHER), Rechecked)


def test_a_delayed_verification_may_have_verifiers(school: School) -> None:
    job_id = school.scenario.submit(
        task_type="person",
        subject="mia",
        prompt=PROMPT,
        runner={"kind": "external"},
        delayed_verification={"mode": "reformulate"},
    )
    school.report(school.next(), None, answer="no JSON")
    school.report(school.next(), None, answer="{}")
    school.scenario.advance(AFTER)
    school.report(school.next(), None, answer="no JSON", prompt=OTHER)
    cycle = school.scenario.cycle(job_id)
    assert (cycle.status, cycle.reason) == (
        CycleStatus.ESCALATED,
        "delayed verification scored 0",
    )


# -- guardrails ------------------------------------------------------------------------------------


@pytest.fixture
def guarded(school: School) -> School:
    return replace(school, context=replace(school.context, guard_subjects=True))


def loop(school: School, **fields: Any) -> str:
    """Run one quick repair loop, or record the attempt that a guardrail stopped."""
    job_id = school.record(40, **fields)
    if school.view(job_id).state != "escalated":
        school.report(school.next(fields.get("subject", "mia")), 90, seconds=0.1)
    return job_id


def test_every_low_score_is_repaired_without_guardrails(school: School) -> None:
    """The retry is mandatory: guardrails are opt-in."""
    done = [loop(school) for _ in range(5)]
    assert {school.view(job_id).state for job_id in done} == {"succeeded"}
    assert all(len(school.view(job_id).cycles) == 1 for job_id in done)


def test_the_third_loop_of_a_skill_is_escalated(guarded: School) -> None:
    done = [loop(guarded) for _ in range(3)]
    assert [guarded.view(job_id).state for job_id in done[:2]] == ["succeeded", "succeeded"]
    view = guarded.view(done[2])
    assert (view.state, view.reason, len(view.attempts)) == ("escalated", LOOP_CAP, 1)
    assert (view.cycles[0].status, view.cycles[0].reason) == (CycleStatus.ESCALATED, LOOP_CAP)
    assert view.cycles[0].ended_at is not None
    assert guarded.scenario.view(loop(guarded, task_type="plurals")).state == "succeeded"
    assert guarded.scenario.view(loop(guarded, subject="noa")).reason is None


def test_a_new_session_allows_loops_again(guarded: School) -> None:
    for _ in range(2):
        loop(guarded)
    guarded.scenario.advance(5401)
    assert guarded.view(loop(guarded)).state == "succeeded"


def test_the_first_low_score_of_a_fresh_session_is_always_repaired(guarded: School) -> None:
    """No share of the time is used yet, however short the session is."""
    job_id = guarded.record(0, seconds=0.001)
    assert guarded.next().mode == "immediate_retry"
    assert guarded.view(job_id).reason is None


@pytest.mark.parametrize(
    ("repair", "then", "state"),
    [
        (40, 10, "escalated"),  # 40 of 100 + 40 + 10 seconds are more than a quarter
        (40, 100, "queued"),  # the time of this attempt counts too: 40 of 240
        (35, 0, "escalated"),  # 35 of 135
        (10, 1, "queued"),
    ],
)
def test_repairs_may_take_a_quarter_of_a_session(
    guarded: School, repair: float, then: float, state: str
) -> None:
    guarded.record(40, seconds=100)
    guarded.report(guarded.next(), 90, seconds=repair)
    job_id = guarded.record(40, task_type="plurals", seconds=then)
    view = guarded.view(job_id)
    assert view.state == state
    assert view.reason == (TIME_SHARE_CAP if state == "escalated" else None)
    if state == "escalated":
        assert view.cycles[0].status is CycleStatus.ESCALATED


def test_a_guardrail_forbids_only_loops(guarded: School) -> None:
    """A good score and an exempt task type open no loop."""
    for _ in range(2):
        loop(guarded)
    assert guarded.view(guarded.record(85)).state == "succeeded"
    context = attempt_context(
        guarded.scenario, exempt_task_types=frozenset({"past_tense"}), guard_subjects=True
    )
    job_id = School(guarded.scenario, context).record(40)
    assert (guarded.view(job_id).state, guarded.view(job_id).cycles) == ("queued", ())


def test_a_guardrail_does_not_stop_a_running_loop(guarded: School) -> None:
    """Given a second loop whose retry fails, the policy decides, not the guardrail."""
    loop(guarded)
    job_id = guarded.record(40)
    guarded.report(guarded.next(), 40, feedback="still wrong", seconds=0)
    assert guarded.view(job_id).state == "queued"


# -- guardrails of queue jobs ----------------------------------------------------------------------


def run_failing_job(scenario: Scenario, **changes: Any) -> JobView:
    """Run a queue job that fails at every attempt."""
    context = attempt_context(scenario, FakeRunner(["no JSON"]), **changes)
    job_id = scenario.submit(policy={"max_attempts": 6, "same_failure_limit": 9})
    for number in range(1, 7):
        run_attempt(context, Entry("attempt", job_id, number))
    return scenario.view(job_id)


def test_queue_jobs_have_no_guardrails_by_default(
    new_fake_scenario: ScenarioMaker,
) -> None:
    scenario = new_fake_scenario()
    off = run_failing_job(scenario, guardrail=Guardrail(loops=1))
    assert off.reason not in (LOOP_CAP, TIME_SHARE_CAP)
    assert len(off.cycles) > 1
    on = run_failing_job(scenario, guard_jobs=True, guardrail=Guardrail(loops=1))
    assert (on.state, on.reason) == ("escalated", LOOP_CAP)
    assert [cycle.status for cycle in on.cycles] == [CycleStatus.ESCALATED] * 2
    assert on.cycles[-1].reason == LOOP_CAP


def test_a_requeued_job_may_loop_again(new_fake_scenario: ScenarioMaker) -> None:
    scenario = new_fake_scenario()
    view = run_failing_job(scenario, guard_jobs=True, guardrail=Guardrail(loops=1))
    number = len(view.attempts)
    scenario.end(f"{view.id}:{number}", "requeued")
    runner = FakeRunner(["no JSON"])
    context = attempt_context(scenario, runner, guard_jobs=True, guardrail=Guardrail(loops=1))
    run_attempt(context, Entry("attempt", view.id, number + 1))
    after = scenario.view(view.id)
    assert (after.state, after.attempts[-1].plan.mode) == ("queued", "immediate_retry")
