"""The ledger's contract: its scripts publish an attempt where the policy says, every time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.jobs import make_job
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import retries_by_policy, retries_immediately

from mulligan.policies.jobs.job import Mode
from mulligan.policies.jobs.routing import priority_of, queue_of
from mulligan.tasks.ports.ledger import Accepted, Claim, Entry, Publication, Settlement

PRIORITY = 3
MODES: dict[Mode, Callable[[Claim], Settlement] | None] = {
    "initial": None,
    "immediate_retry": retries_immediately,
    "policy_retry": retries_by_policy,
}


@pytest.fixture
def scenario(new_scenario: ScenarioMaker) -> Scenario:
    return new_scenario()


def waiting(scenario: Scenario, mode: Mode) -> Publication:
    """An attempt of this mode, as it was published at first."""
    told = scenario.accept(make_job(priority=PRIORITY))
    assert isinstance(told, Accepted)
    settlement = MODES[mode]
    if settlement is None:
        assert told.publication is not None
        return told.publication
    first = scenario.claim(told.id)
    published = scenario.settle(first, settlement(first))
    assert published is not None
    return published


@pytest.mark.parametrize("mode", MODES)
def test_an_attempt_is_always_published_where_the_policy_says(
    scenario: Scenario, mode: Mode
) -> None:
    """Given an attempt of each mode, when it is published at first, when its message was lost, when
    its worker gave it back, and when its worker died, then its queue and its priority are the
    policy's."""
    published = waiting(scenario, mode)
    entry: Entry = published.entry
    expected = Publication(entry, queue_of(mode), priority_of(mode, PRIORITY))
    assert published == expected
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.sweep() == [expected]
    claim = scenario.claim(entry.job_id, entry.attempt)
    assert scenario.ledger.requeue(claim.lease, delay=1, detail="a fault") is None
    scenario.advance(2)
    assert scenario.sweep() == [expected]
    scenario.claim(entry.job_id, entry.attempt)
    scenario.advance(scenario.settings.lease + 1)
    assert scenario.sweep() == [expected]


@pytest.mark.parametrize("mode", MODES)
def test_a_pause_of_its_queue_holds_an_attempt_back(scenario: Scenario, mode: Mode) -> None:
    entry = waiting(scenario, mode).entry
    scenario.ledger.pause(f"queue:{queue_of(mode)}")
    assert scenario.refusal(entry.job_id, entry.attempt).reason == "paused"
