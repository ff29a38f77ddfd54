"""Views of loops and items: who works on them, the last sign of life, and whose they are."""

from __future__ import annotations

import pytest
from support.jobs import answer
from support.ledger_scenario import ScenarioMaker
from support.loops import ADA, LoopScenario, document, item

from mulligan.console.http.models.loop_models import item_rows
from mulligan.tasks.loops import change
from mulligan.tasks.loops.change import NoSuchLoop
from mulligan.tasks.loops.registry import list_loops
from mulligan.tasks.loops.view import NoSuchItem, view_item, view_loop, why


@pytest.fixture
def loops(new_fake_scenario: ScenarioMaker) -> LoopScenario:
    return LoopScenario(new_fake_scenario(), slots=3)


def holders(loops: LoopScenario, name: str = "alpha") -> list[tuple[str, str, int]]:
    view = view_loop(loops.context, name)
    return [(each.item, each.worker, each.attempt) for each in view.holders]


def test_holders_are_the_workers_whose_leases_run(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b"), item("c"))
    loops.create(item("x"), name="beta")
    loops.plan()
    assert holders(loops) == []  # admitted, but nobody has claimed them
    loops.scenario.claim(loops.item("a").job_id, worker="w1")
    second = loops.scenario.claim(loops.item("b").job_id, worker="w2")
    assert sorted(holders(loops)) == [("a", "w1", 1), ("b", "w2", 1)]
    assert holders(loops, "beta") == []
    loops.scenario.ledger.store_output(second.lease, answer(), verifications=[0])
    assert holders(loops) == [("a", "w1", 1)]  # slow verifiers check b, which keeps its slot
    assert view_loop(loops.context, "alpha").fleet_state.live_of_loop == 3


def test_the_last_heartbeat_is_that_of_what_runs_else_the_planner_s(loops: LoopScenario) -> None:
    loops.create(item("a"))
    assert view_loop(loops.context, "alpha").last_heartbeat is None
    loops.plan()
    admitted_at = loops.item("a").since
    assert view_loop(loops.context, "alpha").last_heartbeat == admitted_at
    loops.scenario.advance(100)
    loops.plan()  # a planner that lives says nothing about workers
    assert view_loop(loops.context, "alpha").last_heartbeat == admitted_at
    claim = loops.claim("a")
    claimed = view_loop(loops.context, "alpha").last_heartbeat
    assert claimed is not None
    assert claimed >= admitted_at + 100
    loops.scenario.advance(20)
    loops.scenario.ledger.renew([claim.lease])
    renewed = view_loop(loops.context, "alpha").last_heartbeat
    assert renewed is not None
    assert renewed >= claimed + 20


def test_an_item_whose_job_waits_is_not_shown_as_running(loops: LoopScenario) -> None:
    """Given a loop of two items at once, when both wait for a paused type, then others run."""
    slow = {"task_type": "slow"}
    loops.create(item("a", **slow), item("b", **slow), item("c"), item("d"), concurrency=2)
    loops.plan()
    loops.scenario.ledger.pause("task_type:slow")
    for name in ("a", "b"):
        loops.refusal(name)
    loops.plan()
    for found in (view_loop(loops.context, "alpha").summary, *list_loops(loops.context)):
        assert (found.counts, found.running) == ({"waiting": 2, "running": 2}, [])
    for name in ("c", "d"):
        loops.claim(name)
    view, (row,) = view_loop(loops.context, "alpha"), list_loops(loops.context)
    for found in (view.summary, row):
        assert (found.counts, found.running) == ({"waiting": 2, "running": 2}, ["c", "d"])
    assert [each.id for each in item_rows(view, state="waiting")] == ["a", "b"]
    assert view_item(loops.context, "alpha", "a").state == "waiting"


def test_the_slots_are_those_that_a_person_set(loops: LoopScenario) -> None:
    loops.create(item("a"))
    assert view_loop(loops.context, "alpha").slots == 3
    change.set_slots(loops.context, 7)
    assert view_loop(loops.context, "alpha").slots == 7


def test_only_loops_that_could_use_a_slot_compete(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("x"), item("y"), name="beta", concurrency=1)
    loops.plan("beta")
    loops.create(item("g"), name="gamma")
    loops.plan("gamma")
    loops.create(item("a"))
    fleet = view_loop(loops.context, "alpha").fleet_state
    assert (fleet.slots, fleet.live, fleet.live_of_loop) == (1, 1, 0)
    assert [each.loop for each in fleet.others] == ["gamma"]  # beta runs as much as it may


def test_an_item_has_its_spec_its_job_and_its_reason(loops: LoopScenario) -> None:
    loops.create(item("a", title="First"), item("b", "a"))
    loops.plan()
    loops.claim("a")
    first = view_item(loops.context, "alpha", "a")
    assert (first.spec.title, first.record.state, first.why.cause) == ("First", "running", "runs")
    assert first.job is not None
    assert first.job.id == loops.item("a").job_id
    second = view_item(loops.context, "alpha", "b")
    assert (second.job, second.record.runs, second.why.cause) == (None, 0, "dependency")


def test_a_reset_item_has_no_job_until_it_runs_again(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.fails("a")
    failed = view_item(loops.context, "alpha", "a")
    assert failed.job is not None
    assert failed.job.state == "escalated"
    change.reset(loops.context, "alpha", "a", ADA)
    assert view_item(loops.context, "alpha", "a").job is None


def test_what_does_not_exist_is_named(loops: LoopScenario) -> None:
    with pytest.raises(NoSuchLoop, match="there is no loop 'alpha'"):
        view_loop(loops.context, "alpha")
    loops.create(item("a"))
    with pytest.raises(NoSuchItem, match="the loop 'alpha' has no item 'z'"):
        view_item(loops.context, "alpha", "z")


def test_a_tenant_sees_its_own_loops_and_no_names_of_others(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("x"), item("y"), name="beta", priority=1)
    loops.plan("beta")
    change.create_loop(loops.context, document(item("a")), tenant="acme", by="ada")
    loops.move("start")
    loops.plan()
    with pytest.raises(NoSuchLoop):
        view_loop(loops.context, "alpha", tenant="other")
    reason = why(loops.context, "alpha", "a", tenant="acme")
    assert reason.text.endswith("and another loop with priority 1 goes first")
    assert "beta" not in reason.text
