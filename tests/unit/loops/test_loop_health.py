"""Whether a loop is alive: by the lease and the progress of its items, or by its planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mulligan.policies.loops.health import (
    Condition,
    HealthCheck,
    ItemHealth,
    ItemSigns,
    LoopHealth,
    check_loop,
    find_conditions,
    item_health,
)
from mulligan.policies.loops.loop import LOOP_STATES, ItemRecord, ItemState, LoopRecord, LoopState
from mulligan.policies.loops.progress import AgentProgress
from mulligan.policies.loops.spec import LoopConfig
from mulligan.policies.loops.stuck import RULES, Rule, RuleName, changed_rules

NOW = 100_000.0


def loop(state: LoopState = "running", **fields: Any) -> LoopRecord:
    return LoopRecord(name="alpha", config=LoopConfig(name="alpha"), state=state, **fields)


def signs(**fields: Any) -> ItemSigns:
    """An item that a worker runs, and whose lease was renewed a moment ago."""
    return ItemSigns(**{"item": "a", "since": 0.0, "held": True, "renewed_at": NOW - 5, **fields})


def silent(seconds: float, **fields: Any) -> AgentProgress:
    return AgentProgress(at={"event": NOW - seconds, "output": NOW - seconds - 50}, **fields)


def records(**states: tuple[ItemState, float]) -> dict[str, ItemRecord]:
    return {name: ItemRecord(state=state, since=at) for name, (state, at) in states.items()}


# -- one item --------------------------------------------------------------------------------------

BY_SILENCE: list[tuple[float, LoopHealth]] = [
    (0.0, "healthy"), (59.9, "healthy"), (60.0, "degraded"), (299.9, "degraded"), (300.0, "dead"),
]  # fmt: skip


@pytest.mark.parametrize(("seconds", "health"), BY_SILENCE)
def test_a_lease_that_is_not_renewed_is_missing(seconds: float, health: LoopHealth) -> None:
    found = item_health(signs(renewed_at=NOW - seconds), NOW)
    assert found.status == health
    late = health != "healthy"
    assert (found.missing, found.since) == (("lease", NOW - seconds) if late else ("", None))


@pytest.mark.parametrize(("seconds", "health"), BY_SILENCE)
def test_an_agent_that_shows_no_progress_is_found_though_its_worker_lives(
    seconds: float, health: LoopHealth
) -> None:
    found = item_health(signs(progress=silent(seconds)), NOW)
    assert (found.status, found.missing) == (health, "progress" if health != "healthy" else "")


@pytest.mark.parametrize("waits_on", ["model", "tool"])
@pytest.mark.parametrize(
    ("seconds", "health"),
    [(59.0, "healthy"), (300.0, "degraded"), (599.0, "degraded"), (600.0, "dead")],
)
def test_silence_while_an_agent_waits_is_only_degraded_for_ten_minutes(
    waits_on: Any, seconds: float, health: LoopHealth
) -> None:
    found = item_health(signs(progress=silent(seconds, waits_on=waits_on)), NOW)
    assert (found.status, found.waits_on) == (health, waits_on)


def test_a_stopped_agent_is_degraded_at_once_and_waits_for_nothing() -> None:
    found = item_health(signs(progress=silent(1.0, state="T")), NOW)
    assert (found.status, found.missing, found.stopped) == ("degraded", "progress", True)
    late = item_health(signs(progress=silent(301.0, state="T", waits_on="model")), NOW)
    assert late.status == "dead"


def test_without_evidence_only_the_lease_counts() -> None:
    assert item_health(signs(progress=None), NOW).status == "healthy"
    assert item_health(signs(progress=AgentProgress()), NOW).status == "healthy"


def test_the_worse_signal_is_named() -> None:
    both = item_health(signs(renewed_at=NOW - 70, progress=silent(400.0)), NOW)
    assert (both.status, both.missing, both.since) == ("dead", "progress", NOW - 400)


def test_a_verifier_may_take_as_long_as_it_takes() -> None:
    found = item_health(signs(renewed_at=None, progress=silent(5000.0)), NOW)
    assert (found.status, found.waits_on) == ("healthy", "verifier")


def test_an_item_may_wait_for_busy_workers_but_not_for_missing_ones() -> None:
    queued = signs(held=False, renewed_at=None, since=NOW - 400)
    assert item_health(queued, NOW).status == "healthy"
    found = item_health(queued, NOW, served=False)
    assert (found.status, found.missing, found.waits_on) == ("degraded", "worker", "worker")
    assert found.since is None, "nobody has noted since when"


# -- a loop ----------------------------------------------------------------------------------------


def test_a_loop_is_as_healthy_as_its_worst_item() -> None:
    good, bad = item_health(signs(), NOW), item_health(signs(item="b", renewed_at=NOW - 99), NOW)
    found = check_loop(loop(), [good, bad], NOW)
    assert (found.status, found.missing, found.item) == ("degraded", "lease", "b")
    assert check_loop(loop(), [good], NOW) == HealthCheck(status="healthy", items=[good])


@pytest.mark.parametrize(
    ("seconds", "health"), [(119.0, "healthy"), (120.0, "degraded"), (360.0, "dead")]
)
def test_the_planner_counts_if_nothing_runs(seconds: float, health: LoopHealth) -> None:
    """It plans a running loop once a minute."""
    found = check_loop(loop(planned_at=NOW - seconds), [], NOW)
    assert (found.status, found.missing) == (health, "planner" if health != "healthy" else "")


def test_a_loop_that_was_just_started_is_healthy() -> None:
    assert check_loop(loop(since=NOW - 10, planned_at=NOW - 5000), [], NOW).status == "healthy"
    unserved = check_loop(loop(since=NOW - 10), [], NOW, unserved_since=NOW - 400)
    assert unserved.status == "healthy"


def test_a_loop_without_workers_is_found_although_it_is_planned() -> None:
    found = check_loop(loop(planned_at=NOW - 1), [], NOW, unserved_since=NOW - 400)
    assert (found.status, found.missing, found.since) == ("dead", "worker", NOW - 400)


@pytest.mark.parametrize("state", [each for each in LOOP_STATES if each != "running"])
def test_nothing_is_expected_of_a_loop_that_does_not_run(state: LoopState) -> None:
    late = item_health(signs(renewed_at=NOW - 5000), NOW)
    assert check_loop(loop(state), [late], NOW).status == "idle"
    assert check_loop(loop(state), [], NOW).status == "idle"


# -- what needs somebody ---------------------------------------------------------------------------


def conditions(*items: ItemHealth, found: LoopRecord | None = None, **states: Any) -> list[str]:
    running = found or loop(since=NOW - 5000, planned_at=NOW)
    check = check_loop(running, items, NOW)
    return [each.key for each in find_conditions(running, records(**states), check, NOW)]


def test_missing_signals_are_conditions() -> None:
    lost = item_health(signs(renewed_at=NOW - 70), NOW)
    assert conditions(lost) == ["lease:a"]
    assert conditions(found=loop(planned_at=NOW - 130)) == ["planner:"]
    assert conditions() == []


def test_silence_of_an_agent_is_a_condition_only_when_it_counts_as_dead() -> None:
    assert conditions(item_health(signs(progress=silent(200.0)), NOW)) == []
    assert conditions(item_health(signs(progress=silent(400.0)), NOW)) == ["progress:a"]


def test_what_a_stuck_rule_finds_is_a_condition() -> None:
    found = item_health(signs(progress=silent(1.0, finding="the same error 3 times")), NOW)
    assert conditions(found) == ["stuck:a"]


def test_a_blocked_loop_needs_somebody_and_a_paused_one_does_not() -> None:
    assert conditions(found=loop("blocked", reason="a failed")) == ["blocked:"]
    assert conditions(found=loop("paused")) == []


def of_loop(
    running: LoopRecord,
    found: dict[str, ItemRecord],
    *items: ItemHealth,
    rules: Mapping[RuleName, Rule] = RULES,
) -> list[Condition]:
    check = check_loop(running, items, NOW)
    return find_conditions(running, found, check, NOW, rules)


def test_no_pass_counts_only_while_an_item_runs_all_the_time() -> None:
    running, works = loop(since=NOW - 9000, planned_at=NOW), item_health(signs(), NOW)
    old = records(a=("running", NOW - 4000), b=("passed", NOW - 1801))
    assert of_loop(running, old, works) == [
        Condition(signal="no_pass", since=NOW - 1801, text="no item has passed for 30 min")
    ]
    assert of_loop(running, old) == [], "it waits for something"
    fresh = records(a=("running", NOW - 4000), b=("passed", NOW - 1799))
    assert of_loop(running, fresh, works) == []
    begun = records(a=("running", NOW - 100), b=("passed", NOW - 4000))
    assert of_loop(running, begun, works) == [], "it has just begun"
    assert of_loop(loop(since=NOW - 5), old, works) == [], "it was just started"
    patient = changed_rules({"no_pass": 7200.0}, {})
    assert of_loop(running, old, works, rules=patient) == [], "another threshold is configured"


def test_three_items_that_fail_one_after_the_other() -> None:
    running = loop(planned_at=NOW)
    three = records(a=("failed", 3.0), b=("quarantined", 2.0), c=("failed", 1.0), d=("passed", 0.5))
    (found,) = of_loop(running, three)
    assert found.text == "3 items failed one after the other: a, b, c"
    assert found.since == 1.0
    assert of_loop(running, {**three, **records(e=("passed", 2.5))}) == []
    assert of_loop(running, records(a=("failed", 3.0), b=("failed", 2.0))) == []
    assert of_loop(running, three, rules=changed_rules({"consecutive_failures": 0}, {})) == []
