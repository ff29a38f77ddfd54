"""The ledger's contract: whose turn it is when another loop is planned."""

from __future__ import annotations

import pytest
from support.ledger_scenario import Scenario
from support.loops import ADA, LoopScenario, item

from mulligan.tasks.coordination import orders


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario, slots=1)


def park(loops: LoopScenario, name: str, loop: str) -> None:
    """Let an item give its slot back and wait for another one."""
    claim = loops.claim(name, name=loop)
    loops.scenario.ledger.requeue(claim.lease, delay=60.0, detail="its provider is away")
    loops.scenario.advance(61)
    loops.scenario.sweep()
    assert loops.refusal(name, name=loop).reason == "no_slot"


def reasons(loops: LoopScenario, name: str) -> list[str]:
    """Plan a loop and return who got a slot, and why."""
    return [f"{each.name}: {each.because}" for each in loops.plan(name).admitted]


def test_an_item_that_a_person_lets_go_first_is_found_among_many(loops: LoopScenario) -> None:
    """Given more items before it than one of another loop's plans looks at."""
    loops.create(item("z"), name="zeta", priority=1)
    loops.plan("zeta")
    loops.create(*(item(f"i{n:02}") for n in range(40)), concurrency=1)
    loops.plan()
    loops.create(item("m"), name="mid", priority=3)
    loops.plan("mid")
    orders.give_order(loops.context, "alpha", "i39", "first", ADA)
    loops.plan()
    loops.passes("z", name="zeta")
    assert reasons(loops, "zeta") == ["alpha/i39: a person lets it go first"]


def test_an_item_that_has_begun_is_as_urgent_as_what_waits_for_it(loops: LoopScenario) -> None:
    loops.create(item("e"), name="slow", priority=9)
    loops.plan("slow")
    loops.create(item("a", "slow/e"), name="urgent", priority=1)
    loops.plan("urgent")
    loops.plan("slow")
    park(loops, "e", "slow")
    loops.create(item("m1"), item("m2"), name="middle", priority=3)
    loops.slots = 0
    loops.plan("slow")
    loops.plan("middle")
    loops.slots = 1
    assert reasons(loops, "middle") == [
        "slow/e: priority 1 of the loop that waits for it before middle with 3"
    ]


def test_an_item_that_has_begun_does_not_hide_an_urgent_one(loops: LoopScenario) -> None:
    loops.create(item("b"), item("e"), name="slow", priority=9)
    assert loops.admitted("slow") == ["b"]
    park(loops, "b", "slow")
    loops.slots = 0
    loops.create(item("m"), name="middle", priority=3)
    loops.create(item("a", "slow/e"), name="urgent", priority=1)
    for name in ("urgent", "slow", "middle"):
        loops.plan(name)
    loops.slots = 3
    assert reasons(loops, "middle") == [
        "slow/e: priority 1 of the loop that waits for it before middle with 3",
        "middle/m: priority 3 before slow with 9",
        "slow/b: no other loop waits",
    ]


def test_a_loop_that_was_paused_did_not_wait_for_a_slot(loops: LoopScenario) -> None:
    loops.slots = 0
    loops.create(item("a"), name="low", priority=9)
    loops.plan("low")
    loops.move("pause", "low")
    loops.scenario.advance(36_000)
    loops.create(item("u"), name="urgent", priority=1)
    loops.plan("urgent")
    loops.move("resume", "low")
    loops.slots = 1
    assert reasons(loops, "low") == ["urgent/u: priority 1 before low with 9"]
    loops.slots = 2
    assert [each.name for each in loops.plan("urgent").admitted] == ["low/a"]
