"""The ledger's contract, in memory and on Redis: a verdict and all that follows from it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_core import PydanticSerializationError
from support.ledger_stage import (
    Stage,
    StageMaker,
    answer,
    escalates,
    make_verdict,
    passed,
    retries_at_once,
    retries_by_policy,
    succeeds,
)

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.jobs.job import AttemptPlan
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import ClaimRefused, CyclePlan, Entry, Publication, Remedy


@pytest.fixture
def play(stage: StageMaker) -> Stage:
    return stage()


def test_a_memory_that_jobs_share_forgets_what_it_saw_least_often(stage: StageMaker) -> None:
    play = stage(memory_cap=10)

    def meet(signature: str) -> None:
        claim = play.take(play.submit(memory_scope="task_type"))
        play.settle(claim, escalates(claim, signatures=(signature,)))

    for signature in ("often", "often", *(f"once {n}" for n in range(12))):
        meet(signature)
    memory = play.take(play.submit(memory_scope="task_type")).memory
    assert len(memory.counts) == 10
    assert (memory.count("often"), memory.count("once 11")) == (2, 1)


def test_success_ends_the_job(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    verdict = Verdict(score=92.5, success=True, results=(passed(),), coercions=("fence",))
    assert play.settle(claim, succeeds(claim, verdict=verdict)) is None
    view, attempt = play.view(job_id), play.attempt(job_id)
    assert (view.state, view.best_attempt) == ("succeeded", 1)
    assert view.finished_at is not None
    assert (attempt.state, attempt.verdict) == ("settled", verdict)
    assert attempt.settled_at is not None
    assert play.expire_leases() == set()


def test_a_verdict_that_cannot_be_serialised_changes_nothing(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    result = passed().model_copy(update={"evidence": {"found": object()}})
    with pytest.raises(PydanticSerializationError):
        play.ledger.settle(claim.lease, succeeds(claim, verdict=Verdict(results=(result,))))
    assert play.view(job_id).state == "running"
    play.settle(claim, succeeds(claim))


def test_a_low_score_opens_a_cycle_and_queues_the_mandatory_retry_in_one_step(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    told = play.settle(claim, retries_at_once(claim))
    retry = Publication(Entry("attempt", job_id, 2), "repair", 0)
    assert told == retry
    view = play.view(job_id)
    assert (view.state, [a.state for a in view.attempts]) == ("queued", ["settled", "queued"])
    cycle = play.cycle(job_id)
    assert (cycle.id, cycle.source_attempt, cycle.loop_index) == (f"{job_id}:1:1", 1, 1)
    assert cycle.status is CycleStatus.PENDING_IMMEDIATE_RETRY
    assert cycle.metadata == {"taskType": "extract", "causeLabel": "json_invalid"}
    # Nobody published it: the sweep does.
    play.advance(play.settings.outbox_grace + 1)
    assert play.sweep() == [retry]


def test_the_mandatory_retry_is_claimed_with_its_plan_and_the_memory(play: Stage) -> None:
    job_id = play.submit()
    first = play.take(job_id)
    play.settle(first, retries_at_once(first, signatures=("a", "b")))
    claim = play.take(job_id, 2)
    assert claim.plan == AttemptPlan(
        number=2, mode="immediate_retry", prompt="Do it right.", cycle_id=f"{job_id}:1:1"
    )
    assert dict(claim.memory.counts) == {"a": 1, "b": 1}
    assert claim.loops == 1


def test_a_policy_retry_may_wait(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    assert play.settle(claim, retries_by_policy(claim, delay=20)) is None
    assert (play.view(job_id).state, play.view(job_id).waiting_for) == ("waiting", "delay")
    assert play.refusal(job_id, 2) == ClaimRefused("early")
    play.advance(play.settings.outbox_grace + 1)
    assert play.swept("attempt") == set()
    play.advance(20)
    assert play.sweep() == [Publication(Entry("attempt", job_id, 2), "attempt", 0)]
    assert play.take(job_id, 2).plan.mode == "policy_retry"


def test_a_policy_retry_without_delay_is_published_at_once(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    told = play.settle(claim, retries_by_policy(claim))
    assert told == Publication(Entry("attempt", job_id, 2), "attempt", 0)
    assert play.view(job_id).cycles == ()


def test_escalating_a_job_ends_its_open_cycles(play: Stage) -> None:
    """Given one cycle awaiting its delayed verification and one just opened, when the job is
    escalated, then both end with the same reason, and nothing of them is published."""
    job_id = play.submit()
    for number, settlement in enumerate([retries_at_once, retries_by_policy, retries_at_once], 1):
        claim = play.take(job_id, number)
        play.settle(claim, settlement(claim))
    last = play.take(job_id, 4)
    play.settle(last, escalates(last, "repeated_failure"))
    view = play.view(job_id)
    assert (view.state, view.reason, view.detail) == (
        "escalated",
        "repeated_failure",
        "it went wrong",
    )
    assert [(c.status, c.reason) for c in view.cycles] == [
        (CycleStatus.ESCALATED, "repeated_failure"),
        (CycleStatus.ESCALATED, "repeated_failure"),
    ]
    assert all(cycle.ended_at for cycle in view.cycles)
    play.advance(1000)
    assert play.swept("verify", "attempt", "repair") == set()


def test_a_cycle_cut_short_is_born_escalated(play: Stage) -> None:
    """Given an exhausted budget at a low score, then the cycle is on record, and has ended."""
    job_id = play.submit()
    claim = play.take(job_id)
    cycle = CyclePlan(id=f"{job_id}:1:1", loop_index=1, status="escalated", metadata={"x": 1})
    play.settle(claim, escalates(claim, "budget_tokens", cycle=cycle))
    born = play.cycle(job_id)
    assert (born.status, born.reason) == (CycleStatus.ESCALATED, "budget_tokens")
    assert born.ended_at is not None
    assert born.immediate_attempt_id is None
    assert play.refused_recheck(Entry("cycle", job_id, 1, 1)) == ClaimRefused("finished")
    play.advance(play.settings.cycle_retention + 1)
    play.sweep()
    assert play.ledger.cycles(since=0, limit=10) == []


def test_a_job_cancelled_meanwhile_keeps_the_verdict_and_goes_nowhere(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    play.ledger.cancel(job_id)
    for _ in range(2):
        assert play.settle(claim, retries_at_once(claim)) is None
    view = play.view(job_id)
    assert (view.state, len(view.attempts), view.cycles) == ("cancelled", 1, ())
    assert view.attempts[0].verdict == make_verdict(score=40.0)
    play.advance(play.settings.outbox_grace + 1)
    assert play.swept("attempt", "repair") == set()


def test_cancelling_ends_open_cycles(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    play.settle(claim, retries_at_once(claim))
    play.ledger.cancel(job_id)
    assert play.cycle(job_id).status is CycleStatus.CANCELLED


def test_settling_twice_records_once(play: Stage) -> None:
    """Given a settlement whose answer was lost, when it is repeated, then nothing is doubled."""
    job_id = play.submit()
    claim = play.take(job_id)
    remedy = Remedy(coarse="json", technique="shorter", worked=False)
    told = play.settle(claim, retries_at_once(claim, remedy=remedy))
    assert play.settle(claim, retries_at_once(claim, remedy=remedy)) == told
    assert len(play.view(job_id).attempts) == 2
    assert len(play.view(job_id).cycles) == 1
    assert play.ledger.remedies(job_id, "json") == {"shorter": (0, 1)}
    second = play.take(job_id, 2)
    assert dict(second.memory.counts) == {"json_invalid|$": 1}
    # The retry is in somebody's hand: there is nothing to publish any more.
    assert play.settle(claim, retries_at_once(claim)) is None


def test_a_settled_attempt_cannot_be_settled_by_another_token(play: Stage) -> None:
    job_id = play.submit()
    zombie = play.take(job_id)
    play.advance(play.settings.lease + 1)
    heir = play.take(job_id)
    play.settle(heir, succeeds(heir))
    assert play.ledger.settle(zombie.lease, escalates(zombie)) == ClaimRefused("lost")
    assert play.view(job_id).state == "succeeded"


def test_a_failure_counts_once_per_attempt(play: Stage) -> None:
    job_id = play.submit()
    for number in (1, 2, 3):
        claim = play.take(job_id, number)
        assert claim.memory.count("same") == number - 1
        play.settle(claim, retries_by_policy(claim, signatures=("same", f"own {number}")))
    assert play.take(job_id, 4).memory.count("own 2") == 1


def test_a_memory_is_shared_as_widely_as_the_job_says(play: Stage) -> None:
    """Given a failure remembered by task type, then other jobs of that type know it, no others."""
    shared: dict[str, Any] = {"memory_scope": "task_type"}
    claim = play.take(play.submit(**shared))
    play.settle(claim, retries_by_policy(claim, signatures=("s",)))
    assert play.take(play.submit(prompt="Other.", **shared)).memory.count("s") == 1
    assert play.take(play.submit(task_type="translate", **shared)).memory.count("s") == 0
    assert play.take(play.submit()).memory.count("s") == 0


# (score, success) of each attempt in turn, and the number of the best: (success, score, earliest)
BEST = [
    ([(40.0, False)], 1),
    ([(40.0, False), (60.0, False)], 2),
    ([(60.0, False), (40.0, False)], 1),
    ([(60.0, False), (60.0, False)], 1),  # the earliest of equals
    ([(90.0, False), (75.0, True)], 2),  # a success beats a higher score
    ([(None, False), (0.0, False)], 2),  # any score beats none
    ([(None, False), (None, False)], 1),
]


@pytest.mark.parametrize(("story", "best"), BEST)
def test_the_best_attempt_is_by_success_then_score_then_the_earliest(
    play: Stage, story: list[tuple[float | None, bool]], best: int
) -> None:
    job_id = play.submit()
    for number, (score, success) in enumerate(story, 1):
        claim = play.take(job_id, number)
        play.settle(claim, retries_by_policy(claim, score=score, success=success))
    assert play.view(job_id).best_attempt == best


def test_remedies_are_counted_by_what_they_cure(play: Stage) -> None:
    job_id = play.submit()
    for number, (technique, worked) in enumerate(
        [("shorter", True), ("shorter", False), ("other: model", True)], 1
    ):
        claim = play.take(job_id, number)
        remedy = Remedy(coarse="json", technique=technique, worked=worked)
        play.settle(claim, retries_by_policy(claim, remedy=remedy))
    expected = {"shorter": (1, 2), "other: model": (1, 1)}
    assert play.ledger.remedies(job_id, "json") == expected
    assert play.ledger.remedies(job_id, "test_failed") == {}


def test_the_answer_of_a_settled_attempt_stays(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    play.ledger.store_output(claim.lease, answer("first"))
    play.settle(claim, retries_at_once(claim))
    assert play.attempt(job_id).output == answer("first")
    assert play.take(job_id, 2).output is None
