"""What people change about a loop: every verb in every state, and what is refused how."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError
from support.loop_snapshots import Specs, applied, snapshot, specs_of

from mulligan.policies.loops.commands import (
    NotPossible,
    Verb,
    add_items,
    configure_loop,
    move_loop,
    reset_item,
    skip_item,
)
from mulligan.policies.loops.loop import ITEM_STATES, ItemRecord, ItemState, LoopState
from mulligan.policies.loops.spec import MOST_ITEMS, item_set_problems

NOW = 100.0


@pytest.mark.parametrize(
    ("verb", "state", "expected"),
    [
        ("start", "created", "running"),
        ("start", "running", None),  # already there
        ("start", "paused", "cannot start a loop that is paused: resume it"),
        ("start", "blocked", "cannot start a loop that is blocked: reset or skip what failed"),
        ("start", "completed", "cannot start a loop that is completed: reset an item or add one"),
        ("start", "stopped", "running"),
        ("pause", "created", "cannot pause a loop that is created: it does not run"),
        ("pause", "running", "paused"),
        ("pause", "paused", None),
        ("pause", "blocked", "paused"),
        ("pause", "completed", "cannot pause a loop that is completed: it does not run"),
        ("pause", "stopped", "cannot pause a loop that is stopped: it does not run"),
        ("resume", "created", "cannot resume a loop that is created: start it"),
        ("resume", "running", None),
        ("resume", "paused", "running"),
        ("resume", "blocked", "cannot resume a loop that is blocked: reset or skip what failed"),
        ("resume", "completed", "cannot resume a loop that is completed: reset an item or add one"),
        ("resume", "stopped", "cannot resume a loop that is stopped: start it"),
        ("stop", "created", "stopped"),
        ("stop", "running", "stopped"),
        ("stop", "paused", "stopped"),
        ("stop", "blocked", "stopped"),
        ("stop", "completed", "stopped"),  # it no longer runs what is added to it
        ("stop", "stopped", None),
    ],
)
def test_the_legal_moves(verb: Verb, state: LoopState, expected: str | None) -> None:
    before = snapshot(state=state, paused_by="person" if state == "paused" else "")
    if expected and expected.startswith("cannot"):
        with pytest.raises(NotPossible) as refused:
            move_loop(before, verb, now=NOW)
        assert str(refused.value) == expected
        return
    change = move_loop(before, verb, now=NOW)
    assert change.state == expected
    assert change.empty == (expected is None)


@pytest.mark.parametrize(
    ("verb", "note"),
    [("start", "started"), ("stop", "stopped"), ("pause", "paused"), ("resume", "resumed")],
)
def test_a_move_is_noted(verb: Verb, note: str) -> None:
    states: dict[Verb, LoopState] = {"start": "created", "resume": "paused"}
    before = snapshot(state=states.get(verb, "running"))
    assert move_loop(before, verb, now=NOW).note == note


def test_a_loop_that_has_moved_is_started_only_if_that_is_meant() -> None:
    before = snapshot(state="stopped", reason="moved to alpha.tar.gz")
    with pytest.raises(NotPossible) as refused:
        move_loop(before, "start", now=NOW)
    assert str(refused.value) == (
        "alpha moved to alpha.tar.gz, and goes on there: two that run could write one branch."
        " Here, too, for once: mulligan loops start alpha --despite-move"
    )
    assert move_loop(before, "start", now=NOW, despite_move=True).state == "running"


USED_UP: dict[str, Any] = {
    "budget": {"day": {"tokens": 10}},
    "used": {("day", "tokens"): 10.0},
    "state": "paused",
}


@pytest.mark.parametrize("verb", ["start", "resume"])
@pytest.mark.parametrize("paused_by", ["budget", "person"])
def test_a_loop_without_budget_is_not_resumed(verb: Verb, paused_by: Any) -> None:
    with pytest.raises(NotPossible) as refused:
        move_loop(snapshot(paused_by=paused_by, **USED_UP), verb, now=NOW)
    assert str(refused.value) == "the day budget of tokens is used up: raise budget.day.tokens"


def test_a_person_s_pause_replaces_the_budget_s() -> None:
    """A new day would end the budget's pause, which is not what the person asked for."""
    before = snapshot(paused_by="budget", **USED_UP)
    after = applied(before, move_loop(before, "pause", now=NOW))
    assert (after.loop.state, after.loop.paused_by) == ("paused", "person")


