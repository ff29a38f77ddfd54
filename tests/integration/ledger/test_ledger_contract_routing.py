"""The ledger's contract: its scripts publish every attempt where the policy says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.jobs import answer, make_job
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import retries_by_policy, retries_immediately, succeeds

from mulligan.policies.jobs.job import Mode
from mulligan.policies.jobs.routing import AttemptPool, VerificationPlace, priority_of, queue_of
from mulligan.tasks.ports.ledger import (
    Accepted,
    Claim,
    Entry,
    EntryRequeued,
    Publication,
    Settlement,
)

PRIORITY = 3
MODES: dict[Mode, Callable[[Claim], Settlement] | None] = {
    "initial": None,
    "immediate_retry": retries_immediately,
    "policy_retry": retries_by_policy,
}
POOLS: tuple[AttemptPool, ...] = ("", "agent")


@pytest.fixture(params=POOLS, ids=lambda pool: pool or "no pool")
def pool(request: pytest.FixtureRequest) -> AttemptPool:
    found: AttemptPool = request.param
    return found


@pytest.fixture
def scenario(new_scenario: ScenarioMaker, pool: AttemptPool) -> Scenario:
    """A scenario whose profile `coder` runs in the pool."""
    return new_scenario(runners={"coder": {"kind": "scripted", "answers": ["{}"], "pool": pool}})


def publish(scenario: Scenario, mode: Mode) -> Publication:
    """Return the first publication of an attempt of this mode."""
    accepted = scenario.accept(make_job(priority=PRIORITY, runner={"profile": "coder"}))
    assert isinstance(accepted, Accepted)
    settlement = MODES[mode]
    if settlement is None:
        assert accepted.publication is not None
        return accepted.publication
    first = scenario.claim(accepted.id)
    published = scenario.settle(first, settlement(first))
    assert published is not None
    return published


@pytest.mark.parametrize("mode", MODES)
def test_an_attempt_is_always_published_where_the_policy_says(
    scenario: Scenario, pool: AttemptPool, mode: Mode
) -> None:
    """Given an attempt of each mode and pool, when it is first published, its message is lost, its
    worker requeues it, its queue was paused or its worker dies, then its queue and priority are
    the policy's."""
    published = publish(scenario, mode)
    entry: Entry = published.entry
    queue = queue_of(mode, pool)
    expected = Publication(entry, queue, priority_of(mode, PRIORITY))
    assert published == expected
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.sweep() == [expected]
    claim = scenario.claim(entry.job_id, entry.attempt)
    assert isinstance(
        scenario.ledger.requeue(claim.lease, delay=1, detail="a fault"), EntryRequeued
    )
    scenario.advance(2)
    assert scenario.sweep() == [expected]
    scenario.ledger.pause(f"queue:{queue}")
    assert scenario.refusal(entry.job_id, entry.attempt).reason == "paused"
    assert scenario.ledger.resume(f"queue:{queue}")
    assert [each.queue for each in scenario.sweep()] == [queue]
    scenario.claim(entry.job_id, entry.attempt)
    scenario.advance(scenario.settings.lease + 1)
    assert scenario.sweep() == [expected]


@pytest.mark.parametrize("mode", MODES)
def test_an_attempt_waits_while_its_queue_is_paused(
    scenario: Scenario, pool: AttemptPool, mode: Mode
) -> None:
    """Only the pause of its own queue holds it back."""
    entry = publish(scenario, mode).entry
    own = queue_of(mode, pool)
    others = {queue_of(each, name) for each in MODES for name in POOLS} - {own}
    for queue in others:
        scenario.ledger.pause(f"queue:{queue}")
    claim = scenario.claim(entry.job_id, entry.attempt)
    assert isinstance(scenario.ledger.requeue(claim.lease, delay=0, detail=""), EntryRequeued)
    scenario.ledger.pause(f"queue:{own}")
    assert scenario.refusal(entry.job_id, entry.attempt).reason == "paused"


def test_a_retry_by_policy_after_a_delay_returns_to_the_queue_of_first_attempts(
    scenario: Scenario, pool: AttemptPool
) -> None:
    first = scenario.claim(publish(scenario, "initial").entry.job_id)
    assert scenario.settle(first, retries_by_policy(first, delay=5)) is None
    scenario.advance(6)
    assert [each.queue for each in scenario.sweep()] == [queue_of("policy_retry", pool)]


def test_a_requeued_job_returns_to_the_queue_of_first_attempts(
    scenario: Scenario, pool: AttemptPool
) -> None:
    job_id = scenario.escalated_job(runner={"profile": "coder"})
    published = scenario.end(f"{job_id}:1", "requeued").publication
    assert published is not None
    assert published.queue == queue_of("initial", pool)


@pytest.mark.parametrize("place", ["verify", "attempt"])
def test_to_ask_again_runs_where_the_job_ran_and_to_check_again_does_not(
    scenario: Scenario, pool: AttemptPool, place: VerificationPlace
) -> None:
    """Given a repaired job, when its delayed verification is due, its queue was paused or its
    worker dies, then it is published to the queue of its work."""
    retry = publish(scenario, "immediate_retry").entry
    second = scenario.claim(retry.job_id, 2)
    scenario.ledger.store_output(second.lease, answer("repaired"))
    scenario.settle(second, succeeds(second, verify_after=60, verify_on=place))
    queue = queue_of("initial", pool) if place == "attempt" else "verify"
    expected = [(Entry("cycle", retry.job_id, 1, 1), queue)]
    scenario.advance(61)
    assert [(each.entry, each.queue) for each in scenario.sweep()] == expected
    scenario.ledger.pause(f"queue:{queue}")
    assert scenario.recheck_refusal(expected[0][0]).reason == "paused"
    scenario.ledger.resume(f"queue:{queue}")
    assert [(each.entry, each.queue) for each in scenario.sweep()] == expected
    scenario.claim_recheck(expected[0][0])
    scenario.advance(scenario.settings.lease + 1)
    assert [(each.entry, each.queue) for each in scenario.sweep()] == expected
