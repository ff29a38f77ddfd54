"""Scripted traces of batches of merges, and of groups that are merged beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.tasks.ports.repositories import ATTEMPT_TRAILER
from simulation.loop_scenario import make_change, make_loop
from simulation.simulation import Simulation

#: Longer than a lease, which lasts 10 seconds.
_LONG = 25.0
_ITEMS = [f"i{n}" for n in range(6)]
#: The second one fails beside the first one, unless it knows of it.
_CULPRIT = ("i0", "i3")
#: What happens to a merger of several items, of which the first try fails.
_FAULTS = (
    ("crash_before", "merge_failed"),
    ("freeze_before", "merge_verified"),
    ("freeze_before", "git_land"),
    ("crash_after", "git_land"),
    ("crash_before", "merge_landed"),
)


def _deployment(**options: Any) -> Simulation:
    return Simulation(
        **{"planners": 1, "repositories": 1, "workers": 6, "slots": 2, "loop_slots": 12} | options
    )


def _create(simulation: Simulation, *items: Any) -> None:
    loop = make_loop("alpha", *items, repo="repo", concurrency=10)
    simulation.fleet.loops.create(loop)


def _at_once(*, apart: tuple[str, str] | None = None, **shape: Any) -> list[Any]:
    """Return items that pass at once. The second of two that are apart must know of the first."""
    return [
        make_change(
            name,
            seconds=1,
            slow=True,
            apart=[apart[0]] if apart and name == apart[1] else [],
            **shape,
        )
        for name in _ITEMS
    ]


def _states(simulation: Simulation) -> set[str]:
    return set(simulation.world.checker.loops.states("alpha").values())


def _merges(simulation: Simulation) -> list[str]:
    model = simulation.world.repositories.model("repo")
    line = model.line(model.tip("mulligan/alpha") or "")
    found = [each for each in line if ATTEMPT_TRAILER in each.trailers]
    return [each.subject.partition(":")[0] for each in reversed(found)]


def _landings(simulation: Simulation) -> int:
    """Return how often something was put on the branch."""
    trace = simulation.world.trace
    return sum(
        each.what == "git_land" and each.answer not in ("None", "not reached") for each in trace
    )


def _steps(simulation: Simulation, name: str) -> int:
    return sum(each.what.split()[0] == name for each in simulation.world.trace)


def _run_until(simulation: Simulation, step: str, times: int) -> None:
    for _ in range(400):
        if _steps(simulation, step) >= times:
            return
        simulation.run(0.1)
    raise AssertionError(f"{step} was not reached {times} times")


def _member(simulation: Simulation) -> str:
    """Return an item whose work is the last one of a batch that is not on the branch yet."""
    commits = simulation.world.repositories.model("repo").commits.values()
    made = [each.subject.partition(":")[0] for each in commits if ATTEMPT_TRAILER in each.trailers]
    return made[-1]


def _window(simulation: Simulation) -> int:
    return int(simulation.world.checker.loops.row("alpha")["merge_window"])


def test_items_that_pass_at_once_are_merged_together() -> None:
    with _deployment() as simulation:
        _create(simulation, *_at_once())
        simulation.run(60)
        assert _states(simulation) == {"passed"}
        assert sorted(_merges(simulation)) == _ITEMS
        landings = _landings(simulation)
        assert landings < len(_ITEMS) - 1
        assert _window(simulation) == 2 + landings
        simulation.check()


def test_the_culprit_of_a_batch_is_left_out_and_fails_by_itself() -> None:
    with _deployment() as simulation:
        _create(simulation, *_at_once(apart=_CULPRIT))
        simulation.run(60)
        assert _states(simulation) == {"passed"}
        assert _steps(simulation, "merge_failed") > 1
        attempts = {
            name: len(simulation.view(simulation.item_job("alpha", name) or "").attempts)
            for name in _ITEMS
        }
        assert attempts == {**dict.fromkeys(_ITEMS, 1), "i3": 2}
        assert sorted(_merges(simulation)) == _ITEMS
        assert _landings(simulation) < len(_ITEMS)
        simulation.check()


@pytest.mark.parametrize(("kind", "call"), _FAULTS)
def test_a_merger_may_die_or_sleep_at_every_step_of_a_batch(kind: str, call: str) -> None:
    with _deployment() as simulation:
        _create(simulation, *_at_once(apart=_CULPRIT))
        nth = 1 if call == "merge_failed" else 2
        simulation.fault(kind, call, nth, seconds=_LONG)
        simulation.run(100)
        assert f"** {kind}" in "".join(each.what for each in simulation.world.trace)
        assert _states(simulation) == {"passed"}
        assert sorted(_merges(simulation)) == _ITEMS
        simulation.check()


@pytest.mark.parametrize("call", ["read_merges", "git_land"])
def test_a_call_of_a_batch_may_lose_its_answer(call: str) -> None:
    with _deployment() as simulation:
        _create(simulation, *_at_once(apart=_CULPRIT))
        simulation.fault("lose_reply", call, nth=2)
        simulation.run(60)
        assert _states(simulation) == {"passed"}
        assert sorted(_merges(simulation)) == _ITEMS
        simulation.check()


@pytest.mark.parametrize("verb", ["cancel", "reset"])
def test_work_that_is_not_wanted_any_more_is_left_out_of_a_batch(verb: str) -> None:
    """A person comes while the merged tree of the batch is verified."""
    with _deployment() as simulation:
        _create(simulation, *_at_once())
        simulation.fault("slow", "merge_verified", nth=2, seconds=4)
        _run_until(simulation, "merge_verified", 2)
        last = _member(simulation)
        job = simulation.item_job("alpha", last) or ""
        if verb == "cancel":
            simulation.cancel(job)
        else:
            simulation.fleet.loops.reset("alpha", last)
        simulation.run(60)
        merged = [each for each in _ITEMS if each != last or verb == "reset"]
        assert sorted(_merges(simulation)) == merged
        attempts = [
            trailer
            for each in simulation.world.repositories.model("repo").commits.values()
            if (trailer := each.trailers.get(ATTEMPT_TRAILER))
        ]
        assert any(each.startswith(job) for each in attempts), "it was part of a batch"
        simulation.check()


def test_a_rollback_shuts_out_a_batch_that_is_being_verified() -> None:
    with _deployment() as simulation:
        _create(simulation, *_at_once())
        simulation.fault("slow", "merge_verified", nth=2, seconds=6)
        _run_until(simulation, "merge_verified", 2)
        first = _merges(simulation)[0]
        simulation.fleet.loops.roll_back("alpha", item=first)
        simulation.run(60)
        assert _states(simulation) == {"passed"}
        assert sorted(_merges(simulation)) == sorted([*_ITEMS, first])
        simulation.check()


# -- groups ---------------------------------------------------------------------------------------


def test_items_whose_files_are_apart_are_merged_beside_each_other() -> None:
    with _deployment() as simulation:
        _create(simulation, *_at_once(declared=True))
        simulation.run(60)
        assert _states(simulation) == {"passed"}
        assert sorted(_merges(simulation)) == _ITEMS
        waited = [each for each in simulation.world.trace if "no_slot" in each.answer]
        assert waited == [], "no merge waited for another one"
        steps = [each.what.split()[0] for each in simulation.world.trace]
        begun = [each for each in steps if each in ("merge_fenced", "merge_landed")]
        assert begun[:2] == ["merge_fenced"] * 2, "they are made at once"
        simulation.check()


def test_what_was_verified_beside_other_groups_lands_without_being_verified_again() -> None:
    with _deployment() as simulation:
        _create(simulation, *_at_once(declared=True))
        simulation.run(60)
        refused = sum(
            each.what == "git_land" and each.answer == "None" for each in simulation.world.trace
        )
        assert refused > 0, "somebody was first"
        assert _steps(simulation, "merge_fenced") == len(_ITEMS), "nobody looks twice"
        simulation.check()


def test_what_changes_undeclared_files_is_verified_again_with_what_was_merged_meanwhile() -> None:
    """Given two items that change the same file and only say which other ones they change."""
    with _deployment() as simulation:
        items = [make_change(name, seconds=1, slow=True, touches=["x"]) for name in ("a", "b", "c")]
        for each in items:
            each["touches"] = [f"alpha/items/{each['id']}"]
        _create(simulation, *items)
        simulation.run(60)
        assert _states(simulation) == {"passed"}
        attempts = [
            len(simulation.view(simulation.item_job("alpha", name) or "").attempts)
            for name in ("a", "b", "c")
        ]
        assert max(attempts) > 1, "a conflict, which is corrected"
        simulation.check()


@pytest.mark.parametrize(
    ("kind", "call"),
    [("freeze_before", "git_land"), ("crash_after", "git_land")],
)
def test_a_merger_of_a_group_may_die_or_sleep(kind: str, call: str) -> None:
    with _deployment() as simulation:
        _create(simulation, *_at_once(declared=True))
        simulation.fault(kind, call, 1, seconds=_LONG)
        simulation.run(100)
        assert _states(simulation) == {"passed"}
        assert sorted(_merges(simulation)) == _ITEMS
        simulation.check()
