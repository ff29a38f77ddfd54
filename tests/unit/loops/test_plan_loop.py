"""plan_loop: every transition of items and loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loop_snapshots import applied, snapshot
from support.loops import document, item

from mulligan.policies.coordination.order import ItemOrders, Order
from mulligan.policies.loops.loop import (
    DONE,
    GAVE_UP,
    ITEM_STATES,
    ItemRecord,
    ItemState,
    LoopSnapshot,
    LoopState,
)
from mulligan.policies.loops.plan import plan_loop
from mulligan.policies.loops.spec import OnBlocked

NOW = 100.0
AFTER_A: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",)}


def planned(before: LoopSnapshot) -> LoopSnapshot:
    return applied(before, plan_loop(before, NOW))


# -- items -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["pending", "ready", "blocked"])
@pytest.mark.parametrize(
    ("on_blocked", "a", "b", "reason"),
    [
        # a depends on nothing, so it becomes ready itself; b waits for it
        ("wait", "pending", "pending", ""),
        ("wait", "ready", "pending", ""),
        ("wait", "blocked", "pending", ""),
        ("wait", "running", "pending", ""),
        ("wait", "passed", "ready", ""),
        ("wait", "skipped", "ready", ""),
        ("wait", "failed", "blocked", "a failed"),
        ("wait", "quarantined", "blocked", "a is quarantined"),
        # going on without what gave up changes the last two rows only
        ("continue", "pending", "pending", ""),
        ("continue", "ready", "pending", ""),
        ("continue", "blocked", "pending", ""),
        ("continue", "running", "pending", ""),
        ("continue", "passed", "ready", ""),
        ("continue", "skipped", "ready", ""),
        ("continue", "failed", "ready", ""),
        ("continue", "quarantined", "ready", ""),
    ],
)
def test_what_an_item_becomes_after_the_one_it_depends_on(
    before: ItemState, on_blocked: OnBlocked, a: ItemState, b: ItemState, reason: str
) -> None:
    found = planned(snapshot(AFTER_A, {"a": a, "b": before}, on_blocked=on_blocked))
    assert (found.record("b").state, found.record("b").reason) == (b, reason)


@pytest.mark.parametrize("state", sorted({*ITEM_STATES} - {"pending", "ready", "blocked"}))
@pytest.mark.parametrize("a", ITEM_STATES)
def test_only_a_job_or_a_person_changes_an_item_that_began(state: ItemState, a: ItemState) -> None:
    change = plan_loop(snapshot(AFTER_A, {"a": a, "b": state}), NOW)
    assert "b" not in change.items


@pytest.mark.parametrize("on_blocked", ["wait", "continue"])
def test_a_dependency_that_does_not_exist_is_never_satisfied(on_blocked: OnBlocked) -> None:
    found = planned(snapshot({"a": ("ghost",), "b": ("a",)}, on_blocked=on_blocked))
    assert {name: record.state for name, record in found.items.items()} == {
        "a": "blocked",
        "b": "blocked",
    }
    assert found.record("b").reason == "ghost does not exist"
    assert (found.loop.state, found.loop.reason) == ("blocked", "ghost does not exist")


def test_the_reason_passes_down_the_chain_whatever_the_order_of_the_items() -> None:
    items = {"d": ("c",), "c": ("b",), "b": ("a",), "a": ()}
    found = planned(snapshot(items, {"a": "failed"}))
    assert [found.record(name).reason for name in "bcd"] == ["a failed"] * 3


def test_a_chain_is_unblocked_when_its_root_is_reset() -> None:
    items = {"a": (), "b": ("a",), "c": ("b",)}
    blocked = planned(snapshot(items, {"a": "failed"}))
    reset = LoopSnapshot(
        loop=blocked.loop, specs=blocked.specs, items={**blocked.items, "a": ItemRecord()}
    )
    states = {name: record.state for name, record in planned(reset).items.items()}
    assert states == {"a": "ready", "b": "pending", "c": "pending"}


def test_an_item_changes_its_time_only_with_its_state() -> None:
    waiting = ItemRecord(state="ready", since=5.0, runs=2)
    found = planned(snapshot(AFTER_A, {"a": waiting}))
    assert found.record("a") == waiting
    later = planned(snapshot(AFTER_A, {"a": "passed"}))
    assert later.record("b").since == NOW


def test_an_item_without_a_record_is_pending() -> None:
    found = snapshot({"a": (), "b": ("a",)}, {})
    bare = LoopSnapshot(loop=found.loop, specs=found.specs, items={})
    change = plan_loop(bare, NOW)
    assert {name: record.state for name, record in change.items.items()} == {"a": "ready"}


def test_planning_again_changes_nothing_although_the_reason_is_long() -> None:
    name = "x" * 80
    once = planned(snapshot({name: (), "b": (name,)}, {name: "quarantined"}))
    assert once.record("b").state == "blocked"
    assert len(str(once.record("b")).encode()) <= 200
    assert plan_loop(once, NOW + 1).empty


# -- the loop --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "blocked", "completed"])
@pytest.mark.parametrize(
    ("a", "b", "expected", "reason"),
    [
        ("passed", "passed", "completed", ""),
        ("passed", "skipped", "completed", ""),
        ("skipped", "skipped", "completed", ""),
        ("running", "pending", "running", ""),
        ("passed", "pending", "running", ""),  # b becomes ready
        ("failed", "running", "running", ""),  # b began before a was reset and failed again
        ("failed", "pending", "blocked", "a failed"),
        ("quarantined", "pending", "blocked", "a is quarantined"),
        ("failed", "passed", "blocked", "a failed"),
        ("passed", "failed", "blocked", "b failed"),
    ],
)
def test_the_state_of_a_loop_follows_from_its_items(
    state: LoopState, a: ItemState, b: ItemState, expected: LoopState, reason: str
) -> None:
    found = planned(snapshot(AFTER_A, {"a": a, "b": b}, state=state)).loop
    assert (found.state, found.reason) == (expected, reason)


HELD = {"a": ItemOrders(said=(Order(word="hold", by="ada", at=1.0),))}


@pytest.mark.parametrize(
    ("a", "b", "orders", "expected", "reason"),
    [
        # b waits for an event: it goes on by itself, and what failed needs a person
        ("passed", "pending", {}, "waiting", "b waits for the event ready"),
        ("running", "pending", {}, "running", ""),
        ("failed", "pending", {}, "blocked", "a failed"),
        ("quarantined", "pending", {}, "blocked", "a is quarantined"),
        # a is ready, but a person holds it
        ("ready", "pending", HELD, "waiting", "a is held by ada"),
        ("ready", "passed", HELD, "waiting", "a is held by ada"),
        ("ready", "running", HELD, "running", ""),
        ("ready", "failed", HELD, "blocked", "b failed"),
        ("running", "passed", HELD, "running", ""),
        ("ready", "passed", {"b": HELD["a"]}, "running", ""),
    ],
)
@pytest.mark.parametrize("before", ["running", "waiting", "blocked"])
def test_a_loop_that_runs_nothing_says_what_for(
    before: LoopState, a: ItemState, b: ItemState, orders: Any, expected: str, reason: str
) -> None:
    items = document(item("a"), item("b", waits_for=["ready"])).items
    found = snapshot({"a": (), "b": ()}, {"a": a, "b": b}, state=before)
    found = planned(replace(found, specs=items, orders=orders))
    assert (found.loop.state, found.loop.reason) == (expected, reason)


def test_a_blocked_loop_names_what_gave_up_not_what_waits_for_it() -> None:
    found = planned(snapshot({"b": ("a",), "a": ()}, {"a": "failed"}))
    assert found.loop.reason == "a failed"


@pytest.mark.parametrize(
    ("state", "paused_by"), [("created", ""), ("paused", "person"), ("stopped", "")]
)
def test_only_a_person_moves_a_loop_on_but_its_items_are_planned(
    state: LoopState, paused_by: Any
) -> None:
    before = snapshot(AFTER_A, {"a": "passed", "b": "blocked"}, state=state, paused_by=paused_by)
    change = plan_loop(before, NOW)
    assert change.state is None
    assert change.items["b"].state == "ready"


LIMITS = {"loop": {"tokens": 100}, "day": {"tokens": 50}}


@pytest.mark.parametrize(
    ("loop", "day", "b", "expected", "reason"),
    [
        (99, 49, "pending", "running", ""),
        (100, 0, "pending", "paused", "the loop budget of tokens is used up"),  # 100 >= 100
        (100, 50, "pending", "paused", "the loop budget of tokens is used up"),  # the first one
        (60, 50, "pending", "paused", "the day budget of tokens is used up"),
        (60, 50, "failed", "paused", "the day budget of tokens is used up"),
        (100, 50, "passed", "completed", ""),  # nothing is left to spend on
    ],
)
@pytest.mark.parametrize(
    ("state", "old"),
    [("running", ""), ("blocked", ""), ("paused", "the loop budget of tokens is used up")],
)
def test_a_budget_that_is_used_up_pauses_a_loop_until_there_is_more(
    loop: float, day: float, b: ItemState, expected: LoopState, reason: str,
    state: LoopState, old: str,
) -> None:  # fmt: skip
    before = snapshot(
        AFTER_A, {"a": "passed", "b": b}, state=state, reason=old, budget=LIMITS,
        paused_by="budget" if state == "paused" else "",
        used={("loop", "tokens"): loop, ("day", "tokens"): day},
    )  # fmt: skip
    found = planned(before).loop
    assert (found.state, found.reason) == (expected, reason)
    assert found.paused_by == ("budget" if expected == "paused" else "")


def test_more_budget_does_not_end_a_person_s_pause() -> None:
    before = snapshot(state="paused", paused_by="person", budget=LIMITS)
    assert plan_loop(before, NOW).state is None


@pytest.mark.parametrize(("a", "note"), [("passed", "completed"), ("failed", "blocked: a failed")])
def test_the_log_gets_a_note_when_the_state_changes(a: ItemState, note: str) -> None:
    assert plan_loop(snapshot({"a": ()}, {"a": a}), NOW).note == note


# -- any loop --------------------------------------------------------------------------------------


@st.composite
def loops(draw: st.DrawFn) -> LoopSnapshot:
    """Random items without cycles, in any order, some with a dependency that does not exist."""
    names = [f"i{n}" for n in range(draw(st.integers(1, 8)))]
    items = {}
    for n, name in enumerate(names):
        known = [*names[:n], "ghost"] if draw(st.integers(0, 5)) == 0 else names[:n]
        items[name] = tuple(draw(st.sets(st.sampled_from(known))) if known else ())
    order = draw(st.permutations(names))
    return snapshot(
        {name: items[name] for name in order},
        {name: draw(st.sampled_from(ITEM_STATES)) for name in names},
        state=draw(st.sampled_from(["running", "blocked", "completed"])),
        on_blocked=draw(st.sampled_from(["wait", "continue"])),
    )


def expected_state(before: LoopSnapshot, name: str) -> str:
    """Say what an item becomes, one item at a time: slow, but plainly what the policy means."""
    spec, state = before.spec(name), before.record(name).state
    if spec is None:
        return "missing"
    if state not in ("pending", "ready", "blocked"):
        return state
    after = [expected_state(before, each) for each in spec.depends_on]
    goes_on = DONE if before.config.on_blocked == "wait" else DONE | GAVE_UP
    if any(each in ("missing", "blocked") or each in GAVE_UP - goes_on for each in after):
        return "blocked"
    return "ready" if all(each in goes_on for each in after) else "pending"


@given(loops())
def test_every_item_becomes_what_its_dependencies_say(before: LoopSnapshot) -> None:
    found = planned(before)
    for spec in before.specs:
        assert found.record(spec.id).state == expected_state(before, spec.id)


@given(loops())
def test_planning_what_was_planned_changes_nothing(before: LoopSnapshot) -> None:
    assert plan_loop(planned(before), NOW + 1).empty


@given(loops())
def test_a_loop_is_blocked_only_if_nothing_can_run(before: LoopSnapshot) -> None:
    found = planned(before)
    able = found.count("running", "ready")
    done = found.count("passed", "skipped") == len(found.specs)
    assert found.loop.state == ("completed" if done else "running" if able else "blocked")
    assert bool(found.loop.reason) == (found.loop.state == "blocked")
