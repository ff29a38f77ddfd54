"""Scripted traces of loops in a repository: merges, takeovers and rollbacks at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mulligan.tasks.ports.repositories import ATTEMPT_TRAILER, ROLLBACK_TRAILER, Fence
from simulation.faults import PUSH
from simulation.loop_scenario import PUSH_CALLS, make_change, make_loop
from simulation.repositories import Commit
from simulation.simulation import Simulation

#: Longer than a lease, which lasts 10 seconds.
_LONG = 25.0
#: From the base of an item's first attempt to its settlement. A step has no effect of its own, so
#: that only for calls it matters whether a process dies before or after it.
_STEPS = (
    ("base_checked", "before"),
    ("git_save", "after"),
    ("begin_merge", "after"),
    ("merge_begun", "before"),
    ("git_take_fence", "after"),
    ("merge_fenced", "before"),
    ("merge_verified", "before"),
    ("git_land", "before"),
    ("git_land", "after"),
    ("merge_landed", "before"),
    ("store_result", "after"),
    ("result_stored", "before"),
    ("settle", "before"),
    ("settle", "after"),
)
_ROLLBACK_STEPS = (
    ("rollback_fenced", "before"),
    ("git_land", "before"),
    ("rollback_landed", "before"),
    ("write_loop", "after"),
    ("rollback_written", "before"),
)


def _deployment(**options: Any) -> Simulation:
    return Simulation(
        **{"planners": 1, "repositories": 1, "workers": 3, "loop_slots": 12} | options
    )


def _create(simulation: Simulation, *items: Any, name: str = "alpha", **config: Any) -> None:
    options = {"repo": "repo", "concurrency": 10, **config}
    simulation.fleet.loops.create(make_loop(name, *items, **options))


def _states(simulation: Simulation, loop: str = "alpha") -> dict[str, str]:
    return simulation.world.checker.loops.states(loop)


def _branch(simulation: Simulation, loop: str = "alpha") -> Sequence[Commit]:
    """Return the commits on a loop's branch, the newest first."""
    model = simulation.world.repositories.model("repo")
    tip = model.tip(f"mulligan/{loop}")
    return model.line(tip) if tip else []


def _merges(simulation: Simulation, loop: str = "alpha") -> list[str]:
    """Return the items that were merged, the first one first."""
    found = [each for each in _branch(simulation, loop) if ATTEMPT_TRAILER in each.trailers]
    return [each.subject.partition(":")[0] for each in reversed(found)]


def _rollbacks(simulation: Simulation, loop: str = "alpha") -> int:
    return sum(ROLLBACK_TRAILER in each.trailers for each in _branch(simulation, loop))


def _on_branch(simulation: Simulation, loop: str = "alpha") -> list[str]:
    return simulation.world.checker.repositories.merged_items(loop)


# -- one merge ------------------------------------------------------------------------------------


def test_items_are_merged_one_after_the_other_and_conflicts_are_resolved() -> None:
    with _deployment() as simulation:
        _create(
            simulation,
            make_change("a", touches=["x"]),
            make_change("b", touches=["x"], scores=[40, 90]),
            make_change("c", "a"),
        )
        simulation.run(30)
        assert set(_states(simulation).values()) == {"passed"}
        assert _merges(simulation) == ["a", "c", "b"]
        simulation.check()


@pytest.mark.parametrize(("call", "when"), _STEPS)
@pytest.mark.parametrize("kind", ["crash", "freeze"])
def test_a_worker_may_die_or_sleep_at_every_step_of_a_merge(
    call: str, when: str, kind: str
) -> None:
    """Another worker takes over. The first one may wake up and go on."""
    with _deployment() as simulation:
        # The second item meets what the first one merged, so that it is verified again.
        _create(simulation, make_change("a", seconds=0.5), make_change("b", seconds=1))
        # Only the second merge is verified again, and each item is stored twice before.
        nth = {"merge_verified": 1, "store_result": 4, "result_stored": 4}.get(call, 2)
        simulation.fault(f"{kind}_{when}", call, nth, seconds=_LONG)
        simulation.run(45)
        assert f"** {kind}_{when}" in "".join(each.what for each in simulation.world.trace)
        assert _states(simulation) == {"a": "passed", "b": "passed"}
        assert sorted(_merges(simulation)) == ["a", "b"]
        simulation.check()


