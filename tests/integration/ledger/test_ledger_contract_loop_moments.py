"""Loops at odd moments: waiting items, back-off, deleted loops, late answers, lost hints."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.jobs import answer
from support.ledger_scenario import Scenario, ScenarioMaker
from support.loops import ADA, LoopScenario, document, hint, item, used
from support.settlements import succeeds

from mulligan.policies.loops.loop import LoopChange
from mulligan.tasks.loops import change
from mulligan.tasks.loops.change import LoopConflict
from mulligan.tasks.loops.view import view_loop, why
from mulligan.tasks.ports.errors import TransportFault
from mulligan.tasks.ports.ledger import ClaimRefused, LoopWrite, Requester, Written


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario)


def many(count: int, prefix: str = "i") -> list[dict[str, object]]:
    return [item(f"{prefix}{n:03}") for n in range(count)]


def plan_until_idle(loops: LoopScenario, *names: str) -> None:
    for _ in range(400):
        admitted = [loops.plan(name).admitted for name in names]
        seen = all(loops.loop(name).dirty == loops.loop(name).planned for name in names)
        if seen and not any(admitted):
            return


def live(loops: LoopScenario, name: str = "alpha") -> list[tuple[str, str]]:
    return sorted((each.loop, each.item) for each in loops.read(name).fleet.live)


# -- items that wait -------------------------------------------------------------------------------


def test_a_loop_begins_no_more_than_twice_its_concurrency_while_nothing_can_run(
    loops: LoopScenario,
) -> None:
    """Given a paused queue for longer than a deadline, then most items are untouched."""
    loops.scenario.ledger.pause("queue:agent")
    loops.create(*many(20), concurrency=2)
    plan_until_idle(loops, "alpha")
    found = view_loop(loops.context, "alpha").summary.counts
    assert found == {"waiting": 4, "ready": 16}
    text = why(loops.context, "alpha", "i010").text
    assert text.endswith(
        "4 items of this loop have begun and wait for queue agent, which is paused"
    )
    assert why(loops.context, "alpha").command == "mulligan queue resume queue:agent"
    loops.scenario.advance(25 * 3600)
    loops.scenario.sweep()
    loops.scenario.ledger.resume("queue:agent")
    loops.scenario.sweep()
    plan_until_idle(loops, "alpha")
    found = view_loop(loops.context, "alpha").summary.counts
    assert found == {"failed": 4, "running": 2, "ready": 14}


def test_the_waiting_items_of_one_loop_hold_up_no_other_loop(
    new_redis_scenario: ScenarioMaker,
) -> None:
    """Given a loop with more waiting items than are read at once, which is then paused."""
    loops = LoopScenario(new_redis_scenario(), slots=3)
    loops.scenario.ledger.pause("queue:agent")
    loops.create(*many(102), concurrency=51)
    plan_until_idle(loops, "alpha")
    loops.create(*many(3, "u"), name="urgent", priority=1, concurrency=3)
    plan_until_idle(loops, "urgent")
    loops.scenario.ledger.resume("queue:agent")
    loops.move("pause")
    for _ in range(3):
        loops.scenario.sweep()
    plan_until_idle(loops, "alpha", "urgent")
    assert live(loops) == [("urgent", "u000"), ("urgent", "u001"), ("urgent", "u002")]


def test_an_item_that_backs_off_for_long_leaves_its_slot(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"))
    loops.create(item("b"), name="beta")
    loops.plan()
    claim = loops.claim("a")
    fault = TransportFault("busy", provider="api", maybe_served=False)
    given_back = loops.scenario.ledger.requeue(claim.lease, delay=600, detail="busy", fault=fault)
    assert not isinstance(given_back, ClaimRefused)
    assert view_loop(loops.context, "alpha").state("a") == "waiting"
    reason = why(loops.context, "alpha", "a")
    assert (reason.cause, reason.text) == ("provider", "a waits for its next try")
    assert loops.admitted("beta") == ["b"]
    loops.passes("b", name="beta")
    loops.scenario.advance(601)
    loops.scenario.sweep()
    assert loops.refusal("a").detail == "slot:alpha"
    assert loops.admitted() == ["a"]
    loops.passes("a")


def test_an_item_that_is_tried_again_at_once_keeps_its_slot(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"))
    loops.plan()
    loops.scenario.ledger.requeue(loops.claim("a").lease, delay=2, detail="shutdown")
    assert live(loops) == [("alpha", "a")]


def test_a_raised_budget_lets_what_has_begun_go_on_at_once(loops: LoopScenario) -> None:
    """Given items that began, lost their slots, and wait in a loop without budget."""
    loops.scenario.ledger.pause("task_type:alpha")
    limits = {"attempt": {"tokens": 50}, "loop": {"tokens": 100}}
    loops.create(*many(4), concurrency=2, budget=limits)
    plan_until_idle(loops, "alpha")
    loops.scenario.ledger.resume("task_type:alpha")
    loops.scenario.sweep()
    for name in loops.admitted():
        loops.passes(name, tokens=50)
    plan_until_idle(loops, "alpha")
    assert loops.loop().state == "paused"
    change.configure(loops.context, "alpha", {"budget": {"loop": {"tokens": 1000}}}, ADA)
    assert len(loops.admitted()) == 2


# -- what a loop leaves behind ---------------------------------------------------------------------


def test_a_new_loop_pays_nothing_for_a_deleted_one_of_its_name(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.ledger.cancel(claim.job_id)  # its worker goes on
    loops.plan()
    loops.move("stop")
    change.delete(loops.context, "alpha", ADA)
    loops.create(item("a"), budget={"attempt": {"tokens": 10}, "loop": {"tokens": 50}})
    loops.scenario.ledger.store_output(claim.lease, answer(tokens=777))
    assert used(loops.read())["loop:tokens"] == 0
    assert view_loop(loops.context, "alpha").holders == []


def test_a_repeated_deletion_spares_a_new_loop_of_that_name(loops: LoopScenario) -> None:
    again = Requester(by="ada", key="k", digest="delete alpha")
    for _ in range(2):
        change.create_loop(loops.context, document(item("a")), by="ada")
        change.delete(loops.context, "alpha", again)
    assert loops.read().snapshot.loop.state == "created"


def test_a_paused_loop_is_not_deleted(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.move("pause")
    with pytest.raises(LoopConflict, match="has not ended: stop it first"):
        change.delete(loops.context, "alpha", ADA)


def test_the_same_loop_with_other_first_states_is_another_loop(loops: LoopScenario) -> None:
    made = document(item("a"), item("b"))
    change.create_loop(loops.context, made, by="ada")
    other = made.model_copy(update={"states": {"a": "skipped"}})
    with pytest.raises(LoopConflict, match="is the name of another loop"):
        change.create_loop(loops.context, other, by="ada")


def test_a_key_that_another_change_used_meanwhile_is_refused(loops: LoopScenario) -> None:
    loops.create(item("a"))
    caller = Requester(by="ada", key="k", digest="one")
    reading = loops.read()
    write = LoopWrite(reading=reading, change=LoopChange(note="one"), caller=caller)
    assert isinstance(loops.scenario.ledger.write_loop(write), Written)
    other = replace(write, caller=replace(caller, digest="two"))
    assert loops.scenario.ledger.write_loop(other) == "conflict"


def test_an_attempt_of_a_deleted_loop_keeps_its_slot_until_it_ends(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.ledger.cancel(claim.job_id)
    loops.plan()
    loops.create(item("b"), name="beta")
    change.delete(loops.context, "alpha", ADA)
    assert loops.admitted("beta") == []
    loops.scenario.ledger.requeue(claim.lease, delay=0, detail="cancelled")
    assert loops.admitted("beta") == ["b"]


def test_a_stopped_verification_loses_its_lease_and_then_its_slot(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.ledger.store_output(claim.lease, answer(), verifications=[0])
    verification = loops.scenario.claim_verification(claim.job_id, 0)
    loops.move("stop")
    assert loops.scenario.ledger.renew([verification.lease]) == {verification.lease.entry}
    loops.move("start")
    assert loops.admitted() == []  # it may still run
    loops.scenario.expire_leases()
    assert loops.admitted() == ["a"]


def test_a_stopped_item_does_not_run_twice_at_once(loops: LoopScenario) -> None:
    """Given free slots, when a loop is stopped and started while its item runs."""
    loops.create(item("a"), item("b"), concurrency=4)
    loops.plan()
    claim = loops.claim("a")
    loops.move("stop")
    loops.move("start")
    assert loops.admitted() == ["b"]
    assert why(loops.context, "alpha", "a").text == (
        "a waits: an attempt that was stopped has not ended yet"
    )
    assert view_loop(loops.context, "alpha").holders == []
    loops.scenario.ledger.requeue(claim.lease, delay=0, detail="lost")
    loops.scenario.expire_leases()
    assert loops.admitted() == ["a"]


def test_an_attempt_cancelled_after_redis_was_away_keeps_its_slot(loops: LoopScenario) -> None:
    """Given an expired lease that no sweep has dropped, then its worker can renew it."""
    loops.slots = 1
    loops.create(item("a"), item("b"), budget={"attempt": {"tokens": 50}, "loop": {"tokens": 100}})
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.advance(loops.scenario.settings.lease + 1)
    loops.scenario.ledger.cancel(claim.job_id)
    assert loops.scenario.ledger.renew([claim.lease]) == set()
    assert loops.admitted() == []
    loops.scenario.ledger.store_output(claim.lease, answer(tokens=40))
    assert used(loops.read())["loop:tokens"] == 40
    loops.scenario.expire_leases()
    assert loops.admitted() == ["b"]


def test_a_reset_takes_the_lease_of_an_attempt_that_was_cancelled(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    claim = loops.claim("a")
    loops.scenario.ledger.cancel(claim.job_id)
    loops.plan()
    change.reset(loops.context, "alpha", "a", ADA)
    assert loops.scenario.ledger.renew([claim.lease]) == {claim.lease.entry}


def test_a_reset_resolves_the_escalation_of_a_job_that_is_gone(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.fails("a")
    loops.plan()
    loops.scenario.advance(8 * 86400)
    loops.scenario.sweep()
    (before,) = loops.scenario.ledger.escalations(limit=10)
    change.reset(loops.context, "alpha", "a", ADA)
    assert loops.scenario.ledger.escalations(limit=10) == []
    ended = loops.scenario.ledger.escalation(before.id)
    assert ended is not None
    assert ended.state == "resolved"


# -- hints and shares ------------------------------------------------------------------------------


def test_a_lost_wake_up_does_not_leave_a_loop_paused(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b"), budget={"day": {"tokens": 50}, "attempt": {"tokens": 50}})
    loops.plan()
    loops.passes("a", tokens=50)
    loops.plan()
    assert loops.loop().state == "paused"
    prefix = loops.scenario.ledger.prefixes()[0]
    for key, command in (("outbox", "ZREM"), ("outbox:entries", "HDEL")):
        loops.scenario.ledger.calls.run(command, f"{prefix}{key}", str(hint()))
    loops.scenario.advance(2 * 86400)
    assert str(hint()) in loops.scenario.swept_entries("loop")
    loops.plan()
    assert loops.loop().state == "running"


def test_a_plan_ends_the_quarantine_of_its_hint(loops: LoopScenario) -> None:
    """Given a hint that an earlier release could not read."""
    loops.create(item("a"))
    for _ in range(loops.scenario.settings.publish_tries):
        loops.scenario.ledger.fail({hint(): "unreadable"})
    assert len(loops.scenario.ledger.escalations(limit=10)) == 1
    loops.plan()
    assert loops.scenario.ledger.escalations(limit=10) == []
    assert loops.scenario.ledger.quarantine.entries(limit=10) == []


def test_a_loop_keeps_its_place_when_its_priority_is_changed_and_back(
    loops: LoopScenario,
) -> None:
    loops.slots = 1
    for name, weight in (("a", 1), ("b", 3)):
        loops.create(*many(12, name), name=name, weight=weight)
    turns = []
    for _ in range(12):
        for priority in (4, 5):
            change.configure(loops.context, "a", {"priority": priority}, ADA)
        (turn,) = [each for name in "ab" for each in loops.plan(name).admitted]
        turns.append(turn.loop)
        claim = loops.claim(turn.candidate.item, name=turn.loop)
        loops.scenario.ledger.store_output(claim.lease, answer())
        loops.settle(claim, succeeds(claim))
    assert (turns.count("a"), turns.count("b")) == (3, 9)
