"""The ledger's contract: settling a verdict and its consequences."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_core import PydanticSerializationError
from support.jobs import answer, make_verdict, passed
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import escalates, retries_by_policy, retries_immediately, succeeds

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.policies.jobs.job import AttemptPlan
from mulligan.policies.repair.verdict import Verdict
from mulligan.tasks.ports.ledger import ClaimRefused, CyclePlan, Entry, Publication, Remedy


def test_a_shared_memory_over_its_cap_forgets_the_rarest_signature(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(memory_cap=10)

    def fail_with(signature: str) -> None:
        claim = scenario.claim(scenario.submit(memory_scope="task_type"))
        scenario.settle(claim, escalates(claim, signatures=(signature,)))

    for signature in ("often", "often", *(f"once {n}" for n in range(12))):
        fail_with(signature)
    memory = scenario.claim(scenario.submit(memory_scope="task_type")).memory
    assert len(memory.counts) == 10
    assert (memory.count("often"), memory.count("once 11")) == (2, 1)


def test_success_ends_the_job(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    verdict = Verdict(score=92.5, success=True, results=(passed(),), coercions=("fence",))
    assert scenario.settle(claim, succeeds(claim, verdict=verdict)) is None
    view, attempt = scenario.view(job_id), scenario.attempt(job_id)
    assert (view.state, view.best_attempt) == ("succeeded", 1)
    assert view.finished_at is not None
    assert (attempt.state, attempt.verdict) == ("settled", verdict)
    assert attempt.settled_at is not None
    assert scenario.expire_leases() == set()


def test_a_verdict_that_cannot_be_serialised_changes_nothing(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    result = passed().model_copy(update={"evidence": {"found": object()}})
    with pytest.raises(PydanticSerializationError):
        scenario.ledger.settle(claim.lease, succeeds(claim, verdict=Verdict(results=(result,))))
    assert scenario.view(job_id).state == "running"
    scenario.settle(claim, succeeds(claim))


def test_a_low_score_opens_a_cycle_and_queues_the_mandatory_retry_in_one_step(
    scenario: Scenario,
) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    published = scenario.settle(claim, retries_immediately(claim))
    retry = Publication(Entry("attempt", job_id, 2), "repair", 0)
    assert published == retry
    view = scenario.view(job_id)
    assert (view.state, [a.state for a in view.attempts]) == ("queued", ["settled", "queued"])
    cycle = scenario.cycle(job_id)
    assert (cycle.id, cycle.source_attempt, cycle.loop_index) == (f"{job_id}:1:1", 1, 1)
    assert cycle.status is CycleStatus.PENDING_IMMEDIATE_RETRY
    assert cycle.metadata.keys() == {"taskType", "prompt", "targetNodes", "causeLabel"}
    assert (cycle.metadata["taskType"], cycle.metadata["causeLabel"]) == ("extract", "json_invalid")
    # The caller did not publish it, so the sweep does.
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.sweep() == [retry]


def test_the_mandatory_retry_is_claimed_with_its_plan_and_the_memory(scenario: Scenario) -> None:
    job_id = scenario.submit()
    first = scenario.claim(job_id)
    scenario.settle(first, retries_immediately(first, signatures=("a", "b")))
    claim = scenario.claim(job_id, 2)
    assert claim.plan == AttemptPlan(
        number=2, mode="immediate_retry", prompt="Do it right.", cycle_id=f"{job_id}:1:1"
    )
    assert dict(claim.memory.counts) == {"a": 1, "b": 1}
    assert claim.loops == 1


def test_a_policy_retry_may_be_delayed(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    assert scenario.settle(claim, retries_by_policy(claim, delay=20)) is None
    assert (scenario.view(job_id).state, scenario.view(job_id).waiting_for) == ("waiting", "delay")
    assert scenario.refusal(job_id, 2) == ClaimRefused("early")
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries("attempt") == set()
    scenario.advance(20)
    assert scenario.sweep() == [Publication(Entry("attempt", job_id, 2), "attempt", 0)]
    assert scenario.claim(job_id, 2).plan.mode == "policy_retry"


def test_a_policy_retry_without_delay_is_published_at_once(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    published = scenario.settle(claim, retries_by_policy(claim))
    assert published == Publication(Entry("attempt", job_id, 2), "attempt", 0)
    assert scenario.view(job_id).cycles == ()


def test_escalating_a_job_ends_its_open_cycles(scenario: Scenario) -> None:
    """Given one cycle awaiting its delayed verification and one just opened, when the job is
    escalated, then both end with the same reason and are not published."""
    job_id = scenario.submit()
    for number, settlement in enumerate(
        [retries_immediately, retries_by_policy, retries_immediately], 1
    ):
        claim = scenario.claim(job_id, number)
        scenario.settle(claim, settlement(claim))
    last = scenario.claim(job_id, 4)
    scenario.settle(last, escalates(last, "repeated_failure"))
    view = scenario.view(job_id)
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
    scenario.advance(1000)
    assert scenario.swept_entries("verify", "attempt", "repair") == set()


def test_a_cycle_without_budget_is_created_escalated(scenario: Scenario) -> None:
    """Given an exhausted budget at a low score, then the cycle is recorded as ended."""
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    cycle = CyclePlan(id=f"{job_id}:1:1", loop_index=1, status="escalated", metadata={"x": 1})
    scenario.settle(claim, escalates(claim, "budget_tokens", cycle=cycle))
    stored = scenario.cycle(job_id)
    assert (stored.status, stored.reason) == (CycleStatus.ESCALATED, "budget_tokens")
    assert stored.ended_at is not None
    assert stored.immediate_attempt_id is None
    assert scenario.recheck_refusal(Entry("cycle", job_id, 1, 1)) == ClaimRefused("finished")
    scenario.advance(scenario.settings.cycle_retention + 1)
    scenario.sweep()
    assert scenario.ledger.cycles(since=0, limit=10) == []


def test_a_job_cancelled_meanwhile_keeps_the_verdict_and_is_not_retried(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.ledger.cancel(job_id)
    for _ in range(2):
        assert scenario.settle(claim, retries_immediately(claim)) is None
    view = scenario.view(job_id)
    assert (view.state, len(view.attempts), view.cycles) == ("cancelled", 1, ())
    assert view.attempts[0].verdict == make_verdict(score=40.0)
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries("attempt", "repair") == set()


def test_cancelling_ends_open_cycles(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.settle(claim, retries_immediately(claim))
    scenario.ledger.cancel(job_id)
    assert scenario.cycle(job_id).status is CycleStatus.CANCELLED


def test_settling_twice_records_the_verdict_once(scenario: Scenario) -> None:
    """Given a settlement whose reply was lost, when it is repeated, then nothing is doubled."""
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    remedy = Remedy(coarse="json", technique="shorter", worked=False)
    published = scenario.settle(claim, retries_immediately(claim, remedy=remedy))
    assert scenario.settle(claim, retries_immediately(claim, remedy=remedy)) == published
    assert len(scenario.view(job_id).attempts) == 2
    assert len(scenario.view(job_id).cycles) == 1
    assert scenario.ledger.remedies(job_id, "json") == {"shorter": (0, 1)}
    second = scenario.claim(job_id, 2)
    assert dict(second.memory.counts) == {"json_invalid|$": 1}
    # The retry is claimed: there is nothing to publish any more.
    assert scenario.settle(claim, retries_immediately(claim)) is None


def test_a_settled_attempt_cannot_be_settled_by_another_token(scenario: Scenario) -> None:
    job_id = scenario.submit()
    zombie = scenario.claim(job_id)
    scenario.advance(scenario.settings.lease + 1)
    successor = scenario.claim(job_id)
    scenario.settle(successor, succeeds(successor))
    assert scenario.ledger.settle(zombie.lease, escalates(zombie)) == ClaimRefused("lost")
    assert scenario.view(job_id).state == "succeeded"


def test_a_failure_counts_once_per_attempt(scenario: Scenario) -> None:
    job_id = scenario.submit()
    for number in (1, 2, 3):
        claim = scenario.claim(job_id, number)
        assert claim.memory.count("same") == number - 1
        scenario.settle(claim, retries_by_policy(claim, signatures=("same", f"own {number}")))
    assert scenario.claim(job_id, 4).memory.count("own 2") == 1


def test_a_memory_is_shared_within_the_job_s_scope(scenario: Scenario) -> None:
    """Given a failure remembered by task type, then only jobs of that type know it."""
    shared: dict[str, Any] = {"memory_scope": "task_type"}
    claim = scenario.claim(scenario.submit(**shared))
    scenario.settle(claim, retries_by_policy(claim, signatures=("s",)))
    assert scenario.claim(scenario.submit(prompt="Other.", **shared)).memory.count("s") == 1
    assert scenario.claim(scenario.submit(task_type="translate", **shared)).memory.count("s") == 0
    assert scenario.claim(scenario.submit()).memory.count("s") == 0


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


@pytest.mark.parametrize(("attempts", "best"), BEST)
def test_the_best_attempt_is_by_success_then_score_then_the_earliest(
    scenario: Scenario, attempts: list[tuple[float | None, bool]], best: int
) -> None:
    job_id = scenario.submit()
    for number, (score, success) in enumerate(attempts, 1):
        claim = scenario.claim(job_id, number)
        scenario.settle(claim, retries_by_policy(claim, score=score, success=success))
    assert scenario.view(job_id).best_attempt == best


def test_remedies_are_counted_by_signature_and_technique(scenario: Scenario) -> None:
    job_id = scenario.submit()
    for number, (technique, worked) in enumerate(
        [("shorter", True), ("shorter", False), ("other: model", True)], 1
    ):
        claim = scenario.claim(job_id, number)
        remedy = Remedy(coarse="json", technique=technique, worked=worked)
        scenario.settle(claim, retries_by_policy(claim, remedy=remedy))
    expected = {"shorter": (1, 2), "other: model": (1, 1)}
    assert scenario.ledger.remedies(job_id, "json") == expected
    assert scenario.ledger.remedies(job_id, "test_failed") == {}


def test_the_answer_of_a_settled_attempt_is_kept(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.ledger.store_output(claim.lease, answer("first"))
    scenario.settle(claim, retries_immediately(claim))
    assert scenario.attempt(job_id).output == answer("first")
    assert scenario.claim(job_id, 2).output is None