@pytest.mark.parametrize("call", ["git_land", "git_take_fence", "git_begin_branch", "git_commit"])
@pytest.mark.parametrize("kind", ["lose_request", "lose_reply"])
def test_a_repository_may_not_be_reached_at_any_call_or_lose_its_answer(
    call: str, kind: str
) -> None:
    with _deployment() as simulation:
        _create(simulation, make_change("a"), make_change("b"))
        simulation.fault(kind, call, nth=2)
        simulation.run(30)
        assert _states(simulation) == {"a": "passed", "b": "passed"}
        assert sorted(_merges(simulation)) == ["a", "b"]
        simulation.check()


def test_a_merger_that_wakes_after_its_takeover_lands_nothing() -> None:
    """It was sure of its lease just before it fell asleep, so that only the fence stops it."""
    with _deployment() as simulation:
        _create(simulation, make_change("a"))
        simulation.fault("freeze_before", "git_land", seconds=_LONG)
        simulation.run(60)
        lands = [each for each in simulation.world.trace if each.what == "git_land"]
        assert [each.answer == "None" for each in lands] == [False, True]
        assert lands[0].process != lands[1].process
        assert _states(simulation) == {"a": "passed"}
        assert _merges(simulation) == ["a"]
        simulation.check()


def test_a_merger_that_wakes_during_its_takeover_hinders_nobody() -> None:
    """Both take the fence again and again, but one of them has the lease."""
    with _deployment() as simulation:
        _create(simulation, make_change("a"), make_change("b"))
        simulation.fault("freeze_before", "git_land", seconds=14)
        simulation.fault("slow", "merge_fenced", nth=3, seconds=6)
        simulation.run(90)
        assert _states(simulation) == {"a": "passed", "b": "passed"}
        assert sorted(_merges(simulation)) == ["a", "b"]
        simulation.check()


def test_ten_attempts_at_once_in_each_of_two_loops_lose_nothing() -> None:
    with _deployment(workers=5, slots=4, loop_slots=20) as simulation:
        for loop in ("alpha", "beta"):
            items = [
                make_change(f"i{n}", loop=loop, touches=["x"] if n % 3 == 0 else [])
                for n in range(10)
            ]
            _create(simulation, *items, name=loop)
        simulation.run(120)
        for loop in ("alpha", "beta"):
            assert set(_states(simulation, loop).values()) == {"passed"}
            assert sorted(_merges(simulation, loop)) == sorted(f"i{n}" for n in range(10))
        simulation.check()


def test_work_that_passes_alone_but_not_with_what_was_merged_is_done_again() -> None:
    with _deployment() as simulation:
        _create(simulation, make_change("a", seconds=0.5), make_change("b", apart=["a"]))
        simulation.run(60)
        assert _states(simulation) == {"a": "passed", "b": "passed"}
        b = simulation.view(simulation.item_job("alpha", "b") or "")
        assert [each.verdict.success for each in b.attempts if each.verdict] == [False, True]
        simulation.check()


def test_conflicts_alone_do_not_use_up_the_attempts_of_an_item() -> None:
    """Each time an item is about to be merged, others have changed the same file."""
    with _deployment(workers=6) as simulation:
        others = [make_change(f"i{n}", touches=["x"], seconds=0.5 + 4.7 * n) for n in range(5)]
        _create(simulation, *others, make_change("z", touches=["x"], seconds=4), max_attempts=2)
        simulation.run(90)
        assert set(_states(simulation).values()) == {"passed"}
        jobs = [simulation.item_job("alpha", item) or "" for item in _states(simulation)]
        assert max(len(simulation.view(job).attempts) for job in jobs) > 3
        simulation.check()