def test_stopping_ends_what_runs_and_keeps_the_rest() -> None:
    running = ItemRecord(state="running", runs=2, job_id="j1")
    before = snapshot({"a": (), "b": (), "c": ()}, {"a": running, "b": "passed", "c": "ready"})
    change = move_loop(before, "stop", now=NOW)
    assert change.items == {"a": ItemRecord(state="ready", since=NOW, runs=2)}
    assert change.cancel == ("j1",)


# -- items -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "cancelled", "refusal"),
    [
        ("pending", (), "a is pending: there is nothing to reset"),
        ("ready", (), "a is ready: there is nothing to reset"),
        ("blocked", (), "a is blocked: z failed; reset or skip that one"),
        ("running", ("j1",), None),
        ("passed", (), None),
        ("failed", (), None),
        ("quarantined", (), None),
        ("skipped", (), None),
    ],
)
def test_resetting_an_item(state: ItemState, cancelled: tuple[str, ...], refusal: str) -> None:
    record = ItemRecord(state=state, runs=2, job_id="j1", reason="z failed")
    before = snapshot({"a": ()}, {"a": record})
    if refusal:
        with pytest.raises(NotPossible) as refused:
            reset_item(before, "a", now=NOW)
        assert str(refused.value) == refusal
        return
    change = reset_item(before, "a", now=NOW)
    assert change.items == {"a": ItemRecord(state="pending", since=NOW, runs=2)}
    assert (change.cancel, change.forget, change.note) == (cancelled, ("a",), "a was reset")


@pytest.mark.parametrize("state", ITEM_STATES)
def test_skipping_an_item(state: ItemState) -> None:
    before = snapshot({"a": ()}, {"a": ItemRecord(state=state, runs=2, job_id="j1")})
    refusals = {"passed": "a passed already", "skipped": "a was skipped already"}
    if state in refusals:
        with pytest.raises(NotPossible) as refused:
            skip_item(before, "a", reason="", now=NOW)
        assert str(refused.value) == refusals[state]
        return
    change = skip_item(before, "a", reason="not needed", now=NOW)
    assert change.items["a"] == ItemRecord(
        state="skipped", since=NOW, runs=2, job_id="j1", reason="not needed"
    )
    assert change.cancel == (("j1",) if state == "running" else ())
    assert change.note == "a was skipped: not needed"


def test_skipping_without_a_reason_notes_none() -> None:
    assert skip_item(snapshot(), "a", reason="", now=NOW).note == "a was skipped"


def test_items_that_do_not_exist_are_refused_by_name() -> None:
    with pytest.raises(NotPossible, match="the loop has no item 'z'"):
        reset_item(snapshot(), "z", now=NOW)
    with pytest.raises(NotPossible, match="the loop has no item 'z'"):
        skip_item(snapshot(), "z", reason="", now=NOW)


def test_added_items_are_pending_after_the_others() -> None:
    change = add_items(snapshot(), specs_of({"b": ("a",), "c": ("b",)}), now=NOW)
    assert [spec.id for spec in change.specs or ()] == ["a", "b", "c"]
    assert change.items == {"b": ItemRecord(since=NOW), "c": ItemRecord(since=NOW)}
    assert change.note == "added b, c"


def test_the_note_of_many_added_items_is_short() -> None:
    change = add_items(snapshot(), specs_of({f"i{n}": () for n in range(1000)}), now=NOW)
    assert change.note == "added i0, i1, i2, i3, i4, i5, i6, i7, i8, i9 and 990 more"


def test_items_cannot_be_added_without_end() -> None:
    full = snapshot({f"i{n}": () for n in range(MOST_ITEMS)})
    with pytest.raises(NotPossible, match="the loop would have 5,001 items; 5,000 are allowed"):
        add_items(full, specs_of({"b": ()}), now=NOW)


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ({"a": ()}, "the id a occurs twice"),
        ({"b": ("ghost",)}, "b depends on ghost, which does not exist"),
        ({"b": ("c",), "c": ("b",)}, "the dependencies form a cycle: "),
        ({"b": ("b",)}, "the dependencies form a cycle: b → b"),
    ],
)
def test_items_that_do_not_fit_are_refused(added: Specs, problem: str) -> None:
    found = item_set_problems((*snapshot().specs, *specs_of(added)))
    assert any(re.search(problem, each.message) for each in found)


