"""The ledger's contract: orders for items, overruling, broken waits, and items that were split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from support.ledger_scenario import Scenario
from support.loops import ADA, LoopScenario, item

from mulligan.policies.coordination.decision import Decision, DecisionKind
from mulligan.policies.coordination.order import OrderWord
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.tasks.coordination import orders
from mulligan.tasks.coordination.deadlocks import run_coordination
from mulligan.tasks.coordination.view import view_coordination
from mulligan.tasks.loops import change, split
from mulligan.tasks.loops.change import LoopConflict, change_loop
from mulligan.tasks.loops.view import why
from mulligan.tasks.ports.ledger import Ledger, Requester

EVE = Requester(by="eve")


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario)


def give(loops: LoopScenario, loop: str, name: str, *words: OrderWord | None) -> None:
    for word in words:
        orders.give_order(loops.context, loop, name, word, ADA)


def words(loops: LoopScenario, loop: str, name: str) -> tuple[str, ...]:
    return loops.read(loop).snapshot.orders_of(name).words


def newest(loops: LoopScenario, kind: DecisionKind, name: str | None = None) -> Decision:
    found = view_coordination(loops.context).decisions
    return next(d for d in found if d.kind == kind and name in (None, d.name))


def offered(loops: LoopScenario, decision: Decision) -> bool:
    """Whether a button is shown for a decision."""
    return decision.id in view_coordination(loops.context).overrulings


def deadlock(loops: LoopScenario) -> None:
    """Let alpha/x and beta/x wait for each other. beta/x is the youngest."""
    loops.create(item("x", "beta/x"), name="alpha")
    loops.scenario.advance(1)
    loops.create(item("x", "alpha/x"), name="beta")
    for name in ("alpha", "beta"):
        loops.plan(name)


def one_goes_before_another(loops: LoopScenario) -> Decision:
    """Let alpha/a get the only slot, and return the decision against beta/b."""
    loops.slots = 0
    loops.create(item("a"), name="alpha", priority=1)
    loops.create(item("b"), name="beta", priority=2)
    for name in ("alpha", "beta"):
        loops.plan(name)
    loops.slots = 1
    loops.plan("alpha")
    return newest(loops, "slot")


# -- what people say -------------------------------------------------------------------------------


def test_one_order_does_not_undo_another(loops: LoopScenario) -> None:
    loops.slots = 0
    loops.create(item("a", waits_for=["never"]))
    give(loops, "alpha", "a", "ignore_waits")
    loops.plan()
    assert loops.states() == {"a": "ready"}
    give(loops, "alpha", "a", "first", "ignore_locks", "hold", "first")
    assert words(loops, "alpha", "a") == ("ignore_waits", "ignore_locks", "first")
    loops.slots = 1
    assert loops.admitted() == ["a"]
    assert words(loops, "alpha", "a") == ()


def test_the_usual_rules_end_all_that_was_said(loops: LoopScenario) -> None:
    loops.create(item("a", waits_for=["never"]))
    give(loops, "alpha", "a", "hold", "ignore_waits", None)
    assert words(loops, "alpha", "a") == ()
    assert loops.admitted() == []
    before = newest(loops, "order").id
    give(loops, "alpha", "a", None)  # twice changes nothing
    assert newest(loops, "order").id == before


def test_overruling_an_order_ends_that_one(loops: LoopScenario) -> None:
    loops.slots = 0
    loops.create(item("a"))
    give(loops, "alpha", "a", "hold")
    hold = newest(loops, "order")
    give(loops, "alpha", "a", "ignore_locks")
    orders.overrule(loops.context, hold.id, ADA)
    assert words(loops, "alpha", "a") == ("ignore_locks",)
    ended = newest(loops, "order")
    assert ended.text == "it has no order hold any more: by ada"
    assert not offered(loops, ended)


def test_who_goes_first_still_need_not_wait(loops: LoopScenario) -> None:
    """Given an item that a person lets go without its event, when a person lets it go first."""
    loops.slots = 0
    loops.create(item("a"), name="alpha", priority=1)
    loops.create(item("b", waits_for=["never"]), name="beta", priority=2)
    give(loops, "beta", "b", "ignore_waits")
    for name in ("alpha", "beta"):
        loops.plan(name)
    loops.slots = 1
    loops.plan("alpha")
    assert orders.overrule(loops.context, newest(loops, "slot").id, ADA).text == "beta/b goes first"
    loops.passes("a")
    loops.plan("beta")
    assert loops.states("beta") == {"b": "running"}


# -- deadlocks and orders --------------------------------------------------------------------------


def test_a_broken_wait_and_what_a_person_says_stand_beside_each_other(loops: LoopScenario) -> None:
    loops.slots = 0
    deadlock(loops)
    give(loops, "beta", "x", "first")
    assert run_coordination(loops.context) == 1
    give(loops, "beta", "x", "ignore_locks", None, "first")
    loops.plan("beta")
    assert run_coordination(loops.context) == 0
    assert (words(loops, "beta", "x"), loops.states("beta")) == (("first",), {"x": "ready"})
    assert len(loops.read("beta").snapshot.heals) == 1
    loops.slots = 1
    assert loops.admitted("beta") == ["x"]


def test_the_second_youngest_is_not_called_the_youngest(loops: LoopScenario) -> None:
    deadlock(loops)
    run_coordination(loops.context)
    orders.overrule(loops.context, newest(loops, "deadlock").id, ADA)
    assert newest(loops, "order").text == (
        "it waits for alpha/x again, and gets no slot until the order ends: by ada"
    )
    run_coordination(loops.context)
    assert newest(loops, "deadlock").text.endswith(
        "; alpha/x is the youngest that nobody holds: it does not wait for beta/x any more"
    )


def test_an_event_of_a_deadlock_is_called_an_event(loops: LoopScenario) -> None:
    loops.create(item("x", "beta/x", emits=["done"]), name="alpha")
    loops.scenario.advance(1)
    loops.create(item("x", waits_for=["done"]), name="beta")
    for name in ("alpha", "beta"):
        loops.plan(name)
    run_coordination(loops.context)
    (heal,) = loops.read("beta").snapshot.heals
    notes = [each.note for each in loops.scenario.ledger.loop_log("beta")]
    for text in (newest(loops, "deadlock").text, heal.reason, *notes):
        assert "event:" not in text
    assert heal.reason.startswith("it does not wait for the event done any more: a deadlock of 2")


# -- overruling ------------------------------------------------------------------------------------


def test_of_two_who_overrule_at_once_one_is_told_that_it_was_done(loops: LoopScenario) -> None:
    decision = one_goes_before_another(loops)
    ledger = loops.scenario.ledger
    answers = list[str]()

    class Between:
        """Lets eve overrule the decision between ada's reading and her write."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ledger, name)

        def write_loop(self, write: Any) -> Any:
            if not answers:
                answers.append(orders.overrule(loops.context, decision.id, EVE).text)
            return ledger.write_loop(write)

    with pytest.raises(LoopConflict, match="eve has done it"):
        orders.overrule(replace(loops.context, ledger=Between()), decision.id, ADA)
    assert answers == ["beta/b goes first"]
    assert newest(loops, "slot").overruled_by == "eve"
    assert [o.by for o in loops.read("beta").snapshot.orders_of("b").said] == ["eve"]