# -- people come between --------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["stop", "reset", "skip", "cancel"])
def test_a_person_may_come_between_landing_and_storing_the_result(verb: str) -> None:
    with _deployment() as simulation:
        _create(simulation, make_change("a"), make_change("b", "a"))
        simulation.fault("slow", "merge_landed", seconds=5)
        simulation.run(4)
        assert _merges(simulation) == ["a"]
        loops = simulation.fleet.loops
        if verb == "stop":
            loops.move("alpha", "stop")
        elif verb == "reset":
            loops.reset("alpha", "a")
        elif verb == "skip":
            loops.skip("alpha", "a")
        else:
            simulation.cancel(simulation.item_job("alpha", "a") or "")
        simulation.run(20)
        if verb == "stop":
            loops.move("alpha", "start")
        elif verb == "cancel":
            assert _states(simulation)["a"] == "failed"
            loops.reset("alpha", "a")
        simulation.run(40)
        # The work is found on the branch, and is not done again.
        assert _states(simulation)["a"] == ("skipped" if verb == "skip" else "passed")
        assert _states(simulation)["b"] == "passed"
        assert _merges(simulation) == ["a", "b"]
        assert sum(simulation.world.providers.calls.values()) == 2
        simulation.check()


def test_a_rollback_between_landing_and_settling_is_the_last_word() -> None:
    with _deployment() as simulation:
        _create(simulation, make_change("a"))
        simulation.fault("crash_before", "merge_landed")
        simulation.run(4)
        assert _merges(simulation) == ["a"]
        simulation.fleet.loops.roll_back("alpha", item="a")
        simulation.run(60)
        assert _rollbacks(simulation) == 1
        assert _merges(simulation) == ["a", "a"]
        assert _states(simulation) == {"a": "passed"}
        simulation.check()


@pytest.mark.parametrize("verb", ["stop", "reset", "skip", "cancel"])
def test_work_that_is_not_wanted_any_more_is_not_merged(verb: str) -> None:
    """A person comes while the merged tree is verified."""
    with _deployment() as simulation:
        _create(simulation, make_change("a", seconds=0.5), make_change("b"))
        simulation.fault("slow", "merge_verified", seconds=2)
        simulation.run(3)
        assert _merges(simulation) == ["a"]
        if verb == "stop":
            simulation.fleet.loops.move("alpha", "stop")
        elif verb == "reset":
            simulation.fleet.loops.reset("alpha", "b")
        elif verb == "skip":
            simulation.fleet.loops.skip("alpha", "b")
        else:
            simulation.cancel(simulation.item_job("alpha", "b") or "")
        simulation.run(30)
        assert _merges(simulation) == (["a", "b"] if verb == "reset" else ["a"])
        simulation.check()


def test_an_item_that_lost_its_workers_after_its_merge_is_merged_once() -> None:
    """A person resets it: the work is found."""
    with _deployment() as simulation:
        _create(simulation, make_change("a"))
        simulation.fault("crash_before", "merge_landed")
        for nth in (2, 3):
            simulation.fault("crash_before", "merge_fenced", nth)
        simulation.run(60)
        assert _states(simulation) == {"a": "quarantined"}
        simulation.fleet.loops.reset("alpha", "a")
        simulation.run(20)
        assert _states(simulation) == {"a": "passed"}
        assert _merges(simulation) == ["a"]
        simulation.check()


def test_a_requeued_item_that_is_merged_passes() -> None:
    """As before, but a person requeues the job: its second attempt finds nothing to do."""
    with _deployment() as simulation:
        _create(simulation, make_change("a"))
        simulation.fault("crash_before", "merge_landed")
        for nth in (2, 3):
            simulation.fault("crash_before", "merge_fenced", nth)
        simulation.run(60)
        simulation.requeue(simulation.item_job("alpha", "a") or "")
        simulation.run(30)
        assert _states(simulation) == {"a": "passed"}
        assert _merges(simulation) == ["a"]
        simulation.check()


