"""The ledger's contract: no loop says that an item runs when nothing is left that would run it."""

from __future__ import annotations

import pytest
from support.jobs import answer
from support.ledger_scenario import Scenario
from support.loops import LoopScenario, item
from support.settlements import retries_immediately

from mulligan.tasks.loops.monitor import reconcile


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario)


def lose(loops: LoopScenario, *names: str) -> None:
    """Delete keys, as an operator or a damaged Redis would."""
    for name in names:
        loops.scenario.ledger.calls.run("DEL", f"{loops.scenario.ledger.prefixes()[0]}{name}")


def last_note(loops: LoopScenario) -> str:
    return loops.scenario.ledger.loop_log("alpha", limit=1)[0].note


REQUEUED = "a: nothing ran although it was listed as running; it is queued again"


def test_an_item_whose_entry_was_lost_is_queued_again(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    assert reconcile(loops.context) == 0, "its entry is in the outbox"
    lose(loops, "outbox", "outbox:entries")
    job_id = loops.item("a").job_id
    assert loops.scenario.swept_entries("agent") == set(), "the sweep does not find it"
    assert reconcile(loops.context) == 1
    assert last_note(loops) == REQUEUED
    assert loops.scenario.swept_entries("agent") == {f"a:{job_id}/1"}
    assert reconcile(loops.context) == 0
    loops.passes("a")
    assert loops.states() == {"a": "passed"}


def test_an_index_of_the_outbox_that_was_lost_is_found_too(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    lose(loops, "outbox")
    assert reconcile(loops.context) == 1
    assert len(loops.scenario.swept_entries("agent")) == 1


def test_an_item_that_lost_its_lease_runs_again_and_its_worker_writes_nothing(
    loops: LoopScenario,
) -> None:
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    assert reconcile(loops.context) == 0, "a worker holds it"
    lose(loops, "leases")
    assert reconcile(loops.context) == 1
    assert loops.scenario.view(claim.lease.entry.job_id).state == "queued"
    assert loops.scenario.ledger.renew([claim.lease]), "the lease is lost"
    loops.passes("a")
    assert loops.states() == {"a": "passed"}


def test_a_parked_item_that_nothing_would_release_is_queued_again(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.move("pause")
    assert loops.refusal("a") == loops.refusal("a")
    assert reconcile(loops.context) == 0, "it is parked behind its loop"
    lose(loops, "parked:loop:alpha", "parked")
    assert reconcile(loops.context) == 1
    loops.move("resume")
    loops.scenario.swept_entries()
    loops.plan()
    loops.passes("a")


def test_an_attempt_whose_record_is_gone_fails(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b", "a"))
    loops.plan()
    job_id = loops.item("a").job_id
    lose(loops, f"job:{job_id}:1")
    assert reconcile(loops.context) == 1
    assert last_note(loops) == "a: the record of its attempt is gone"
    assert (loops.item("a").state, loops.item("a").reason) == ("failed", "tool_error")
    assert loops.scenario.ledger.live_items() == []


def test_a_job_that_is_gone_ends_its_item_also_in_a_paused_loop(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.move("pause")
    lose(loops, f"job:{loops.item('a').job_id}")
    assert reconcile(loops.context) == 1
    assert loops.states() == {"a": "failed"}
    assert last_note(loops) == "a: its job is gone"
    assert reconcile(loops.context) == 0


def test_a_retry_whose_entry_was_lost_is_queued_as_a_retry(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.ledger.store_output(claim.lease, answer())
    loops.settle(claim, retries_immediately(claim))
    lose(loops, "outbox", "outbox:entries")
    assert reconcile(loops.context) == 1
    (found,) = [each for each in loops.scenario.sweep() if each.entry.kind == "attempt"]
    assert (found.queue, found.entry.attempt, found.priority) == ("agent.repair", 2, 0)


def test_verifications_that_were_lost_are_queued_again(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.ledger.store_output(claim.lease, answer(), verifications=[0])
    assert reconcile(loops.context) == 0, "its verification is in the outbox"
    lose(loops, "outbox", "outbox:entries")
    assert reconcile(loops.context) == 1
    assert len(loops.scenario.swept_entries("verify")) == 1