def _runs(loops: LoopScenario) -> Decision:
    found = one_goes_before_another(loops)
    loops.passes("a")
    loops.plan("beta")
    return found


def _failed(loops: LoopScenario) -> Decision:
    found = _runs(loops)
    loops.fails("b", name="beta")
    return found


def _first_already(loops: LoopScenario) -> Decision:
    found = one_goes_before_another(loops)
    give(loops, "beta", "b", "first")
    return found


def _given_again(loops: LoopScenario) -> Decision:
    loops.create(item("a"))
    give(loops, "alpha", "a", "hold")
    found = newest(loops, "order")
    give(loops, "alpha", "a", "first", "hold")
    return found


def _ended(loops: LoopScenario) -> Decision:
    loops.create(item("a"))
    give(loops, "alpha", "a", "hold", None)
    return newest(loops, "order")


def _began_since(loops: LoopScenario) -> Decision:
    deadlock(loops)
    run_coordination(loops.context)
    loops.plan("beta")
    loops.fails("x", name="beta")
    change.reset(loops.context, "beta", "x", ADA)
    return newest(loops, "deadlock")


@pytest.mark.parametrize(
    "given", [_runs, _failed, _first_already, _given_again, _ended, _began_since]
)
def test_only_what_can_be_overruled_is_offered(
    loops: LoopScenario, given: Callable[[LoopScenario], Decision]
) -> None:
    decision = given(loops)
    assert not offered(loops, decision)
    with pytest.raises(LoopConflict):
        orders.overrule(loops.context, decision.id, ADA)
    assert newest(loops, decision.kind, decision.name).overruled_by == ""