@pytest.mark.parametrize(
    ("call", "scores"),
    [
        *((call, [90]) for call in ("store_output", "begin_merge", "store_result", "settle")),
        *((call, [40, 90]) for call in ("store_output", "begin_merge", "store_result", "settle")),
    ],
)
def test_a_redis_that_forgets_its_last_second_does_not_merge_twice(
    call: str, scores: list[float]
) -> None:
    with _deployment() as simulation:
        _create(simulation, make_change("a", scores=scores, seconds=0.3))
        simulation.fault("redis_restart", call, nth=len(scores), seconds=1)
        if call == "store_result":
            simulation.fault("redis_restart", call, nth=3, seconds=1)
        simulation.run(60)
        assert _states(simulation) == {"a": "passed"}
        assert _merges(simulation) == ["a"]
        simulation.check()


def test_what_nobody_was_asked_for_costs_nothing() -> None:
    """`b` is done already, which is found without its agent."""
    with _deployment() as simulation:
        budget = {"loop": {"tokens": 4000}, "attempt": {"tokens": 500}}  # the prompt counts, too
        _create(simulation, make_change("a", eager=["b"]), make_change("b", "a"), budget=budget)
        simulation.run(20)
        assert _states(simulation) == {"a": "passed", "b": "skipped"}
        key = "mulligan:{p00}:loop:alpha:spent"
        assert float(simulation.world.server.client.hget(key, "loop:tokens")) == 10


@pytest.mark.parametrize("call", ["git_history", "git_saved"])
def test_a_repository_that_is_away_before_the_agent_is_asked_costs_nothing(call: str) -> None:
    with _deployment() as simulation:
        budget = {"loop": {"tokens": 100}, "attempt": {"tokens": 50}}
        _create(simulation, make_change("a"), budget=budget)
        simulation.fault("repository_away", call, seconds=45)
        simulation.run(100)
        assert _states(simulation) == {"a": "passed"}
        simulation.check()


def test_a_worker_that_slept_while_it_made_a_checkout_does_not_ask_the_model() -> None:
    with _deployment() as simulation:
        _create(simulation, make_change("a"))
        simulation.fault("freeze_before", "git_saved", seconds=_LONG)
        simulation.run(60)
        assert list(simulation.world.providers.calls.values()) == [1]
        simulation.check()


@pytest.mark.parametrize("late", ["rollback_landed", "rollback_written"])
def test_an_item_that_passes_while_its_work_is_rolled_back_runs_again(late: str) -> None:
    with _deployment() as simulation:
        _create(simulation, make_change("a"))
        simulation.fault("slow", "merge_landed", seconds=9)
        simulation.fault("slow", late, seconds=12)
        simulation.run(4)
        simulation.fleet.loops.roll_back("alpha", item="a")
        simulation.run(70)
        assert _merges(simulation) == ["a", "a"]
        assert _states(simulation) == {"a": "passed"}
        simulation.check()


@pytest.mark.parametrize("call", ["git_history", "git_files", *PUSH_CALLS])
def test_a_commit_that_a_person_puts_on_the_branch_during_a_merge_stays_there(call: str) -> None:
    with _deployment() as simulation:
        # The second merge is verified again.
        _create(simulation, make_change("a", seconds=0.5), make_change("b", seconds=1))
        simulation.world.scheduler.run(
            seconds=5, until=lambda: simulation.calls("merge_fenced") == 2
        )
        simulation.fault(PUSH, call)
        simulation.run(30)
        assert [each.subject for each in _branch(simulation)].count("Change docs") == 1
        assert _states(simulation) == {"a": "passed", "b": "passed"}
        assert _merges(simulation) == ["a", "b"]
        simulation.check()


# -- rollbacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "when"), _ROLLBACK_STEPS)
@pytest.mark.parametrize("kind", ["crash", "freeze"])
def test_a_rollback_is_made_once_whoever_dies_or_sleeps(call: str, when: str, kind: str) -> None:
    with _deployment(repositories=2) as simulation:
        _create(simulation, make_change("a"), make_change("b", "a"))
        simulation.run(20)
        for process in ("repository1", "repository2"):
            simulation.fault(f"{kind}_{when}", call, seconds=_LONG, process=process)
        simulation.fleet.loops.roll_back("alpha", place=0.99)
        simulation.run(45)
        assert _rollbacks(simulation) == 1
        assert _merges(simulation) == ["a", "b", "a", "b"]
        assert _states(simulation) == {"a": "passed", "b": "passed"}
        simulation.check()


