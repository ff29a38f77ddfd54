"""The ledger's contract: what changes between a reading and the write that follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from support.ledger_scenario import Scenario
from support.loops import ADA, LoopScenario, item

from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.tasks.coordination import orders
from mulligan.tasks.coordination.deadlocks import run_coordination
from mulligan.tasks.coordination.view import view_coordination
from mulligan.tasks.loops import change
from mulligan.tasks.loops.plan import decide
from mulligan.tasks.ports.ledger import Ledger


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario)


def held(loops: LoopScenario) -> list[str]:
    return [each.name for each in loops.scenario.ledger.coordination().locks]


def test_an_item_does_not_begin_if_what_it_waits_for_runs_again(loops: LoopScenario) -> None:
    loops.create(item("a"), name="alpha")
    loops.plan("alpha")
    loops.passes("a")
    loops.create(item("b", "alpha/a"), name="beta")
    late = decide(loops.context, loops.read("beta"))
    assert [each.name for each in late.admission.admitted] == ["beta/b"]
    change.reset(loops.context, "alpha", "a", ADA)
    assert loops.scenario.ledger.write_loop(late) == "stale"
    assert loops.admitted("beta") == []
    assert loops.states("beta") == {"b": "pending"}


def test_an_item_does_not_begin_if_the_event_it_waits_for_is_withdrawn(
    loops: LoopScenario,
) -> None:
    loops.create(item("make", emits=["api-ready"]), name="alpha")
    loops.plan("alpha")
    loops.passes("make")
    loops.plan("alpha")
    loops.create(item("use", waits_for=["api-ready"]), name="beta")
    late = decide(loops.context, loops.read("beta"))
    change.reset(loops.context, "alpha", "make", ADA)
    loops.plan("alpha")
    assert loops.scenario.ledger.write_loop(late) == "stale"


def test_files_that_lapse_are_given_to_who_waits_for_them(loops: LoopScenario) -> None:
    """Nothing else happens then: the plan is due by itself."""
    loops.create(item("a", touches=["x.py"]), item("b", touches=["x.py"]))
    loops.plan()
    ledger = loops.scenario.ledger
    ledger.requeue(loops.claim("a").lease, delay=3600.0, detail="its provider is away")
    loops.plan()
    (lock,) = ledger.coordination().locks
    assert decide(loops.context, loops.read()).wake_at == lock.expires


def test_a_cancelled_item_gets_no_files_from_a_plan_that_was_made_before(
    loops: LoopScenario,
) -> None:
    loops.create(item("a", touches=["x.py"], task_type="slow"))
    loops.plan()
    job, ledger = loops.item("a").job_id, loops.scenario.ledger
    ledger.pause("task_type:slow")
    assert loops.refusal("a").reason == "paused"
    ledger.resume("task_type:slow")
    loops.scenario.sweep()
    late = decide(loops.context, loops.read())
    assert [each.candidate.job_id for each in late.admission.admitted] == [job]
    ledger.cancel(job)
    ledger.write_loop(late)
    assert held(loops) == []


@pytest.mark.parametrize("end", ["skip", "reset"])
def test_nobody_is_said_to_wait_for_files_after_it_was_taken_back(
    loops: LoopScenario, end: str
) -> None:
    loops.create(item("c"), item("a", touches=["x.py"]), item("b", "c", touches=["x.py"]))
    loops.plan()
    loops.passes("c")
    loops.plan()
    assert [each.item for each in view_coordination(loops.context).denied] == ["b"]
    if end == "skip":
        change.skip(loops.context, "alpha", "b", ADA, reason="not needed")
    else:
        change.reset(loops.context, "alpha", "c", ADA)
        loops.plan()
    assert view_coordination(loops.context).denied == []


def test_a_deadlock_that_ends_while_it_is_looked_for_is_not_broken(loops: LoopScenario) -> None:
    """A person lets alpha go on after it was read, and before beta is."""
    loops.create(item("x", "beta/x"), name="alpha")
    loops.scenario.advance(1)
    loops.create(item("x", "alpha/x"), name="beta")
    for name in ("alpha", "beta"):
        loops.plan(name)
    ledger = loops.scenario.ledger

    class Between:
        def __getattr__(self, name: str) -> Any:
            return getattr(ledger, name)

        def loop_waits(self, names: Sequence[str]) -> Iterator[LoopSnapshot]:
            yield from ledger.loop_waits(names[:1])
            if loops.states("alpha") == {"x": "pending"}:
                orders.give_order(loops.context, "alpha", "x", "ignore_waits", ADA)
                assert loops.admitted("alpha") == ["x"]
            yield from ledger.loop_waits(names[1:])

    assert run_coordination(replace(loops.context, ledger=cast(Ledger, Between()))) == 0
    assert loops.read("beta").snapshot.heals == ()
