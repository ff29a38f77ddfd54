"""The monitor with a ledger: what it finds, which steps it takes, once, and how incidents end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.ledger_scenario import ScenarioMaker
from support.loops import ADA, LoopScenario, item
from support.provider_calls import open_breaker

from mulligan.policies.loops.health import HealthCheck
from mulligan.tasks.loops import change, monitor
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.view import view_loop, why

HOUR = 3600.0
RUNNER = {"runner": {"profile": "of-api"}}


@dataclass
class MonitoredLoops(LoopScenario):
    """Loops with a monitor, whose workers may be missing."""

    missing: set[str] = field(default_factory=set)

    @property
    def context(self) -> LoopContext:
        return replace(super().context, missing_pools=lambda: self.missing)

    def check(self, name: str = "alpha") -> HealthCheck:
        """Return a loop's health, which is the same whichever way it is read."""
        found = monitor.check_health(self.context, view_loop(self.context, name))
        (status,) = [each for each in monitor.check_all(self.context) if each.loop.name == name]
        assert status.check == found
        return found

    def watch(self, seconds: float, *, every: float = 60.0) -> None:
        """Let time pass while the monitor and the planner run."""
        for _ in range(int(seconds // every)):
            self.scenario.advance(every)
            monitor.run_monitor(self.context)
            self.plan()

    def notes(self) -> list[str]:
        """Return what the monitor wrote into the log, the oldest first."""
        log = self.scenario.ledger.loop_log("alpha", limit=500)
        return [each.note for each in reversed(log) if each.by == "monitor"]

    def steps(self) -> list[str]:
        return [note.partition(":")[0] for note in self.notes()]


@pytest.fixture
def loops(new_fake_scenario: ScenarioMaker) -> MonitoredLoops:
    return MonitoredLoops(new_fake_scenario())


def fail_one_by_one(loops: MonitoredLoops, *items: str) -> None:
    for each in items:
        loops.plan()
        loops.fails(each)
        loops.scenario.advance(1)
    loops.plan()


# -- health ----------------------------------------------------------------------------------------


def test_a_worker_that_renews_no_lease_is_found(loops: MonitoredLoops) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.claim("a")
    assert loops.check().status == "healthy"
    loops.scenario.advance(70, away=True)
    found = loops.check()
    assert (found.status, found.missing, found.item) == ("degraded", "lease", "a")


def test_each_loop_is_judged_by_its_own_items(loops: MonitoredLoops) -> None:
    for name in ("alpha", "beta"):
        loops.create(item("a"), name=name)
        loops.plan(name)
    loops.claim("a", name="beta")
    loops.scenario.advance(70, away=True)
    loops.claim("a", name="alpha")
    assert (loops.check("alpha").status, loops.check("beta").status) == ("healthy", "degraded")


def test_an_item_waits_for_busy_workers_but_not_for_missing_ones(loops: MonitoredLoops) -> None:
    loops.create(item("a"))
    loops.plan()
    loops.scenario.advance(200)
    assert loops.check().status == "healthy"
    loops.missing = {"agent"}
    found = loops.check()
    assert (found.status, found.missing, found.items[0].waits_on) == (
        "degraded",
        "worker",
        "worker",
    )
    assert found.since is None, "nobody has noted since when"


def test_a_loop_that_waits_for_its_provider_is_healthy(loops: MonitoredLoops) -> None:
    """Given an item that gave its slot back, and nothing else that could run."""
    ledger = loops.scenario.ledger
    open_breaker(ledger, "api")
    ledger.pause("provider:api")
    loops.create(item("a", **RUNNER))
    loops.plan()
    loops.refusal("a")
    assert loops.read().fleet.live == []
    loops.watch(2000)
    assert loops.check().status == "healthy"
    assert loops.steps() == []


def test_a_loop_that_nobody_plans_is_found_with_its_reason(loops: MonitoredLoops) -> None:
    loops.create(item("a"))
    loops.missing = {"control", "agent"}
    loops.scenario.advance(400)
    found = loops.check()
    assert (found.status, found.missing) == ("dead", "planner")
    assert "no worker of the pool control has reported" in why(loops.context, "alpha").text


def test_a_paused_loop_is_idle(loops: MonitoredLoops) -> None:
    loops.create(item("a"))
    loops.move("pause")
    loops.scenario.advance(5000)
    assert loops.check().status == "idle"


# -- the response ----------------------------------------------------------------------------------


def test_nothing_is_done_without_loops_or_trouble(loops: MonitoredLoops) -> None:
    assert monitor.run_monitor(loops.context) == 0
    loops.create(item("a"))
    loops.plan()
    version = loops.loop().version
    assert monitor.run_monitor(loops.context) == 0
    assert loops.loop().version == version


def test_three_failures_are_answered_step_by_step_and_a_pass_ends_it(loops: MonitoredLoops) -> None:
    loops.create(*(item(each) for each in "abcde"), concurrency=1, on_blocked="continue")
    fail_one_by_one(loops, "a", "b", "c")
    monitor.run_monitor(loops.context)
    assert loops.notes() == ["log: 3 items failed one after the other: c, b, a"]
    loops.watch(1000)
    assert loops.steps() == ["log", "notify", "alert", "escalate"]
    (incident,) = loops.loop().incidents
    assert (incident.signal, incident.item, incident.steps) == ("failures", "", 4)
    loops.passes("d")
    monitor.run_monitor(loops.context)
    assert loops.steps()[-1] == "ended"
    assert loops.loop().incidents == ()
    assert monitor.run_monitor(loops.context) == 0


def test_what_nobody_answers_halts_a_loop_that_may_escalate(loops: MonitoredLoops) -> None:
    loops.create(*(item(each) for each in "abcd"), concurrency=1, auto_heal=["escalate"])
    fail_one_by_one(loops, "a", "b", "c")
    loops.watch(16 * HOUR, every=600.0)
    severities = [s for s in loops.steps() if s == "escalate"]
    assert len(severities) == 3, "it grows twice"
    loop = loops.loop()
    assert (loop.state, loop.paused_by) == ("paused", "monitor")
    assert loop.reason.startswith("3 items failed")
    assert "paused" in (text := why(loops.context, "alpha").text)
    assert "by the monitor: 3 items failed one after the other" in text
    assert why(loops.context, "alpha").command == "mulligan loops resume alpha"
    taken = loops.steps()
    loops.watch(HOUR)
    assert loops.steps() == taken, "nothing follows until a person has looked"
    for each in "abc":
        change.reset(loops.context, "alpha", each, ADA)
    loops.move("resume")
    monitor.run_monitor(loops.context)
    assert loops.steps()[-1] == "ended"


@pytest.mark.parametrize("auto_heal", [False, ["split"]])
def test_a_loop_that_may_not_escalate_stays_at_the_escalation(
    loops: MonitoredLoops, auto_heal: Any
) -> None:
    loops.create(*(item(each) for each in "abcd"), concurrency=1, auto_heal=auto_heal)
    fail_one_by_one(loops, "a", "b", "c")
    loops.watch(24 * HOUR, every=600.0)
    assert loops.steps() == ["log", "notify", "alert", "escalate", "escalate", "escalate"]
    assert loops.loop().state == "running"


def test_a_blocked_loop_is_not_forgotten(loops: MonitoredLoops) -> None:
    loops.create(item("a"), item("b", "a"), auto_heal=["escalate"])
    fail_one_by_one(loops, "a")
    assert loops.loop().state == "blocked"
    loops.watch(24 * HOUR, every=600.0)
    assert loops.steps() == ["log", "notify", "alert", "escalate", "escalate", "escalate"]
    assert loops.loop().state == "blocked"
    change.reset(loops.context, "alpha", "a", ADA)
    loops.plan()
    monitor.run_monitor(loops.context)
    assert loops.steps()[-1] == "ended"


def test_two_monitors_take_each_step_once(loops: MonitoredLoops) -> None:
    """Given two control workers that have looked at the same time."""
    loops.create(item("a"), item("b", "a"))
    fail_one_by_one(loops, "a")
    (status,) = monitor.check_all(loops.context)
    now = loops.scenario.ledger.now()
    conditions = monitor.detect_stuck(loops.context, status, now)
    for _ in range(2):
        monitor.alert(loops.context, status.loop, conditions, now)
    assert loops.steps() == ["log"]


def test_incidents_are_deleted_with_their_loop(loops: MonitoredLoops) -> None:
    loops.create(item("a"), item("b", "a"))
    fail_one_by_one(loops, "a")
    monitor.run_monitor(loops.context)
    assert len(loops.loop().incidents) == 1
    change.delete(loops.context, "alpha", ADA)
    loops.create(item("a"))
    assert loops.loop().incidents == ()