@pytest.mark.parametrize("call", ["git_take_fence", "git_commit", "git_land"])
@pytest.mark.parametrize("kind", ["lose_reply", "repository_away"])
def test_a_rollback_survives_a_repository_that_is_away(call: str, kind: str) -> None:
    with _deployment() as simulation:
        _create(simulation, make_change("a"), make_change("b"))
        simulation.run(12)
        simulation.fault(kind, call, seconds=8, process="repository1")
        simulation.fleet.loops.roll_back("alpha", item="a")
        simulation.run(30)
        assert _rollbacks(simulation) == 1
        assert sorted(_merges(simulation)) == ["a", "a", "b"]
        assert _states(simulation) == {"a": "passed", "b": "passed"}
        simulation.check()


def test_a_rollback_that_was_refused_is_not_made_later() -> None:
    """One process sleeps before it begins; when it wakes up, nothing is in its way any more."""
    with _deployment(repositories=2) as simulation:
        _create(simulation, make_change("a", touches=["x"]), make_change("b", touches=["x"]))
        simulation.run(20)
        simulation.fault("freeze_before", "git_take_fence", seconds=_LONG)
        simulation.fleet.loops.roll_back("alpha", item="a")
        simulation.run(6)
        assert _rollbacks(simulation) == 0
        simulation.fleet.loops.move("alpha", "stop")
        simulation.fleet.loops.roll_back("alpha", item="b")
        simulation.run(40)
        assert _rollbacks(simulation) == 1
        assert _on_branch(simulation) == ["a"]
        simulation.check()


def test_work_in_flight_does_not_bring_back_what_was_rolled_back() -> None:
    """Given b, which does not depend on a, but was begun with its work."""
    with _deployment() as simulation:
        _create(simulation, make_change("a"), make_change("b", seconds=12), concurrency=1)
        simulation.run(6)
        assert _states(simulation) == {"a": "passed", "b": "running"}
        simulation.fleet.loops.move("alpha", "pause")
        simulation.fleet.loops.roll_back("alpha", item="a")
        simulation.run(25)
        assert _on_branch(simulation) == ["b"]
        simulation.fleet.loops.move("alpha", "resume")
        simulation.run(30)
        assert _states(simulation) == {"a": "passed", "b": "passed"}
        simulation.check()


@pytest.mark.parametrize("seconds", [0, 4, 8, 12])
@pytest.mark.parametrize("target", [{"item": "a"}, {"place": 0.99}])
def test_work_that_depends_on_what_was_rolled_back_is_merged_after_it(
    target: dict[str, Any], seconds: float
) -> None:
    """Also if it could land after the rollback, before the states are written."""
    with _deployment() as simulation:
        _create(simulation, make_change("a"), make_change("b", "a", seconds=6))
        simulation.run(6)
        assert _states(simulation) == {"a": "passed", "b": "running"}
        simulation.fault("slow", "rollback_landed", seconds=seconds)
        simulation.fleet.loops.roll_back("alpha", **target)
        simulation.run(80)
        assert _rollbacks(simulation) == 1
        assert _merges(simulation) == ["a", "a", "b"]
        assert _states(simulation) == {"a": "passed", "b": "passed"}
        simulation.check()


def test_a_rollback_takes_out_work_that_was_delivered_and_came_back_from_upstream() -> None:
    """The branch is delivered to `main`, somebody goes on there, and that is merged again."""
    with _deployment() as simulation:
        loops = simulation.fleet.loops
        _create(simulation, make_change("a"), sync="main", deliver={"fast_forward": "main"})
        simulation.run(10)
        model = simulation.world.repositories.model("repo")
        assert model.tip("main") == model.tip("mulligan/alpha")
        loops.push("alpha", "main", "docs")
        loops.inject("alpha", make_loop("alpha", make_change("b", "a")))
        simulation.run(10)
        assert _merges(simulation) == ["a", "b"]
        assert "docs" in model.files(_branch(simulation)[0].id)
        loops.move("alpha", "stop")
        loops.roll_back("alpha", place=0.99)
        simulation.run(10)
        files = model.files(_branch(simulation)[0].id)
        assert _on_branch(simulation) == []
        assert "docs" in files
        simulation.check()


