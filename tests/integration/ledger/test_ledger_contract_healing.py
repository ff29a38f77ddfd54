"""The ledger's contract: healings of loops are written with what they do, once, and bounded."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_scenario import Scenario
from support.loops import ADA, LoopScenario, item

from mulligan.policies.loops.heal_record import MOST_HEALS, HealRecord
from mulligan.policies.loops.loop import LoopChange
from mulligan.tasks.loops import change, heal
from mulligan.tasks.ports.ledger import LoopWrite, Written


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario)


def record(number: int, **fields: Any) -> HealRecord:
    values: dict[str, Any] = {
        "at": 1.5,
        "item": "a",
        "action": "unblock",
        "reason": "why",
        **fields,
    }
    return HealRecord(number=number, **values)


def write(loops: LoopScenario, *heals: HealRecord) -> None:
    change = LoopChange(heals=heals)
    written = loops.scenario.ledger.write_loop(LoopWrite(reading=loops.read(), change=change))
    assert isinstance(written, Written)


def test_healings_are_kept_in_their_order_and_can_end(loops: LoopScenario) -> None:
    loops.create(item("a"))
    first, second = record(2, advice="é\n|"), record(10)
    write(loops, second, first)
    assert loops.read().snapshot.heals == (first, second)
    ended = first.ended("passed", now=3.0)
    write(loops, ended)
    assert loops.read().snapshot.heals == (ended, second)


def test_only_the_newest_healings_are_kept(loops: LoopScenario) -> None:
    loops.create(item("a"))
    write(loops, *(record(number) for number in range(MOST_HEALS + 5)))
    numbers = [each.number for each in loops.read().snapshot.heals]
    assert numbers == [*range(5, MOST_HEALS + 5)]


def test_a_loop_of_the_same_name_begins_without_healings(loops: LoopScenario) -> None:
    loops.create(item("a"))
    write(loops, record(1))
    loops.move("stop")
    change.delete(loops.context, "alpha", ADA)
    loops.create(item("a"))
    assert loops.read().snapshot.heals == ()


def test_a_healed_failure_leaves_nothing_to_alert_about(loops: LoopScenario) -> None:
    """Given an item that failed, when the planner heals it, then its escalation has ended."""
    ledger = loops.scenario.ledger
    loops.create(item("a"), auto_heal=True)
    loops.plan()
    loops.fails("a")
    assert [group.open for group in ledger.groups()] == [1]
    assert loops.admitted() == ["a"]
    assert ledger.groups() == []
    (ended,) = ledger.escalations(only_open=False)
    assert (ended.state, ended.ended_by) == ("resolved", "auto_heal")
    key = next(k for k in ledger.calls.run("KEYS", "*group:*") if not k.endswith(":open"))
    assert ledger.calls.run("HGET", key, "since_alert") == "0"
    assert loops.item("a").runs == 2


def test_two_planners_heal_an_item_once(loops: LoopScenario) -> None:
    """Given two planners that read the same failure, then the second one's write is refused."""
    ledger = loops.scenario.ledger
    loops.create(item("a"), auto_heal=True)
    loops.plan()
    loops.fails("a")
    reading = loops.read()
    assert heal.heal_loop(loops.context, reading)
    assert heal.heal_loop(loops.context, reading)
    assert len(loops.read().snapshot.heals) == 1
    assert ledger.loop_log("alpha")[0].by == "auto_heal"


def test_a_restart_is_planned_without_another_change(loops: LoopScenario) -> None:
    """Given an item whose tools failed, then it runs again 30 s later by itself."""
    loops.create(item("a"), auto_heal=True)
    loops.plan()
    loops.fails("a", "tool_error")
    loops.plan()
    assert loops.states() == {"a": "failed"}
    loops.scenario.advance(31)
    published = loops.scenario.ledger.sweep(empty_queues=())
    assert loops.hints(published) == ["alpha"]
    loops.plan()
    assert loops.states() == {"a": "running"}


def test_a_healing_with_an_idempotency_key_is_done_once(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.fails("a")
    loops.plan()
    caller = type(ADA)(by="ada", key="k", digest="d")
    made = heal.heal_item(loops.context, "alpha", "a", caller)
    assert made.action == "change_strategy"
    assert heal.heal_item(loops.context, "alpha", "a", caller) == made
    assert [each.action for each in loops.read().snapshot.heals] == ["escalate", "change_strategy"]


def test_hundreds_of_failures_are_told_once_and_the_loop_is_blocked(loops: LoopScenario) -> None:
    loops.slots = 200
    names = [f"i{number}" for number in range(120)]
    loops.create(*(item(name) for name in names), concurrency=200)
    loops.plan()
    for name in names:
        loops.fails(name)
    loops.plan()
    assert loops.loop().state == "blocked"
    loops.plan()
    assert [each.item for each in loops.read().snapshot.heals] == names


def test_stopping_a_loop_ends_the_draft_of_a_split(loops: LoopScenario) -> None:
    ledger = loops.scenario.ledger
    loops.create(item("a"), auto_heal=["split"])
    loops.plan()
    loops.fails("a")
    loops.plan()
    (split,) = loops.read().snapshot.heals
    loops.scenario.claim(split.job_id)
    loops.move("stop")
    draft = ledger.job(split.job_id)
    assert draft is not None
    assert draft.state == "cancelled"


def test_skipping_an_item_ends_the_draft_of_its_split(loops: LoopScenario) -> None:
    loops.create(item("a"), auto_heal=["split"])
    loops.plan()
    loops.fails("a")
    loops.plan()
    change.skip(loops.context, "alpha", "a", ADA)
    loops.plan()
    (split,) = loops.read().snapshot.heals
    draft = loops.scenario.ledger.job(split.job_id)
    assert draft is not None
    assert (split.outcome, draft.state) == ("skipped", "cancelled")


def test_deleting_a_blocked_loop_ends_the_draft_of_a_split(loops: LoopScenario) -> None:
    loops.create(item("a"), auto_heal=["split"])
    loops.plan()
    loops.fails("a")
    loops.plan()
    assert loops.loop().state == "blocked"
    (split,) = loops.read().snapshot.heals
    change.delete(loops.context, "alpha", ADA)
    draft = loops.scenario.ledger.job(split.job_id)
    assert draft is not None
    assert draft.state == "cancelled"