def test_what_can_be_overruled_is_offered(loops: LoopScenario) -> None:
    assert offered(loops, one_goes_before_another(loops))
    give(loops, "beta", "b", "hold")
    assert offered(loops, newest(loops, "order"))


# -- splits ----------------------------------------------------------------------------------------


def split_item(loops: LoopScenario, loop: str, name: str) -> None:
    """Split an item that failed into two, as a draft says that passed its checks."""
    answer = {
        part: {"title": "t", "prompt": "p", "verifiers": ["json.object"]}
        for part in ("first", "second")
    }

    def decide(found: Any, now: float) -> Any:
        spec = found.spec(name)
        heal = HealRecord(number=99, at=now, item=name, action="split", reason="r", run=1)
        return split._apply(loops.context, found, heal, [*split._parts(spec, answer)], now)

    change_loop(loops.context, loop, ADA, decide)


def test_a_deadlock_that_comes_back_with_a_split_is_broken_again(loops: LoopScenario) -> None:
    deadlock(loops)
    assert run_coordination(loops.context) == 1
    loops.plan("beta")
    loops.fails("x", name="beta")
    split_item(loops, "beta", "x")
    for name in ("beta", "alpha"):
        loops.plan(name)
    said = why(loops.context, "alpha", "x").text
    assert said.endswith("in a cycle of waits: beta/x.2 → alpha/x → beta/x.2")
    (found,) = view_coordination(loops.context).deadlocks
    assert found.cycle == ("alpha/x", "beta/x.2", "beta/x.1")
    assert run_coordination(loops.context) == 1
    loops.plan("beta")
    assert loops.states("beta") == {"x": "skipped", "x.1": "running", "x.2": "pending"}
    for name in ("x.1", "x.2"):
        loops.passes(name, name="beta")
        loops.plan("beta")
    assert loops.admitted("alpha") == ["x"]


@pytest.mark.parametrize("reason", ["split into two tickets of others", "done by another team"])
def test_an_item_that_was_skipped_is_done_whatever_the_reason(
    loops: LoopScenario, reason: str
) -> None:
    loops.slots = 0
    loops.create(item("b", emits=["ready"]), item("b.2", "never/x"), name="beta")
    loops.create(item("a", "beta/b"), item("c", waits_for=["ready"]), name="alpha")
    change.skip(loops.context, "beta", "b", ADA, reason=reason)
    loops.slots = 5
    for name in ("beta", "alpha"):
        loops.plan(name)
    assert loops.states("alpha") == {"a": "running", "c": "running"}


def test_an_item_that_was_split_and_reset_is_not_split_any_more(loops: LoopScenario) -> None:
    loops.create(item("x"), name="beta")
    loops.plan("beta")
    loops.fails("x", name="beta")
    split_item(loops, "beta", "x")
    assert loops.read("beta").snapshot.is_split("x")
    change.reset(loops.context, "beta", "x", ADA)
    change.skip(loops.context, "beta", "x", ADA)
    assert not loops.read("beta").snapshot.is_split("x")


# -- cost ------------------------------------------------------------------------------------------


def test_who_waits_for_whom_is_read_without_what_all_loops_ask_for(loops: LoopScenario) -> None:
    """A reading for a plan grows with all loops: one for each coupled loop would be quadratic."""
    loops.create(item("x", waits_for=["ready"]), name="alpha")
    loops.create(item("y", emits=["ready"]), name="beta")
    ledger = loops.scenario.ledger

    class WithoutPlans:
        def __getattr__(self, name: str) -> Any:
            assert name != "read_loop"
            return getattr(ledger, name)

    context = replace(loops.context, ledger=cast(Ledger, WithoutPlans()))
    assert run_coordination(context) == 0
    assert [*view_coordination(context).graph.nodes] == ["alpha/x"]
    assert orders.count_waiting(context, "ready", tenant="") == 1