@pytest.mark.parametrize("already_done", ["skip", "refuse"])
@pytest.mark.parametrize("at", [30.0, 22.0])
def test_a_rollback_to_before_a_rollback_brings_back_what_that_undid(
    already_done: str, at: float
) -> None:
    """Also if the items run again, or have passed again, at that time."""
    with _deployment() as simulation:
        _create(
            simulation, make_change("a", seconds=3), make_change("b"), already_done=already_done
        )
        simulation.run(15)
        first = {each.id: each for each in _branch(simulation)}
        simulation.fleet.loops.roll_back("alpha", place=0.99)
        simulation.run(at - 15)
        assert _rollbacks(simulation) == 1
        history = _branch(simulation)
        newest = next(i for i, each in enumerate(history) if each.id in first)
        simulation.fleet.loops.roll_back("alpha", place=newest / len(history) + 0.01)
        simulation.run(60)
        assert _rollbacks(simulation) == 2
        assert _states(simulation) == {"a": "passed", "b": "passed"}
        assert _on_branch(simulation) == ["a", "b"]
        simulation.check()


def test_what_was_done_by_work_that_is_rolled_back_is_done_again() -> None:
    """`b` was skipped because `a` had done its work, too."""
    with _deployment() as simulation:
        _create(simulation, make_change("a", eager=["b"]), make_change("b", "a"))
        simulation.run(15)
        assert _states(simulation) == {"a": "passed", "b": "skipped"}
        simulation.fleet.loops.roll_back("alpha", item="a")
        simulation.run(1.5)
        assert _states(simulation)["b"] == "pending"
        simulation.run(30)
        assert _states(simulation) == {"a": "passed", "b": "skipped"}
        simulation.check()


def test_the_slot_of_a_merge_is_free_when_its_worker_dies_and_its_loop_is_stopped() -> None:
    with _deployment() as simulation:
        _create(simulation, make_change("a"))
        simulation.fault("crash_after", "store_result", nth=2)
        simulation.run(4)
        simulation.fleet.loops.move("alpha", "stop")
        simulation.run(30)
        simulation.check()


# -- the checker ----------------------------------------------------------------------------------


def test_a_checker_of_repositories_that_finds_nothing_would_be_useless() -> None:
    with _deployment() as simulation:
        _create(simulation, make_change("a"), make_change("b"), make_change("c"))
        simulation.run(20)
        checker, model = simulation.world.checker, simulation.world.repositories.model("repo")
        client, tip = simulation.world.server.client, model.tip("mulligan/alpha") or ""
        client.hset("mulligan:{p00}:loop:alpha:items", "b", "failed|0|1||by nobody")
        files = {path: each for path, each in model.files(tip).items() if not path.endswith("/a")}
        twice = model.commits[tip].message
        model.refs["refs/heads/mulligan/alpha"] = new = model.make_commit(
            model.make_tree(files), (tip,), twice
        )
        process, fence = simulation.world.process("stranger"), Fence(loop="alpha", value="mine")
        for old, following in ((tip, new), (new, tip)):
            checker.repositories.landed(
                model,
                "mulligan/alpha",
                old=old,
                new=following,
                fence=fence,
                kept="mine",
                process=process,
            )
        mine = model.make_commit(model.commits[tip].tree, (), "Mine\n")
        checker.repositories.pushed(model, "mulligan/alpha", mine)
        ref = next(each for each in model.refs if "/attempts/" in each)
        del model.refs[ref]
        checker.repositories.check()
        found = "\n".join(checker.violations)
        for text in (
            "was merged 2 times",
            "after its fence was taken",
            "but looked before it took the fence",
            "which a person pushed, is not on mulligan/alpha",
            "which is not after it",
            "alpha/a passed, but its work is not on the branch",
            "alpha/b is merged, but failed",
            f"the work in {ref} is lost",
        ):
            assert text in found
