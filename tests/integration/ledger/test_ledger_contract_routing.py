"""The ledger's contract: its scripts publish every attempt where the policy says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.jobs import make_job
from support.ledger_scenario import Scenario
from support.settlements import retries_by_policy, retries_immediately

from mulligan.policies.jobs.job import Mode
from mulligan.policies.jobs.routing import priority_of, queue_of
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


def publish(scenario: Scenario, mode: Mode) -> Publication:
    """Return the first publication of an attempt of this mode."""
    accepted = scenario.accept(make_job(priority=PRIORITY))
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
    scenario: Scenario, mode: Mode
) -> None:
    """Given an attempt of each mode, when it is first published, its message is lost, its worker
    requeues it or its worker dies, then its queue and priority are the policy's."""
    published = publish(scenario, mode)
    entry: Entry = published.entry
    expected = Publication(entry, queue_of(mode), priority_of(mode, PRIORITY))
    assert published == expected
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.sweep() == [expected]
    claim = scenario.claim(entry.job_id, entry.attempt)
    assert isinstance(
        scenario.ledger.requeue(claim.lease, delay=1, detail="a fault"), EntryRequeued
    )
    scenario.advance(2)
    assert scenario.sweep() == [expected]
    scenario.claim(entry.job_id, entry.attempt)
    scenario.advance(scenario.settings.lease + 1)
    assert scenario.sweep() == [expected]


@pytest.mark.parametrize("mode", MODES)
def test_an_attempt_waits_while_its_queue_is_paused(scenario: Scenario, mode: Mode) -> None:
    entry = publish(scenario, mode).entry
    scenario.ledger.pause(f"queue:{queue_of(mode)}")
    assert scenario.refusal(entry.job_id, entry.attempt).reason == "paused"
