"""Why: every cause with its sentence and the command that changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loop_snapshots import snapshot

from mulligan.policies.loops.admission import Demand, WaitingItem
from mulligan.policies.loops.budget import BudgetState, LoopBudget, Resource
from mulligan.policies.loops.loop import ITEM_STATES, ItemRecord, ItemState, LoopSnapshot
from mulligan.policies.loops.why import (
    FleetState,
    JobWaits,
    Reason,
    root_of,
    why_item,
    why_loop,
)

NOW = 12 * 60.0  # items and loops have their states since second 0
CHAIN: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("b",)}
FREE = FleetState(slots=8, live=0, live_of_loop=0)
FULL = FleetState(slots=2, live=2, live_of_loop=0)
RUNS = JobWaits()


def ask(
    found: LoopSnapshot, item: str = "a", fleet: FleetState = FREE, job: JobWaits = RUNS
) -> tuple[str, str, str | None]:
    return told(why_item(found, item, fleet, job, NOW))


def ask_loop(
    found: LoopSnapshot, fleet: FleetState = FREE, job: JobWaits = RUNS
) -> tuple[str, str, str | None]:
    return told(why_loop(found, fleet, job, NOW))


def told(reason: Reason) -> tuple[str, str, str | None]:
    return reason.cause, reason.text, reason.command


def one(a: ItemState, because: str = "", **loop: Any) -> LoopSnapshot:
    """Return a loop of one item in this state."""
    return snapshot({"a": ()}, {"a": ItemRecord(state=a, reason=because)}, **loop)


# -- what ended ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("passed", "", ("done", "a passed", None)),
        ("skipped", "not needed", ("done", "a was skipped (not needed)", None)),
        (
            "failed",
            "max_attempts",
            ("failure", "a failed (max_attempts, 12 min ago)", "mulligan loops reset alpha a"),
        ),
        ("failed", "", ("failure", "a failed (12 min ago)", "mulligan loops reset alpha a")),
        (
            "quarantined",
            "worker_lost",
            (
                "quarantine",
                "a is quarantined (worker_lost, 12 min ago)",
                "mulligan loops reset alpha a",
            ),
        ),
    ],
)
def test_an_item_that_ended(state: ItemState, reason: str, expected: tuple[str, str, Any]) -> None:
    assert ask(one(state, reason)) == expected


# -- dependencies ----------------------------------------------------------------------------------


def test_the_end_of_a_chain_is_named() -> None:
    quarantined = ItemRecord(state="quarantined", reason="worker_lost")
    found = snapshot(CHAIN, {"a": quarantined, "b": "blocked", "c": "blocked"})
    assert ask(found, "c") == (
        "dependency",
        "c waits: dependency a is quarantined (worker_lost, 12 min ago)",
        "mulligan loops reset alpha a",
    )


@pytest.mark.parametrize(
    ("a", "loop", "fleet", "text", "command"),
    [
        ("running", {}, FREE, "c waits: dependency a runs", None),
        (
            "ready",
            {"state": "created"},
            FREE,
            "c waits: dependency a waits: the loop was not started",
            "mulligan loops start alpha",
        ),
        (
            "ready",
            {},
            FULL,
            "c waits: dependency a waits: 2 of 2 slots of all loops are taken",
            "mulligan loops slots 3",
        ),
    ],
)
def test_a_chain_of_pending_items_has_the_command_of_its_root(
    a: ItemState, loop: dict[str, Any], fleet: FleetState, text: str, command: str | None
) -> None:
    assert ask(snapshot(CHAIN, {"a": a}, **loop), "c", fleet) == ("dependency", text, command)


@pytest.mark.parametrize(
    ("states", "on_blocked", "root"),
    [
        ({"x": "running", "y": "failed"}, "wait", "y"),  # only a person changes it
        ({"x": "failed", "y": "running"}, "continue", "y"),  # it goes on without x
        ({"x": "running", "y": "passed"}, "wait", "x"),
        ({"x": "passed", "y": "passed"}, "wait", "z"),  # the planner comes next
    ],
)
def test_of_several_dependencies_the_one_that_holds_it_is_named(
    states: Mapping[str, ItemState], on_blocked: str, root: str
) -> None:
    found = snapshot({"x": (), "y": (), "z": ("x", "y")}, states, on_blocked=on_blocked)
    assert root_of(found, "z") == root


def test_a_dependency_that_does_not_exist() -> None:
    found = snapshot({"b": ("ghost",), "c": ("b",)}, {"b": "blocked", "c": "blocked"})
    assert ask(found, "b") == (
        "dependency",
        "b waits: dependency ghost does not exist",
        "mulligan loops skip alpha b --reason 'ghost does not exist'",
    )
    assert ask(found, "c") == (
        "dependency",
        "c waits: dependency b waits: dependency ghost does not exist",
        "mulligan loops skip alpha b --reason 'ghost does not exist'",  # then c goes on
    )


def test_a_name_with_spaces_is_quoted() -> None:
    waits = JobWaits(waiting_for="pause", behind="task_type:my type", words="task type my type, …")
    _, _, command = ask(one("running"), job=waits)
    assert command == "mulligan queue resume 'task_type:my type'"


def test_nobody_plans_or_works() -> None:
    nobody = replace(FREE, missing_pools=("control", "agent"))
    assert ask(one("pending"), fleet=nobody) == (
        "worker",
        "a waits: no worker of the pool control has reported for 30 s, so that nobody plans it",
        "mulligan worker control",
    )
    queued = JobWaits(waiting_for="worker", words="a worker")
    assert ask(one("running"), fleet=nobody, job=queued) == (
        "worker",
        "a waits for a worker: none of the pool agent has reported for 30 s",
        "mulligan worker agent",
    )
    # `up` runs them all: started, it replaces those that end.
    assert ask(one("pending"), fleet=replace(nobody, up=False))[2] == "mulligan up"
    assert ask(one("pending"), fleet=replace(nobody, up=True))[2] is None


def test_no_slots_at_all_is_not_a_question_of_priorities() -> None:
    other = Demand(loop="beta", candidates=(WaitingItem(item="x"),))
    none = FleetState(slots=0, live=0, live_of_loop=0, others=[other])
    assert ask(one("ready"), fleet=none)[1:] == (
        "a waits: 0 of 0 slots of all loops are taken",
        "mulligan loops slots 1",
    )
    lowered = FleetState(slots=1, live=3, live_of_loop=0, others=[other])
    assert ask(one("ready"), fleet=lowered)[2] == "mulligan loops slots 4"


def test_an_item_that_may_run_before_the_planner_saw_it() -> None:
    found = snapshot({"a": (), "b": ("a",)}, {"a": "passed", "b": "pending"})
    assert ask(found, "b") == (
        "planning",
        "b waits: the planner has not seen the last change yet",
        None,
    )


# -- the loop itself -------------------------------------------------------------------------------

DAY: dict[str, Any] = {"budget": {"day": {"tokens": 10}}, "used": {("day", "tokens"): 12.0}}
LOOP: dict[str, Any] = {"budget": {"loop": {"money": 2.5}}, "used": {("loop", "money"): 2.5}}


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        (
            {"state": "created"},
            ("not_started", "the loop was not started", "mulligan loops start alpha"),
        ),
        (
            {"state": "stopped"},
            ("not_started", "the loop was stopped", "mulligan loops start alpha"),
        ),
        (
            {"state": "stopped", "reason": "moved to alpha.tar.gz"},
            ("moved", "the loop moved to alpha.tar.gz, and goes on there", None),
        ),
        (
            {"state": "paused", "paused_by": "person"},
            ("pause", "the loop was paused 12 min ago", "mulligan loops resume alpha"),
        ),
        (
            {"state": "paused", "paused_by": "budget", **LOOP},
            (
                "budget",
                "the loop budget of money is used up",
                "mulligan loops set alpha --budget loop.money=5",  # 2 × 2.5
            ),
        ),
        (
            {"state": "paused", "paused_by": "budget", **DAY},
            (
                "budget",
                "the day budget of tokens is used up until 00:00 UTC",
                "mulligan loops set alpha --budget day.tokens=24",  # 2 × 12, more than 2 × 10
            ),
        ),
        (
            {"state": "paused", "paused_by": "person", **DAY},  # resuming would be refused
            (
                "budget",
                "the loop was paused 12 min ago,"
                " and the day budget of tokens is used up until 00:00 UTC",
                "mulligan loops set alpha --budget day.tokens=24",
            ),
        ),
        (
            {"state": "paused", "paused_by": "budget"},  # raised, or a new day
            ("planning", "the planner has not seen the last change yet", None),
        ),
    ],
)
def test_what_holds_a_whole_loop_back(
    loop: dict[str, Any], expected: tuple[str, str, str | None]
) -> None:
    used = BudgetState(used=loop.get("used", {}))
    fleet = FleetState(slots=8, live=0, live_of_loop=0, budget=used)
    cause, text, command = expected
    assert ask_loop(one("ready", **loop), fleet) == expected
    assert ask(one("ready", **loop), "a", fleet) == (cause, f"a waits: {text}", command)


def test_an_attempt_that_runs_is_not_held_by_a_pause() -> None:
    paused = one("running", state="paused", paused_by="person")
    assert ask(paused, job=JobWaits(worker="w1")) == ("runs", "a runs on w1", None)
    waits = JobWaits(waiting_for="pause", behind="loop:alpha", words="loop alpha, …")
    assert ask(paused, job=waits) == (
        "pause",
        "a waits: the loop was paused 12 min ago",
        "mulligan loops resume alpha",
    )


# -- slots -----------------------------------------------------------------------------------------


def waits_with(priority: int, loop: str = "beta") -> Demand:
    return Demand(loop=loop, priority=priority, candidates=[WaitingItem(item="x")])


@pytest.mark.parametrize(
    ("fleet", "config", "cause", "text", "command"),
    [
        (
            FleetState(slots=8, live=2, live_of_loop=2),
            {"concurrency": 2},
            "slot",
            "2 of 2 items of this loop run",
            "mulligan loops set alpha --concurrency 3",
        ),
        (FREE, {}, "planning", "the planner has not seen the last change yet", None),
        (FULL, {}, "slot", "2 of 2 slots of all loops are taken", "mulligan loops slots 3"),
        (
            FleetState(slots=2, live=2, live_of_loop=0, others=[waits_with(7)]),
            {"priority": 5},
            "slot",  # beta goes after it
            "2 of 2 slots of all loops are taken",
            "mulligan loops slots 3",
        ),
        (
            FleetState(slots=2, live=2, live_of_loop=0, others=[waits_with(7), waits_with(3)]),
            {"priority": 5},
            "fairness",
            "2 of 2 slots of all loops are taken, and beta with priority 3 goes first",
            "mulligan loops set alpha --priority 2",
        ),
        (
            FleetState(slots=2, live=2, live_of_loop=0, others=[waits_with(1)]),
            {"priority": 5},
            "fairness",
            "2 of 2 slots of all loops are taken, and beta with priority 1 goes first",
            "mulligan loops set alpha --priority 1",
        ),
        (
            FleetState(slots=2, live=2, live_of_loop=0, others=[waits_with(5)]),
            {"priority": 5},
            "fairness",
            "2 of 2 slots of all loops are taken, and beta with the same priority shares them",
            "mulligan loops set alpha --priority 4",
        ),
        (
            FleetState(slots=2, live=2, live_of_loop=0, others=[waits_with(1)]),
            {"priority": 1},  # nothing is more urgent
            "fairness",
            "2 of 2 slots of all loops are taken, and beta with the same priority shares them",
            "mulligan loops slots 3",
        ),
    ],
)
def test_an_item_without_a_slot(
    fleet: FleetState, config: dict[str, Any], cause: str, text: str, command: str | None
) -> None:
    assert ask(one("ready", **config), "a", fleet) == (cause, f"a waits: {text}", command)
    parked = JobWaits(waiting_for="slot", behind="slot:items", words="a slot of its loop")
    assert ask(one("running", **config), "a", fleet, parked) == (
        cause,
        f"a waits: {text}",
        command,
    )


# -- budgets ---------------------------------------------------------------------------------------


def budget_of(limit: float, used: float, reserved: float, cap: float | None) -> FleetState:
    caps: dict[Resource, float] = {} if cap is None else {"tokens": cap}
    state = BudgetState(
        limits={("loop", "tokens"): limit},
        used={("loop", "tokens"): used},
        reserved={"tokens": reserved},
        reservations=1,
        caps=caps,
    )
    return FleetState(slots=8, live=1, live_of_loop=1, budget=state)


@pytest.mark.parametrize(
    ("limit", "used", "reserved", "cap", "text", "command"),
    [
        (
            150, 0, 100, 100,
            "the loop budget of tokens has too little left: of 150, 0 are used and 100 are"
            " reserved by running attempts",
            "loop.tokens=300",  # 2 × 150 > 0 + 100 + 100
        ),
        (
            100, 0, 100, 150,  # alone, it took less than its cap
            "the loop budget of tokens has too little left: of 100, 0 are used and 100 are"
            " reserved by running attempts",
            "loop.tokens=250",  # 0 + 100 + 150 > 2 × 100
        ),
        (
            12_345_678, 12_345_600, 78, 100,
            "the loop budget of tokens has too little left: of 12345678, 12345600 are used and 78"
            " are reserved by running attempts",
            "loop.tokens=24691356",  # in full: commands do not read 2.46914e+07
        ),
        (
            1000, 100, 900, None,
            "attempts have no cap of tokens, so that they run one at a time within the loop budget",
            "attempt.tokens=450",  # half of what is left: raising the limit would not help
        ),
    ],
)  # fmt: skip
def test_an_item_without_budget(
    limit: float, used: float, reserved: float, cap: float | None, text: str, command: str
) -> None:
    fleet = budget_of(limit, used, reserved, cap)
    config: dict[str, Any] = {"budget": {"loop": {"tokens": int(limit)}}}
    expected = ("budget", f"a waits: {text}", f"mulligan loops set alpha --budget {command}")
    assert ask(one("ready", **config), "a", fleet) == expected
    parked = JobWaits(waiting_for="budget", behind="budget:alpha", words="the budget of loop alpha")
    assert ask(one("running", **config), "a", fleet, parked) == expected


@given(
    limit=st.integers(1, 10**9),
    used=st.integers(0, 10**9),
    reserved=st.integers(0, 10**9),
    cap=st.integers(1, 10**9),
    live=st.integers(0, 5),
)
def test_the_suggested_budget_makes_room(
    limit: int, used: int, reserved: int, cap: int, live: int
) -> None:
    state = BudgetState(
        limits={("loop", "tokens"): limit},
        used={("loop", "tokens"): used},
        reserved={"tokens": reserved},
        caps={"tokens": cap},
    )
    fleet = FleetState(slots=8, live=live, live_of_loop=live, budget=state)
    found = one("ready", budget={"loop": {"tokens": limit}})
    reason = why_item(found, "a", fleet, RUNS, NOW)
    if reason.cause != "budget":
        assert state.room(live)
        return
    assert reason.command is not None
    raised = reason.command.rpartition("loop.tokens=")[2]
    more = LoopBudget.model_validate({"loop": {"tokens": raised}}).shared()
    after = BudgetState(limits=more, used=state.used, reserved=state.reserved, caps=state.caps)
    assert after.room(live)


def test_a_budget_that_the_ledger_no_longer_refuses() -> None:
    parked = JobWaits(waiting_for="budget", behind="budget:alpha", words="the budget of loop alpha")
    assert ask(one("running"), job=parked) == (
        "budget",
        "a waits for the budget of loop alpha",
        None,
    )


# -- what began and waits --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (JobWaits(), ("runs", "a runs", None)),  # slow verifiers check it
        (JobWaits(worker="w1"), ("runs", "a runs on w1", None)),
        (
            JobWaits(waiting_for="worker", words="a worker"),
            ("worker", "a waits for a worker", None),
        ),
        (
            JobWaits(waiting_for="version", words="a worker of version 9 or later"),
            ("worker", "a waits for a worker of version 9 or later", None),
        ),
        (
            JobWaits(waiting_for="delay", words="its next try"),
            ("provider", "a waits for its next try", None),
        ),
        (
            JobWaits(
                waiting_for="pause", behind="provider:api.x", words="api.x: paused", closed=True
            ),
            ("provider", "a waits for api.x: paused", "mulligan queue resume provider:api.x"),
        ),
        (
            # its limit: there is nothing to resume
            JobWaits(waiting_for="provider", behind="provider:api.x", words="provider api.x"),
            ("provider", "a waits for provider api.x", None),
        ),
        (
            JobWaits(waiting_for="pause", behind="queue:agent", words="queue agent, …"),
            ("pause", "a waits for queue agent, …", "mulligan queue resume queue:agent"),
        ),
        (
            JobWaits(waiting_for="pause", behind="task_type:t", words="task type t, …"),
            ("pause", "a waits for task type t, …", "mulligan queue resume task_type:t"),
        ),
        (
            JobWaits(waiting_for="budget", behind="quota:acme", words="the quota of acme"),
            ("budget", "a waits for the quota of acme", None),
        ),
    ],
)  # fmt: skip
def test_an_item_that_has_begun(job: JobWaits, expected: tuple[str, str, str | None]) -> None:
    assert ask(one("running"), job=job) == expected


# -- loops -----------------------------------------------------------------------------------------


def not_delivered(found: LoopSnapshot) -> LoopSnapshot:
    return replace(found, loop=replace(found.loop, delivery_problem="main is checked out"))


@pytest.mark.parametrize(
    ("found", "fleet", "job", "expected"),
    [
        (
            one("passed", state="completed"),
            FREE,
            RUNS,
            ("done", "every item passed or was skipped", None),
        ),
        (
            not_delivered(one("passed", state="completed")),
            FREE,
            RUNS,
            (
                "delivery",
                "every item passed or was skipped, but the work is not delivered: main is checked"
                " out. It is tried again every minute",
                None,
            ),
        ),
        (
            snapshot(
                {"b": ("a",), "a": ()},
                {"a": ItemRecord(state="failed", reason="max_attempts"), "b": "blocked"},
                state="blocked",
            ),
            FREE,
            RUNS,
            (
                "failure",
                "nothing can go on: a failed (max_attempts, 12 min ago)",
                "mulligan loops reset alpha a",
            ),
        ),
        (
            snapshot({"a": ("ghost",)}, {"a": "blocked"}, state="blocked"),
            FREE,
            RUNS,
            (
                "dependency",
                "nothing can go on: a waits: dependency ghost does not exist",
                "mulligan loops skip alpha a --reason 'ghost does not exist'",
            ),
        ),
        (
            one("running"),
            FleetState(slots=8, live=1, live_of_loop=1),
            RUNS,
            ("runs", "1 item runs", None),
        ),
        (
            one("running"),
            FleetState(slots=8, live=2, live_of_loop=2),
            RUNS,
            ("runs", "2 items run", None),
        ),
        (
            one("running"),
            FleetState(slots=8, live=1, live_of_loop=1, held=False),
            JobWaits(waiting_for="worker", words="a worker"),
            ("worker", "a waits for a worker", None),
        ),
        (
            one("ready"),
            FULL,
            RUNS,
            ("slot", "2 of 2 slots of all loops are taken", "mulligan loops slots 3"),
        ),
        (
            one("running"),
            FREE,
            JobWaits(waiting_for="pause", behind="queue:agent", words="queue agent, …"),
            ("pause", "a waits for queue agent, …", "mulligan queue resume queue:agent"),
        ),
        (
            one("pending"),
            FREE,
            RUNS,
            ("planning", "the planner has not seen the last change yet", None),
        ),
    ],
)
def test_a_loop(
    found: LoopSnapshot, fleet: FleetState, job: JobWaits, expected: tuple[str, str, str | None]
) -> None:
    assert ask_loop(found, fleet, job) == expected


@given(
    states=st.lists(st.sampled_from(ITEM_STATES), min_size=4, max_size=4),
    loop=st.sampled_from(["created", "running", "paused", "blocked", "completed", "stopped"]),
    on_blocked=st.sampled_from(["wait", "continue"]),
)
def test_every_item_and_loop_has_a_sentence(
    states: list[ItemState], loop: Any, on_blocked: str
) -> None:
    items = {"a": (), "b": ("a",), "c": ("a", "b"), "d": ("c",)}
    found = snapshot(
        items, dict(zip(items, states, strict=True)), state=loop, on_blocked=on_blocked
    )
    for name in items:
        assert why_item(found, name, FULL, RUNS, NOW).text.startswith(f"{name} ")
    assert why_loop(found, FULL, RUNS, NOW).text
