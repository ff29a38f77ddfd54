"""The ledger's contract: what loops have to do with each other. Locks, events, waits, decisions."""

from __future__ import annotations

import itertools
import re

import pytest
from support.ledger_scenario import Scenario
from support.loops import ADA, LoopScenario, document, hint, item

from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.loops import admission
from mulligan.policies.loops.loop import ItemRecord, LoopChange
from mulligan.policies.loops.why import Reason
from mulligan.tasks.coordination import orders
from mulligan.tasks.coordination.deadlocks import EVENT_RETENTION, run_coordination
from mulligan.tasks.coordination.view import view_coordination
from mulligan.tasks.loops import change
from mulligan.tasks.loops.change import LoopConflict
from mulligan.tasks.loops.plan import decide
from mulligan.tasks.loops.view import why
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import LoopReading
from mulligan.workers.ledger import coordination_steps


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    return LoopScenario(scenario)


def decisions(loops: LoopScenario, *kinds: str) -> list[tuple[str, str, str]]:
    """Return what was decided, the newest last, as (kind, item, text)."""
    found = view_coordination(loops.context).decisions
    return [(d.kind, d.name, d.text) for d in reversed(found) if not kinds or d.kind in kinds]


def held(loops: LoopScenario) -> dict[str, tuple[str, ...]]:
    return {each.name: each.files for each in loops.scenario.ledger.coordination().locks}


# -- locks -----------------------------------------------------------------------------------------


def test_items_with_the_same_files_run_one_after_the_other(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["src/**"]), item("b", touches=["src/cart.py"]), item("c"))
    assert loops.admitted() == ["a", "c"]
    assert held(loops) == {"alpha/a": ("src/**",)}
    loops.passes("a")
    assert loops.admitted() == ["b"]
    assert held(loops) == {"alpha/b": ("src/cart.py",)}


def test_items_of_other_loops_wait_for_files_too(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["x.py", "y.py"]), name="alpha")
    loops.create(item("b", touches=["y.py", "z.py"]), name="beta")
    loops.plan("alpha")
    assert [*held(loops)] == ["alpha/a"]
    assert loops.states("beta") == {"b": "pending"}
    loops.plan("beta")
    assert [*held(loops)] == ["alpha/a"]
    loops.passes("a")
    loops.plan("alpha")  # planning any loop gives the free slot and the files to all of them
    assert [*held(loops)] == ["beta/b"]


def test_loops_of_two_tenants_without_repositories_have_files_of_their_own(
    loops: LoopScenario,
) -> None:
    for name, tenant in (("alpha", "one"), ("beta", "two")):
        change.create_loop(
            loops.context, document(item("a", touches=["x.py"]), name=name), tenant=tenant, by="ada"
        )
        loops.move("start", name)
        loops.plan(name)
    assert [*held(loops)] == ["alpha/a", "beta/a"]


def test_a_denial_is_recorded_once_with_its_reason(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["x.py"]), item("b", touches=["x.py"]))
    for _ in range(3):
        loops.plan()
    assert decisions(loops, "denied") == [
        ("denied", "alpha/b", "it waits for x.py: alpha/a changes it")
    ]
    assert [each[1] for each in decisions(loops, "slot")] == ["alpha/a"]


def test_an_item_without_a_slot_keeps_its_files_for_a_while(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["x.py"]), item("b", touches=["x.py"]))
    loops.plan()
    claim = loops.claim("a")
    ledger = loops.scenario.ledger
    ledger.requeue(claim.lease, delay=3600.0, detail="its provider is away")
    assert loops.admitted() == []
    loops.scenario.advance(599)
    assert loops.admitted() == []
    assert [*held(loops)] == ["alpha/a"]
    loops.scenario.advance(2)
    assert loops.admitted() == ["b"]
    assert [*held(loops)] == ["alpha/b"]
    assert [each[1] for each in decisions(loops, "lapsed")] == ["alpha/a"]