def test_an_id_that_the_loop_has_is_not_added() -> None:
    with pytest.raises(NotPossible, match="the loop has a already"):
        add_items(snapshot(), specs_of({"a": (), "new": ()}), now=NOW)


def test_all_problems_of_items_are_named_at_once() -> None:
    items = [*specs_of({"a": ("ghost",)}), *specs_of({"a": (), "b": ("b",)})]
    found = [str(problem).split(",")[0] for problem in item_set_problems(items)]
    assert found == [
        "[0].id: the id a occurs twice",
        "[0].depends_on[0]: a depends on ghost",
        "[1].id: the id a occurs twice",
        "[2].depends_on: the dependencies form a cycle: b → b",
    ]


# -- the configuration -----------------------------------------------------------------------------

BUDGET = {"loop": {"tokens": 100, "money": 5.0}, "day": {"tokens": 50}}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"loop": {"tokens": "1k"}}, {"loop": {"tokens": 1000, "money": 5}, "day": {"tokens": 50}}),
        ({"loop": {"tokens": None}}, {"loop": {"money": 5}, "day": {"tokens": 50}}),
        ({"day": None}, {"loop": {"tokens": 100, "money": 5}}),
        ({"item": {"seconds": "30m"}}, {**BUDGET, "item": {"seconds": 1800}}),
        ({"item": {"tokens": None}}, BUDGET),  # removes what is not there
        (None, {}),
    ],
)
def test_budgets_are_merged_and_none_removes(values: Any, expected: dict[str, Any]) -> None:
    before = snapshot(budget=BUDGET)
    after = applied(before, configure_loop(before, {"budget": values}))
    assert after.config.budget == snapshot(budget=expected).config.budget


def test_a_runner_is_replaced_not_merged() -> None:
    before = snapshot(runner={"kind": "scripted", "answers": ["{}"]})
    config = configure_loop(before, {"runner": {"profile": "coder"}}).config
    assert config is not None
    assert config.runner is not None
    assert config.runner.model_dump(exclude_none=True) == {"profile": "coder"}


def test_none_restores_the_default() -> None:
    config = configure_loop(snapshot(priority=1), {"priority": None}).config
    assert config is not None
    assert config.priority == 5


def test_a_change_of_the_configuration_is_noted() -> None:
    change = configure_loop(snapshot(), {"priority": 1, "concurrency": 2})
    assert change.note == "changed concurrency, priority"


def test_the_same_configuration_is_no_change() -> None:
    before = snapshot(priority=1, budget=BUDGET)
    assert configure_loop(before, {"priority": 1, "budget": {"day": {"tokens": 50}}}).empty


@pytest.mark.parametrize(
    "values",
    [
        {"priority": 0},
        {"weight": 0},
        {"concurrency": 0},
        {"colour": "red"},
        {"on_blocked": "panic"},
        {"budget": 5},
        {"budget": {"loop": 5}},
        {"budget": {"week": {"tokens": 5}}},
        {"budget": {"loop": {"tokens": "lots"}}},
    ],
)
def test_impossible_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        configure_loop(snapshot(budget=BUDGET), values)


def test_a_merged_item_is_rolled_back_rather_than_reset() -> None:
    """Whatever else its state is, a reset finds the work that is there."""
    passed = snapshot({"a": ()}, {"a": ItemRecord(state="passed", runs=1, job_id="job-a")})
    with pytest.raises(NotPossible, match="mulligan loops rollback alpha --item a"):
        reset_item(passed, "a", now=5.0, merged=True)
    assert reset_item(passed, "a", now=5.0).items["a"].state == "pending"
    failed = snapshot({"a": ()}, {"a": "failed"})
    assert reset_item(failed, "a", now=5.0, merged=True).items["a"].state == "pending"
