"""Which step heals an item that gave up, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.loop_snapshots import snapshot, specs_of

from mulligan.policies.loops.heal_record import (
    MOST_BY_ITSELF,
    MOST_HEALS,
    HealOutcome,
    HealRecord,
)
from mulligan.policies.loops.healing import (
    advice_of,
    due_steps,
    ended_heals,
    healed_run,
    is_crash_loop,
    next_due,
    next_step,
    rerouted,
    runner_of,
)
from mulligan.policies.loops.loop import ItemRecord, ItemState, LoopSnapshot
from mulligan.policies.loops.spec import HealAction
from mulligan.policies.loops.why import FleetState, JobWaits, why_item

NOW = 1000.0


def failed(reason: str = "max_attempts", **record: Any) -> ItemRecord:
    values: dict[str, Any] = {"state": "failed", "since": NOW, "runs": 1, "job_id": "j", **record}
    return ItemRecord(reason=reason, **values)


def heal(
    action: HealAction,
    parameter: str = "",
    outcome: HealOutcome = "failed",
    *,
    number: int = 1,
    item: str = "a",
    **more: Any,
) -> HealRecord:
    values: dict[str, Any] = {"at": NOW, "reason": "", "run": 1, **more}
    return HealRecord(
        number=number, item=item, action=action, parameter=parameter, outcome=outcome, **values
    )


def loop(
    record: ItemRecord, *heals: HealRecord, auto_heal: Any = True, **config: Any
) -> LoopSnapshot:
    items: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",)}
    return snapshot(items, {"a": record}, heals=heals, auto_heal=auto_heal, **config)


def ladder(record: ItemRecord, **config: Any) -> list[tuple[str, str]]:
    """Return the steps in their order, if each one fails."""
    found: list[tuple[str, str]] = []
    heals: list[HealRecord] = []
    for number in range(1, 30):
        # Far enough apart that they are no crash loop.
        step = next_step(loop(record, *heals, **config), "a", NOW + number * 10_000)
        if step is None:
            return found
        found.append((step.action, step.parameter))
        heals.append(heal(step.action, step.parameter or f"commit {number}", number=number))
    raise AssertionError("the ladder has no end")


WAYS = [("change_strategy", "fresh context"), ("split", "two parts"), ("escalate", "a person")]
RESTARTS = [("unblock", f"after {seconds} s") for seconds in (30, 60, 120, 240, 480, 600)]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("max_attempts", WAYS),
        ("repeated_failure", WAYS),
        ("not_verified", WAYS),
        ("worker_lost ×3", [*RESTARTS, WAYS[-1]]),
        ("setup_failed", [*RESTARTS, WAYS[-1]]),
        ("deadline", [*RESTARTS, WAYS[-1]]),
        ("unsafe_request", WAYS[-1:]),
        ("budget_tokens", WAYS[-1:]),
        ("cancelled", []),  # by somebody who knows
        ("guard_fails_before", WAYS[-1:]),  # nothing to roll back without a repository
    ],
)
def test_every_ladder_ends_with_a_person(reason: str, expected: list[tuple[str, str]]) -> None:
    assert ladder(failed(reason)) == expected


def test_stronger_runners_come_before_the_split() -> None:
    found = ladder(failed(), escalate_to=["strong", "strongest"])
    assert found == [WAYS[0], ("escalate", "strong"), ("escalate", "strongest"), *WAYS[1:]]


def test_only_what_the_loop_allows_is_done() -> None:
    assert ladder(failed(), auto_heal=False) == [WAYS[-1]]
    assert ladder(failed(), auto_heal=["split"]) == WAYS[1:]
    assert ladder(failed(), auto_heal=["skip"]) == [("skip", "left out"), WAYS[-1]]
    stronger = ladder(failed(), auto_heal=["split"], escalate_to=["strong"])
    assert stronger == WAYS[1:]


def test_dependents_are_rerouted_when_nothing_else_helps() -> None:
    found = ladder(failed(), on_blocked="reroute")
    assert found == [*WAYS[:2], ("repair_dependency_chain", "reroute"), WAYS[2]]


def test_a_broken_branch_is_rolled_back_once() -> None:
    found = ladder(failed("guard_fails_before"), repo="/x")
    assert found == [("rollback", ""), WAYS[-1]]


def test_a_stronger_runner_that_cannot_run_does_not_end_the_ladder() -> None:
    tried = [heal("change_strategy", "fresh context"), heal("escalate", "strong", number=2)]
    before = loop(failed("unsafe_request"), *tried, escalate_to=["strong", "strongest"])
    step = next_step(before, "a", NOW)
    assert step is not None
    assert step.parameter == "strongest"


def test_a_person_is_told_of_every_run_that_failed() -> None:
    told = heal("escalate", "a person", "failed", run=1)
    before = loop(failed(runs=2), told, auto_heal=False)
    step = next_step(before, "a", NOW)
    assert step is not None
    assert step.parameter == "a person"
    assert next_step(loop(failed(), told, auto_heal=False), "a", NOW) is None


def test_a_loop_with_too_many_healings_leaves_the_rest_to_people() -> None:
    many = [heal("unblock", str(n), number=n, item=f"i{n}", at=0.0) for n in range(MOST_HEALS)]
    by_itself = next_step(loop(failed(), *many[: MOST_BY_ITSELF - 1]), "a", NOW)
    told = next_step(loop(failed(), *many[:MOST_BY_ITSELF]), "a", NOW)
    assert by_itself is not None
    assert by_itself.action == "change_strategy"
    assert told is not None
    assert told.parameter == "a person"
    assert next_step(loop(failed(), *many), "a", NOW) is None


@pytest.mark.parametrize(
    ("state", "runs", "outcome"),
    [
        ("failed", 1, None),  # it is being drafted
        ("skipped", 1, "skipped"),
        ("pending", 1, "refused"),
        ("failed", 2, "refused"),
    ],
)
def test_a_draft_ends_when_its_item_goes_on_without_it(
    state: ItemState, runs: int, outcome: str | None
) -> None:
    before = loop(failed(state=state, runs=runs), heal("split", "two parts", "pending"))
    assert [each.outcome for each in ended_heals(before, NOW)] == ([outcome] if outcome else [])


def test_a_part_is_not_split_again() -> None:
    earlier = heal("split", "two parts", item="x", result="a, c")
    step = next_step(loop(failed(), earlier, heal("change_strategy", "fresh context")), "a", NOW)
    assert step is not None
    assert step.action == "escalate"


@pytest.mark.parametrize("state", ["pending", "ready", "running", "passed", "skipped", "blocked"])
def test_what_has_not_given_up_is_left_alone(state: ItemState) -> None:
    assert next_step(loop(ItemRecord(state=state)), "a", NOW) is None


def test_a_loop_that_people_hold_is_left_alone() -> None:
    held = loop(failed())
    for state in ("paused", "stopped", "created"):
        assert next_step(replace(held, loop=replace(held.loop, state=state)), "a", NOW) is None


def test_one_healing_at_a_time() -> None:
    assert next_step(loop(failed(), heal("split", "two parts", "pending")), "a", NOW) is None


def test_a_restart_waits_longer_each_time() -> None:
    record = failed("worker_lost ×3")
    before = loop(record)
    assert due_steps(before, NOW + 29) == []
    assert next_due(before, NOW + 29) == NOW + 30
    assert [item for item, _ in due_steps(before, NOW + 30)] == ["a"]
    again = loop(record, heal("unblock", "after 30 s"))
    assert next_due(again, NOW) == NOW + 60


def test_five_restarts_in_fifteen_minutes_are_a_crash_loop() -> None:
    restarts = [heal("unblock", str(n), number=n, item=f"i{n}", at=NOW) for n in range(5)]
    assert not is_crash_loop(restarts[:4], NOW)
    assert is_crash_loop(restarts, NOW + 900)
    assert not is_crash_loop(restarts, NOW + 901)
    step = next_step(loop(failed("worker_lost ×3"), *restarts), "a", NOW)
    assert step is not None
    assert (step.action, step.parameter) == ("escalate", "a person")


def test_why_says_what_the_loop_does_about_it() -> None:
    record = failed("worker_lost ×3")

    def why(*heals: HealRecord) -> str:
        fleet = FleetState(slots=1, live=0, live_of_loop=0)
        return why_item(loop(record, *heals), "a", fleet, JobWaits(), NOW + 10).text

    assert why() == "a failed (worker_lost ×3, 10 s ago); unblock follows in 20 s"
    told = heal("escalate", "a person", "pending")
    assert why(told) == "a failed (worker_lost ×3, 10 s ago)"
    assert why(heal("split", outcome="pending")).endswith("; it is being healed: split")


# -- what came of it -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "runs", "outcome"),
    [
        ("pending", 1, None),
        ("running", 2, None),
        ("passed", 2, "passed"),
        ("skipped", 1, "skipped"),
        ("failed", 1, None),  # the failure that is healed
        ("failed", 2, "failed"),
        ("quarantined", 2, "failed"),
    ],
)
def test_the_outcome_is_that_of_the_next_run(
    state: ItemState, runs: int, outcome: str | None
) -> None:
    before = loop(failed(state=state, runs=runs), heal("change_strategy", outcome="pending"))
    assert [each.outcome for each in ended_heals(before, NOW)] == ([outcome] if outcome else [])


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        (("passed", "running"), None),
        (("passed", "passed"), "passed"),
        (("failed", "blocked"), "failed"),
    ],
)
def test_a_split_is_as_good_as_its_parts(
    parts: tuple[ItemState, ItemState], outcome: str | None
) -> None:
    states: dict[str, ItemState] = {"a": "skipped", "a.1": parts[0], "a.2": parts[1]}
    split = heal("split", "two parts", "pending", result="a.1, a.2")
    before = snapshot({"a": (), "a.1": (), "a.2": ("a.1",)}, states, heals=[split], auto_heal=True)
    ended = ended_heals(before, NOW)
    assert [each.outcome for each in ended] == ([outcome] if outcome else [])
    assert all(each.result == "a.1, a.2" for each in ended), "its parts are not split again"


def test_the_next_run_gets_the_advice_and_the_stronger_runner() -> None:
    record = ItemRecord(state="ready", runs=1)
    stronger = heal("escalate", "strong", "pending", advice="Do it so.")
    before = loop(record, stronger, escalate_to=["strong"])
    found = healed_run(before, "a")
    runner = runner_of(before.config, found)
    assert runner is not None
    assert runner.profile == "strong"
    assert advice_of(before.config, found) == "Do it so."
    later = loop(ItemRecord(state="ready", runs=2), stronger, escalate_to=["strong"])
    assert healed_run(later, "a") is None


def test_what_a_person_is_told_is_not_told_to_the_runner() -> None:
    told = heal("escalate", "a person", "pending", advice="Suggested: mulligan loops heal")
    before = loop(ItemRecord(state="ready", runs=1), told)
    found = healed_run(before, "a")
    assert runner_of(before.config, found) is None
    assert advice_of(before.config, found) == ""


@pytest.mark.parametrize(
    ("instead", "expected"), [((), ("x",)), (("p",), ("x", "p")), (("x",), ("x",))]
)
def test_rerouting_keeps_the_other_dependencies(
    instead: Sequence[str], expected: tuple[str, ...]
) -> None:
    specs = specs_of({"p": (), "x": (), "a": ("p",), "b": ("a", "x")})
    assert rerouted(specs, "a", instead)[-1].depends_on == expected


def test_a_record_is_read_as_it_was_written() -> None:
    record = heal("split", "two parts", "pending", advice="é\n" * 10, job_id="j", item="")
    assert HealRecord.parse(record.as_json()) == record
    assert HealRecord.parse(record.as_json()[:-1] + ',"later":1}') == record
    with pytest.raises(ValueError, match="missing"):
        HealRecord.parse("{}")