def test_files_that_could_not_be_compared_in_one_plan_are_in_the_next_ones(
    loops: LoopScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a limit of two for each plan, and one pattern that costs four with three others."""
    monkeypatch.setattr(admission, "MOST_COMPARED", 2)
    monkeypatch.setattr(admission, "LEAST_COMPARED", 2)
    for name in "ab":
        loops.create(item(name, touches=[f"**/*/{name}{n}" for n in range(3)]), name=f"loop-{name}")
    assert loops.admitted("loop-a") == ["a"]
    for _ in range(2):
        assert loops.admitted("loop-b") == []
        assert decisions(loops, "denied") == []
        assert str(hint("loop-b")) in loops.scenario.swept_entries()
    assert loops.admitted("loop-b") == ["b"]


def test_each_grant_has_a_new_token(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["x.py"]), item("b", touches=["x.py"]))
    loops.plan()
    (first,) = loops.read().fleet.locks
    loops.passes("a")
    loops.plan()
    (second,) = loops.read().fleet.locks
    assert first.token
    assert second.token
    assert first.token != second.token


def test_two_planners_grant_one_file_once(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["x.py"]), name="alpha")
    loops.create(item("b", touches=["x.py"]), name="beta")
    first, second = (decide(loops.context, loops.read(name)) for name in ("alpha", "beta"))
    ledger = loops.scenario.ledger
    assert not isinstance(ledger.write_loop(first), str)
    assert ledger.write_loop(second) == "stale"
    loops.plan("beta")
    assert len(held(loops)) == 1


def test_a_file_that_an_item_was_seen_to_change_is_declared_from_then_on(
    loops: LoopScenario,
) -> None:
    loops.create(item("a", touches=["x.py"]), item("b", touches=["y.py"]), concurrency=2)
    write = decide(loops.context, loops.read())
    loops.plan()
    record, ledger = loops.item("a"), loops.scenario.ledger
    files = FileLock(
        job_id=record.job_id,
        loop="alpha",
        item="a",
        space=loops.loop().space,
        files=("x.py", "/y.py"),
    )
    again = [ledger.declare_files(files, seen=["/y.py"], new=["/y.py"], text="…") for _ in "12"]
    assert again == [True, False]
    assert held(loops) == {"alpha/a": ("x.py", "/y.py"), "alpha/b": ("y.py",)}  # both go on
    assert loops.read().snapshot.seen_files == {"a": ("/y.py",)}
    assert ledger.write_loop(write) == "stale"
    loops.passes("b")
    change.reset(loops.context, "alpha", "b", ADA)
    assert loops.admitted() == []  # b waits from now on
    loops.passes("a")
    assert loops.admitted() == ["b"]


def test_files_are_free_when_a_loop_stops_or_is_deleted(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["x.py"]))
    loops.plan()
    loops.move("stop")
    assert held(loops) == {}
    loops.move("start")
    loops.plan()
    loops.move("stop")
    change.delete(loops.context, "alpha", ADA)
    assert held(loops) == {}


# -- waits for others ------------------------------------------------------------------------------


def test_an_item_waits_for_one_of_another_loop(loops: LoopScenario) -> None:
    loops.create(item("a", "beta/b"), name="alpha")
    assert loops.admitted("alpha") == []
    assert (loops.loop().state, loops.loop().reason) == (
        "waiting",
        "a waits for beta/b (which does not exist)",
    )
    loops.create(item("b"), name="beta")
    assert loops.loop().dirty > loops.loop().planned  # what it says is not true any more
    loops.plan("alpha")
    assert loops.loop().reason == "a waits for beta/b"
    loops.plan("beta")
    loops.scenario.ledger.stamp([])
    loops.passes("b", name="beta")
    assert loops.loop("alpha").dirty > loops.loop("alpha").planned  # it is planned by itself
    assert loops.admitted("alpha") == ["a"]
    assert loops.loop().state == "running"


def test_loops_of_other_tenants_are_not_waited_for(loops: LoopScenario) -> None:
    change.create_loop(loops.context, document(item("b"), name="beta"), tenant="two", by="ada")
    loops.create(item("a", "beta/b"), name="alpha")
    loops.plan("alpha")
    assert loops.loop().reason == "a waits for beta/b (which does not exist)"


def test_an_event_is_kept_until_who_waits_for_it_begins(loops: LoopScenario) -> None:
    loops.create(item("make", emits=["api-ready"]), name="alpha")
    loops.plan("alpha")
    loops.passes("make")
    loops.plan("alpha")
    loops.create(item("use", waits_for=["api-ready"]), name="beta")
    loops.create(item("use", waits_for=["api-ready"]), name="gamma")
    assert loops.admitted("beta") == ["use"]
    assert loops.admitted("gamma") == ["use"]
    # Each item takes it once: its second run does not wait for a second one.
    (event,) = loops.scenario.ledger.coordination().events
    assert (event.name, event.by) == ("api-ready", ("alpha/make",))
    later = loops.scenario.ledger.now() + EVENT_RETENTION
    assert loops.scenario.ledger.forget_events(before=later) == 0  # it stays as long as its loop
    loops.move("stop", "alpha")
    change.delete(loops.context, "alpha", ADA)
    loops.fails("use", name="beta")
    change.reset(loops.context, "beta", "use", ADA)
    assert loops.admitted("beta") == ["use"]


def test_an_event_wakes_the_loops_that_wait_for_it(loops: LoopScenario) -> None:
    loops.create(item("use", waits_for=["api-ready"]), name="beta")
    loops.plan("beta")
    assert loops.loop("beta").reason == "use waits for the event api-ready"
    assert orders.emit(loops.context, "api-ready", tenant="", by="ada")
    assert not orders.emit(loops.context, "api-ready", tenant="", by="ada")
    assert loops.loop("beta").dirty > loops.loop("beta").planned
    assert loops.admitted("beta") == ["use"]


def test_the_event_of_an_item_that_runs_again_is_withdrawn(loops: LoopScenario) -> None:
    loops.create(item("make", emits=["api-ready"]), name="alpha")
    loops.plan("alpha")
    loops.passes("make")
    loops.plan("alpha")
    loops.create(item("use", waits_for=["api-ready"]), name="beta")
    change.reset(loops.context, "alpha", "make", ADA)
    assert loops.scenario.ledger.coordination().events == []
    assert loops.admitted("beta") == []  # also before the loop that gave it off is planned
    loops.plan("alpha")
    assert loops.item("make").state == "running"
    loops.passes("make")
    loops.plan("alpha")
    assert [e.name for e in loops.scenario.ledger.coordination().events] == ["api-ready"]


def test_an_old_event_is_forgotten_unless_somebody_waits_for_it(loops: LoopScenario) -> None:
    loops.create(item("use", "other/never", waits_for=["wanted"]), name="beta")
    loops.plan("beta")
    for name in ("wanted", "unwanted"):
        orders.emit(loops.context, name, tenant="", by="ada")
    loops.scenario.advance(EVENT_RETENTION + 1)
    loops.plan("beta")
    run_coordination(loops.context)
    # `use` has it already, but has not begun: it waits for something else.
    assert [e.name for e in loops.scenario.ledger.coordination().events] == ["wanted"]


def test_the_events_of_a_loop_go_with_it(loops: LoopScenario) -> None:
    """Given a loop that is made again, when others wait for its event, then it must run first."""
    loops.create(item("make", emits=["ready", "also-by-ada"]), name="alpha")
    loops.plan("alpha")
    loops.passes("make")
    loops.plan("alpha")
    orders.emit(loops.context, "also-by-ada", tenant="", by="ada")
    loops.move("stop", "alpha")
    change.delete(loops.context, "alpha", ADA)
    (event,) = loops.scenario.ledger.coordination().events
    assert (event.name, event.by) == ("also-by-ada", ("ada",))
    loops.create(item("make", emits=["ready"]), name="alpha")
    loops.create(item("use", waits_for=["ready"]), name="beta")
    assert loops.admitted("beta") == []
    assert loops.admitted("alpha") == ["make"]
    loops.passes("make")
    loops.plan("alpha")
    assert loops.admitted("beta") == ["use"]


def test_what_a_person_gave_off_can_be_withdrawn(loops: LoopScenario) -> None:
    loops.create(item("use", waits_for=["ready"]), name="beta")
    loops.plan("beta")
    assert orders.count_waiting(loops.context, "ready", tenant="") == 1
    assert not orders.withdraw(loops.context, "ready", tenant="")
    orders.emit(loops.context, "ready", tenant="", by="ada")
    assert not orders.withdraw(loops.context, "ready", tenant="two")
    assert orders.withdraw(loops.context, "ready", tenant="")
    assert loops.admitted("beta") == []
    loops.create(item("make", emits=["ready"]), name="alpha")
    loops.plan("alpha")
    loops.passes("make")
    loops.plan("alpha")
    with pytest.raises(LoopConflict, match="withdrawn when they run again"):
        orders.withdraw(loops.context, "ready", tenant="")
    assert loops.admitted("beta") == ["use"]


def test_nobody_takes_the_place_of_the_events_of_others(
    loops: LoopScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination_steps, "MOST_SIGNALS", 2)
    context = loops.context
    for name, tenant in (("a", "one"), ("b", "two"), ("b", "two")):
        orders.emit(context, name, tenant=tenant, by="eve")
    for tenant in ("one", "two", "three"):
        with pytest.raises(LoopConflict, match="eve gave off too many events"):
            orders.emit(context, "c", tenant=tenant, by="eve")
    assert orders.emit(context, "c", tenant="two", by="ada")
    assert orders.emit(context, "d", tenant="two", by="eve", of="two")  # another one of this name
    assert orders.withdraw(context, "a", tenant="one")
    assert orders.emit(context, "c", tenant="one", by="eve")
    loops.create(item("make", emits=["made"]), name="alpha")
    loops.plan("alpha")
    loops.passes("make")
    loops.plan("alpha")
    assert "made" in [each.name for each in loops.scenario.ledger.coordination().events]


def test_a_loop_that_waits_is_found_by_what_it_waits_for_until_it_is_gone(
    loops: LoopScenario,
) -> None:
    def keys() -> list[str]:
        found = loops.scenario.ledger.calls.run("KEYS", "*{p00}:loops:waiters:*")
        return [str(each).partition("waiters:")[2] for each in found]

    loops.create(item("a", "beta/b", waits_for=["ready"]), name="alpha")
    assert sorted(keys()) == ["/beta/b", "/event:ready"]
    change.inject(loops.context, "alpha", document(item("c", waits_for=["set"])).items, ADA)
    assert sorted(keys()) == ["/beta/b", "/event:ready", "/event:set"]
    loops.move("stop", "alpha")
    change.delete(loops.context, "alpha", ADA)
    assert keys() == []


def test_a_withdrawal_that_is_refused_changes_nothing(loops: LoopScenario) -> None:
    """Given an event that ada and an item gave off, when she wants to withdraw it."""
    loops.create(item("make", emits=["ready"]))
    orders.emit(loops.context, "ready", tenant="", by="ada")
    loops.plan()
    loops.passes("make")
    loops.plan()
    with pytest.raises(LoopConflict, match="withdrawn when they run again"):
        orders.withdraw(loops.context, "ready", tenant="")
    (event,) = loops.scenario.ledger.coordination().events
    assert event.by == ("alpha/make", "ada")
    change.reset(loops.context, "alpha", "make", ADA)
    (event,) = loops.scenario.ledger.coordination().events
    assert event.by == ("ada",)


def test_an_event_of_many_items_stays_until_the_last_one_runs_again(loops: LoopScenario) -> None:
    names = [f"i{n:03}" for n in range(103)]
    made = document(*(item(name, emits=["ready"]) for name in names))
    made = made.model_copy(update={"states": dict.fromkeys(names, "passed")})
    change.create_loop(loops.context, made, by="ada")
    loops.move("start")
    loops.plan()
    (event,) = loops.scenario.ledger.coordination().events
    assert (len(event.by), event.more) == (10, 93)
    again = LoopChange(items=dict.fromkeys(names[:-1], ItemRecord()))
    change.change_loop(loops.context, "alpha", ADA, lambda _found, _now: again)
    (event,) = loops.scenario.ledger.coordination().events
    assert (event.by, event.more) == (("alpha/i102",), 0)
    change.reset(loops.context, "alpha", "i102", ADA)
    assert loops.scenario.ledger.coordination().events == []


def test_who_waits_for_items_of_a_loop_is_planned_when_it_is_deleted(loops: LoopScenario) -> None:
    loops.slots = 0
    loops.create(item("b"), name="beta")
    change.skip(loops.context, "beta", "b", ADA)
    loops.plan("beta")
    loops.create(item("a", "beta/b"), name="alpha")
    loops.plan("alpha")
    assert loops.states("alpha") == {"a": "ready"}
    late = decide(loops.context, loops.read("alpha"))
    change.delete(loops.context, "beta", ADA)
    assert loops.loop("alpha").dirty > loops.loop("alpha").planned
    assert loops.scenario.ledger.write_loop(late) == "stale"


def test_who_gives_an_event_off_is_known_until_the_loop_is_gone(loops: LoopScenario) -> None:
    ledger = loops.scenario.ledger
    loops.create(item("a", emits=["ready", "ready-2"]), item("b", emits=["ready"]), name="alpha")
    loops.create(item("a", emits=["ready"]), name="beta")
    assert ledger.event_sources("") == {"ready": ["alpha", "beta"], "ready-2": ["alpha"]}
    assert ledger.event_sources("", "ready") == {"ready": ["alpha", "beta"]}
    assert (ledger.event_sources("", "read"), ledger.event_sources("acme")) == ({}, {})
    change.inject(loops.context, "beta", document(item("c", emits=["set"])).items, ADA)
    assert ledger.event_sources("", "set") == {"set": ["beta"]}
    for name in ("alpha", "beta"):
        loops.move("stop", name)
        change.delete(loops.context, name, ADA)
    assert ledger.event_sources("") == {}


@pytest.mark.parametrize("name", ["", "two words", "x" * 81, "a/b", "…"])
def test_what_cannot_be_an_event_is_refused(loops: LoopScenario, name: str) -> None:
    with pytest.raises(BadInput):
        orders.emit(loops.context, name, tenant="", by="ada")


# -- deadlocks -------------------------------------------------------------------------------------


def test_a_deadlock_of_three_loops_is_broken_at_the_youngest(loops: LoopScenario) -> None:
    waits = {"alpha": "beta/x", "beta": "gamma/x", "gamma": "alpha/x"}
    for name, wait in waits.items():
        loops.create(item("x", wait), name=name)
        loops.scenario.advance(1)
    for name in waits:
        assert loops.admitted(name) == []
    assert run_coordination(loops.context) == 1
    assert run_coordination(loops.context) == 0  # the wait is broken already
    assert loops.admitted("gamma") == ["x"]
    (found,) = decisions(loops, "deadlock")
    assert found[1] == "gamma/x"
    assert found[2] == (
        "deadlock: alpha/x → beta/x → gamma/x → alpha/x; gamma/x is the youngest:"
        " it does not wait for alpha/x any more"
    )
    (heal,) = loops.read("gamma").snapshot.heals
    assert (heal.action, heal.parameter, heal.item) == ("escalate", "a person", "x")
    for name in ("gamma", "beta", "alpha"):
        loops.passes("x", name=name)
        for each in waits:
            loops.plan(each)
    assert {loops.loop(name).state for name in waits} == {"completed"}


def test_a_broken_wait_can_be_overruled_so_that_another_one_is_broken(
    loops: LoopScenario,
) -> None:
    loops.create(item("x", "beta/x"), name="alpha")
    loops.scenario.advance(1)
    loops.create(item("x", "alpha/x"), name="beta")
    for name in ("alpha", "beta"):
        loops.plan(name)
    run_coordination(loops.context)
    (decision,) = [d for d in view_coordination(loops.context).decisions if d.kind == "deadlock"]
    orders.overrule(loops.context, decision.id, ADA)
    assert loops.admitted("beta") == []
    run_coordination(loops.context)
    assert loops.admitted("alpha") == ["x"]
    with pytest.raises(LoopConflict, match="ada has done it"):
        orders.overrule(loops.context, decision.id, ADA)


# -- orders ----------------------------------------------------------------------------------------


def test_who_is_to_go_first_gets_the_next_slot(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("a"), item("b"), name="alpha", priority=1)
    loops.create(item("c"), name="beta", priority=9)
    loops.plan("beta")
    assert loops.item("c", "beta").state == "running"
    loops.plan("alpha")
    loops.passes("c", name="beta")
    orders.give_order(loops.context, "alpha", "b", "first", ADA)
    assert loops.admitted("alpha") == ["b"]
    assert loops.read("alpha").snapshot.orders == {}  # an order ends when the item begins
    assert decisions(loops, "order", "slot")[-1] == (
        "slot",
        "alpha/b",
        "it got a slot: a person lets it go first",
    )


def test_an_item_that_is_held_gets_no_slot_until_the_order_ends(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b"))
    orders.give_order(loops.context, "alpha", "a", "hold", ADA)
    assert loops.admitted() == ["b"]
    assert (loops.admitted(), loops.loop().state) == ([], "running")
    loops.passes("b")
    assert loops.admitted() == []
    assert (loops.loop().state, loops.loop().reason) == ("waiting", "a is held by ada")
    orders.give_order(loops.context, "alpha", "a", None, ADA)
    assert loops.admitted() == ["a"]


def test_a_denial_can_be_overruled(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["x.py"]), item("b", touches=["x.py"]))
    loops.plan()
    (denied,) = [d for d in view_coordination(loops.context).decisions if d.kind == "denied"]
    effect = orders.overrule(loops.context, denied.id, ADA)
    assert effect.text == "alpha/b need not wait for the files"
    assert loops.admitted() == ["b"]
    assert sorted(held(loops)) == ["alpha/a", "alpha/b"]
    (denied,) = [d for d in view_coordination(loops.context).decisions if d.kind == "denied"]
    assert denied.overruled_by == "ada"


def test_an_order_for_what_has_ended_is_refused(loops: LoopScenario) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.passes("a")
    with pytest.raises(LoopConflict, match="a passed: an order is for what waits"):
        orders.give_order(loops.context, "alpha", "a", "first", ADA)
    with pytest.raises(LoopConflict, match="no item 'b'"):
        orders.give_order(loops.context, "alpha", "b", "first", ADA)
    with pytest.raises(BadInput, match="no decision"):
        orders.overrule(loops.context, "12345", ADA)


def test_a_tenant_sees_no_names_of_others(loops: LoopScenario) -> None:
    loops.slots = 1
    for name, tenant, priority in (("alpha", "one", 1), ("beta", "two", 5)):
        change.create_loop(
            loops.context, document(item("x"), name=name, priority=priority), tenant=tenant, by="a"
        )
        loops.move("start", name)
    loops.plan("beta")
    loops.passes("x", name="alpha") if loops.states("alpha")["x"] == "running" else None
    own = view_coordination(loops.context, tenant="one")
    assert all("beta" not in each.text and "beta" not in each.other for each in own.decisions)
    assert {each.loop for each in own.decisions} <= {"alpha"}


# -- who goes next ---------------------------------------------------------------------------------


def test_what_an_urgent_loop_waits_for_is_urgent_too(loops: LoopScenario) -> None:
    loops.slots = 0
    loops.create(item("a", "slow/early"), name="urgent", priority=1)
    loops.create(item("b"), name="middle", priority=3)
    loops.create(item("other"), item("early"), name="slow", priority=9)
    for name in ("urgent", "middle", "slow"):
        loops.plan(name)
    loops.slots = 1
    loops.plan("middle")
    assert loops.states("slow") == {"other": "ready", "early": "running"}
    (slot,) = decisions(loops, "slot")
    assert slot[2] == (
        "it got a slot: priority 1 of the loop that waits for it before middle with 3"
    )


def test_what_an_urgent_loop_waits_for_through_another_one_is_urgent_too(
    loops: LoopScenario,
) -> None:
    """urgent waits for mid, which waits for low: until a person lets urgent go without it."""
    loops.slots = 0
    loops.create(item("a", "mid/m"), name="urgent", priority=1)
    loops.create(item("m", "low/l"), name="mid", priority=9)
    loops.create(item("l"), name="low", priority=9)
    loops.create(item("o"), name="other", priority=5)
    for name in ("urgent", "mid", "low", "other"):
        loops.plan(name)
    loops.slots = 1
    loops.plan("low")
    assert decisions(loops, "slot")[-1][1:] == (
        "low/l",
        "it got a slot: priority 1 of the loop that waits for it before other with 5",
    )


def test_a_wait_that_is_over_makes_nothing_urgent(loops: LoopScenario) -> None:
    loops.slots = 0
    loops.create(item("a", "slow/s"), item("b"), name="urgent", priority=1)
    loops.create(item("s"), name="slow", priority=9)
    loops.create(item("m"), name="middle", priority=3)
    for name in ("urgent", "slow", "middle"):
        loops.plan(name)
    change.skip(loops.context, "urgent", "a", ADA, reason="")
    change.skip(loops.context, "urgent", "b", ADA, reason="")
    for name in ("urgent", "slow"):
        loops.plan(name)
    loops.slots = 1
    loops.plan("slow")
    assert loops.states("slow") == {"s": "ready"}
    assert loops.states("middle") == {"m": "running"}


def test_an_item_that_waits_for_its_own_loop_keeps_no_files_from_others(
    loops: LoopScenario,
) -> None:
    """Given a long backlog of a loop that does one item at a time, whose files nobody changes."""
    loops.slots = 2
    backlog = [item(f"i{n}", touches=[f"/f{n}.py"]) for n in range(3)]
    loops.create(*backlog, name="low", priority=9, concurrency=1)
    assert loops.admitted("low") == ["i0"]
    loops.scenario.advance(9 * 600 + 1)
    loops.create(item("hot", touches=["/f1.py"]), name="urgent", priority=1)
    assert loops.admitted("urgent") == ["hot"]


def test_why_says_who_waits_longer_for_files(loops: LoopScenario) -> None:
    """alpha/both needs x.py, which runs, and y.py, which it may take before others."""
    loops.slots = 5
    loops.create(item("x", touches=["/x.py"]), name="first", priority=1)
    loops.plan("first")
    loops.create(item("both", touches=["/x.py", "/y.py"]), name="alpha", priority=1)
    loops.plan("alpha")
    loops.scenario.advance(601)
    loops.create(item("y", touches=["/y.py"]), name="beta", priority=1)
    assert loops.admitted("beta") == []
    reason = why(loops.context, "beta", "y")
    assert reason.text == "y waits for y.py, for which alpha/both waits longer"
    assert reason.command == "mulligan loops order beta y ignore_locks"
    denied = [(each.name, each.reserved) for each in view_coordination(loops.context).denied]
    assert ("beta/y", True) in denied


def test_nobody_waits_longer_who_waits_no_more(loops: LoopScenario) -> None:
    loops.slots = 5
    loops.create(item("x", touches=["x.py"]), name="first", priority=1)
    loops.plan("first")
    loops.create(item("both", touches=["x.py", "y.py"]), name="older", priority=1)
    loops.plan("older")
    loops.scenario.advance(601)
    loops.create(item("y", touches=["y.py"]), name="beta", priority=1)
    loops.plan("beta")
    assert "older/both waits longer" in why(loops.context, "beta", "y").text
    loops.slots = 1
    for verb in ("pause", "stop", None):
        if verb is None:
            change.delete(loops.context, "older", ADA)
        else:
            loops.move(verb, "older")
        reason = why(loops.context, "beta", "y")
        assert reason.text == "y waits: 1 of 1 slots of all loops are taken"
        assert [each.name for each in view_coordination(loops.context).denied] == []


def test_a_denial_is_recorded_once_for_each_wait(loops: LoopScenario) -> None:
    loops.create(*(item(f"i{n}", touches=["/x.py"]) for n in range(4)), concurrency=4)
    for n in range(3):
        loops.plan()
        loops.passes(f"i{n}")
    found = [name for kind, name, _ in decisions(loops) if kind == "denied"]
    assert found == ["alpha/i1", "alpha/i2", "alpha/i3"]


def test_what_most_others_wait_for_goes_first(loops: LoopScenario) -> None:
    loops.slots = 1
    loops.create(item("alone"), item("root"), item("mid", "root"), item("leaf", "mid"))
    assert loops.admitted() == ["root"]


def test_a_loop_that_waits_for_too_long_goes_before_urgent_ones(loops: LoopScenario) -> None:
    """Priority 3 waits for 30 minutes at most, and then for each other loop once."""
    loops.slots = 1
    urgent = [item(f"u{number}") for number in range(9)]
    loops.create(*urgent, name="urgent", priority=1, concurrency=1)
    loops.create(item("slow"), name="slow", priority=3)
    loops.plan("urgent")
    loops.plan("slow")
    order = []
    for _ in range(6):
        (live,) = loops.read("urgent").fleet.live
        order.append(live.item)
        loops.scenario.advance(9 * 60)
        loops.passes(live.item, name=live.loop)
        loops.plan("urgent")
    assert order == ["u0", "u1", "u2", "u3", "slow", "u4"]


@pytest.mark.parametrize("is_held", [False, True])
def test_an_item_behind_many_that_cannot_begin_gets_its_slot_in_time(
    loops: LoopScenario, *, is_held: bool
) -> None:
    """Given 30 items whose files are locked, or that a person holds, and one behind them."""
    loops.slots = 2
    loops.create(item("long", touches=["/src/**"]), name="gamma")
    assert loops.admitted("gamma") == ["long"]
    loops.create(*(item(f"b{n}") for n in range(9)), name="beta", concurrency=1)
    assert loops.admitted("beta") == ["b0"]
    first = [item(f"a{n}", touches=[] if is_held else [f"/src/{n}.py"]) for n in range(30)]
    loops.create(*first, item("docs", touches=["/docs/"]), name="alpha", concurrency=1)
    for each in first if is_held else ():
        orders.give_order(loops.context, "alpha", each["id"], "hold", ADA)
    loops.plan("alpha")
    for n in range(6):  # priority 5 is overdue after 50 min
        assert loops.states("alpha")["docs"] == "ready"
        loops.scenario.advance(601)
        loops.passes(f"b{n}", name="beta")
        loops.plan("beta")
        if loops.states("alpha")["docs"] == "running":
            break
    assert loops.states("alpha")["docs"] == "running"


# -- why -------------------------------------------------------------------------------------------


def test_why_names_the_holder_of_a_lock_and_what_changes_it(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["x.py"]), item("b", touches=["x.py"]))
    loops.plan()
    reason = why(loops.context, "alpha", "b")
    assert (reason.cause, reason.text) == ("lock", "b waits for x.py, which alpha/a changes")
    assert reason.command == "mulligan loops order alpha b ignore_locks"
    loops.passes("a")
    loops.plan()
    assert why(loops.context, "alpha", "b").text == "b waits for a worker"


@pytest.mark.parametrize(
    ("fields", "cause", "text"),
    [
        ({"waits_for": ["go"]}, "event", "a waits for the event go, which no item gives off"),
        (
            {"depends_on": ["beta/x"]},
            "dependency",
            "a waits for beta/x (which does not exist)",
        ),
    ],
)
def test_why_names_what_is_waited_for_outside_the_loop(
    loops: LoopScenario, fields: dict[str, list[str]], cause: str, text: str
) -> None:
    loops.create({**item("a"), **fields}, item("b", "a"))
    loops.plan()
    for each in (why(loops.context, "alpha", "a"), why(loops.context, "alpha")):
        assert (each.cause, each.text) == (cause, text)
        assert each.command == "mulligan loops order alpha a ignore_waits"
    assert why(loops.context, "alpha", "b").text == f"b waits: dependency {text}"


def test_why_says_that_a_person_holds_an_item(loops: LoopScenario) -> None:
    loops.create(item("a"))
    orders.give_order(loops.context, "alpha", "a", "hold", ADA)
    loops.plan()
    for each in (why(loops.context, "alpha", "a"), why(loops.context, "alpha")):
        assert (each.cause, each.text) == ("order", "a waits because ada holds it")
        assert each.command == "mulligan loops order alpha a none"


def text_of(reason: Reason) -> str:
    """Return what is said, without how long ago something was."""
    return re.sub(r", [\w. ]+ ago", "", reason.text)


def chain_of_three(loops: LoopScenario) -> None:
    """web/w waits for api/a, which waits for an event of db/d."""
    loops.create(item("d", emits=["ready"]), item("e", "d"), name="db")
    loops.create(item("a", waits_for=["ready"]), name="api")
    loops.create(item("w", "api/a"), item("x", "w"), name="web")
    for name in ("db", "api", "web"):
        loops.plan(name)


def test_why_names_the_item_at_the_end_of_a_chain_of_loops(loops: LoopScenario) -> None:
    chain_of_three(loops)
    reason = why(loops.context, "web", "w")
    assert reason.text == "w waits for api/a, and in the end for db/d, which waits for a worker"
    assert (reason.cause, reason.remedy) == ("dependency", None)
    loops.fails("d", name="db")
    loops.plan("db")
    failed = "failed (max_attempts)"
    for each in (why(loops.context, "api", "a"), why(loops.context, "api")):
        assert text_of(each) == f"a waits for the event ready of db/d, which {failed}"
        assert (each.cause, each.command) == ("event", "mulligan loops reset db d")
    for each in (why(loops.context, "web", "w"), why(loops.context, "web")):
        assert text_of(each) == f"w waits for api/a, and in the end for db/d, which {failed}"
        assert (each.cause, each.command) == ("dependency", "mulligan loops reset db d")
    orders.give_order(loops.context, "api", "a", "hold", ADA)
    reason = why(loops.context, "web", "w")
    assert reason.text == "w waits for api/a, which waits because ada holds it"
    assert reason.command == "mulligan loops order api a none"


def test_why_says_that_waits_lead_back_to_where_they_began(loops: LoopScenario) -> None:
    loops.create(item("x", "beta/y"), name="alpha")
    loops.create(item("y", waits_for=["go"]), name="beta")
    loops.create(item("z", "alpha/x", emits=["go"]), name="gamma")
    for name in ("alpha", "beta", "gamma"):
        loops.plan(name)
    reason = why(loops.context, "alpha", "x")
    assert reason.text == (
        "x waits for beta/y (pending), in a cycle of waits: beta/y → gamma/z → alpha/x → beta/y"
    )
    assert reason.command == "mulligan loops order alpha x ignore_waits"


def test_why_reads_a_bounded_number_of_loops(
    loops: LoopScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"l{n:02}" for n in range(30)]
    for name, other in itertools.pairwise(names):
        loops.create(item("x", f"{other}/x"), name=name)
        loops.plan(name)
    read = list[str]()
    plain = loops.scenario.ledger.read_loop

    def read_loop(name: str) -> LoopReading | None:
        read.append(name)
        return plain(name)

    monkeypatch.setattr(loops.scenario.ledger, "read_loop", read_loop)
    text = why(loops.context, "l00", "x").text
    assert text.startswith("x waits for l01/x, and further on for l10/x, which waits for l11/x")
    assert len(read) <= 12


def test_why_follows_no_wait_to_where_the_reader_sees_nothing(loops: LoopScenario) -> None:
    for name, owner in (("api", "ada"), ("web", "eve")):
        spec = item("w", "api/w", waits_for=["go"]) if name == "web" else item("w", emits=["go"])
        change.create_loop(loops.context, document(spec, name=name), by=owner, owner=owner)
        loops.move("start", name)
        loops.plan(name)
    found = why(loops.context, "web", "w", owner="eve")
    assert (found.text, found.remedy) == ("w waits for api/w (running)", None)
    assert why(loops.context, "web", "w").text == "w waits for api/w, which waits for a worker"


def test_what_failed_is_said_although_others_wait_for_other_loops(loops: LoopScenario) -> None:
    loops.create(item("a"), item("b", "a"), item("c", waits_for=["go"]))
    loops.plan()
    loops.fails("a")
    loops.plan()
    assert (loops.loop().state, loops.loop().reason) == ("blocked", "a failed")
    reason = why(loops.context, "alpha")
    said = "nothing can go on: a failed (max_attempts); c waits for the event go"
    assert text_of(reason) == said
    assert reason.command == "mulligan loops reset alpha a"
    # What waits goes on by itself.
    orders.emit(loops.context, "go", tenant="", by="ada")
    assert (loops.admitted(), loops.loop().state) == (["c"], "running")


def test_an_event_stays_as_long_as_somebody_stands_by_it(loops: LoopScenario) -> None:
    loops.create(item("make", emits=["ready"]), item("other", emits=["ready"]))
    loops.plan()
    for name in ("make", "other"):
        loops.passes(name)
        loops.plan()
    orders.emit(loops.context, "ready", tenant="", by="ada")
    for name in ("make", "other"):
        change.reset(loops.context, "alpha", name, ADA)
        loops.plan()
        loops.plan()
    (event,) = loops.scenario.ledger.coordination().events
    assert event.by == ("ada",)


def test_a_free_item_is_found_behind_many_whose_files_are_locked(loops: LoopScenario) -> None:
    locked = [item(f"l{number}", touches=["x.py"]) for number in range(60)]
    loops.create(item("a", touches=["x.py"]), *locked, item("free"), concurrency=2)
    assert loops.admitted() == ["a", "free"]
