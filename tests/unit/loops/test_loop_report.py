"""The report of a loop: what is counted, grouped and left, from its snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from support.loop_snapshots import Specs, snapshot

from mulligan.policies.failures.failure import FailureKind, FailureRecord
from mulligan.policies.loops.budget import BudgetState
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.loop import ItemRecord, LoopSnapshot, LoopState
from mulligan.policies.loops.loop_report import (
    LastRun,
    budget_caveat,
    burn_down,
    failure_groups,
    gave_up_groups,
    heal_counts,
    left_items,
    loop_costs,
    newest_heals,
)
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.report import generate_report
from mulligan.tasks.ports.ledger import LoopFleet, LoopReading

NOW = 1_800_000_000.0


def passed(ago: float, runs: int = 1) -> ItemRecord:
    return ItemRecord(state="passed", since=NOW - ago, runs=runs, job_id="j" if runs else "")


def loop_of(
    states: Mapping[str, ItemRecord], *, began: float | None = 480, state: LoopState = "running"
) -> LoopSnapshot:
    found = snapshot(dict.fromkeys(states, ()), states, state=state)
    at = None if began is None else NOW - began
    return replace(found, loop=replace(found.loop, started_at=at, created_at=NOW - 1000))


# -- burn-down -------------------------------------------------------------------------------------


def test_the_burn_down_has_what_was_left_at_each_moment() -> None:
    """Given 8 minutes in 48 steps, an item that passed after 4 minutes counts from step 24 on."""
    found = burn_down(loop_of({"a": passed(240), "b": passed(0), "c": ItemRecord()}), NOW)
    assert [found[0].at, found[-1].at] == [NOW - 480, NOW]
    assert [each.left for each in found] == [3] * 24 + [2] * 24 + [1]


def test_what_was_done_before_the_loop_is_never_left() -> None:
    found = burn_down(loop_of({"a": passed(1000, runs=0), "b": ItemRecord()}), NOW)
    assert {each.left for each in found} == {1}
    assert found[0].at == NOW - 480


def test_a_completed_loop_burns_down_to_its_end() -> None:
    loop = loop_of({"a": passed(100)}, state="completed")
    found = burn_down(replace(loop, loop=replace(loop.loop, finished_at=NOW - 90)), NOW)
    assert (found[-1].at, found[-1].left) == (NOW - 90, 0)


def test_a_loop_that_was_not_started_has_no_burn_down() -> None:
    assert burn_down(loop_of({"a": ItemRecord()}, began=None, state="created"), NOW) == []


# -- cost ------------------------------------------------------------------------------------------

BUDGET = BudgetState(
    limits={("loop", "tokens"): 1000.0, ("day", "money"): 2.0},
    used={("loop", "tokens"): 600.0, ("loop", "money"): 3.0, ("day", "money"): 1.0},
    reserved={"tokens": 100.0},
)


def test_the_cost_of_an_item_includes_what_failed_attempts_used() -> None:
    """Given two items that passed and one that failed, each passed item cost 300 tokens."""
    done = {"a": passed(9), "b": passed(8), "c": passed(7, runs=0)}
    loop = loop_of({**done, "d": ItemRecord(state="failed", runs=1)})
    rows = {(each.scope, each.resource): each for each in loop_costs(loop, BUDGET, {"tokens": 1})}
    assert list(rows) == [("loop", "tokens"), ("loop", "money"), ("day", "money")]
    tokens = rows["loop", "tokens"]
    assert (tokens.used, tokens.reserved, tokens.limit, tokens.unknown) == (600, 100, 1000, 1)
    assert (tokens.per_passed_item, tokens.enough_for) == (300, 1)
    assert (rows["loop", "money"].per_passed_item, rows["loop", "money"].enough_for) == (1.5, None)
    assert (rows["day", "money"].per_passed_item, rows["day", "money"].enough_for) == (None, 0)


def test_without_a_passed_item_there_is_no_rate() -> None:
    loop = loop_of({"a": ItemRecord()})
    assert {each.per_passed_item for each in loop_costs(loop, BUDGET, {})} == {None}
    assert budget_caveat(loop, loop_costs(loop, BUDGET, {})) == ""


def test_a_budget_that_may_be_used_up_first_is_named() -> None:
    states = {"a": passed(9), "b": passed(8), "c": ItemRecord(), "d": ItemRecord(state="blocked")}
    loop = loop_of(states)
    assert budget_caveat(loop, loop_costs(loop, BUDGET, {})) == (
        "the day budget of money may be used up first: at this rate it is enough for 0 of 1 items"
    )
    enough = replace(BUDGET, limits={("loop", "tokens"): 900.0})
    assert budget_caveat(loop, loop_costs(loop, enough, {})) == ""


# -- failures and healing --------------------------------------------------------------------------


def failure(signature: str, message: str = "wrong", cause: str | None = None) -> FailureRecord:
    return FailureRecord(
        kind=FailureKind.JSON_INVALID,
        classification_signature=f"{signature}-strict",
        coarse_signature=signature,
        message=message,
        source="verify",
        cause=cause,
    )


def test_failed_attempts_are_grouped_by_their_signature() -> None:
    loop = loop_of({"a": passed(9), "b": ItemRecord(state="failed"), "c": passed(3)})
    runs = [
        LastRun(item="b", failures=[failure("s1", "first"), failure("s1")]),
        LastRun(item="a", failures=[failure("s1"), failure("s2", cause="fence")]),
        LastRun(item="c"),
    ]
    first, second = failure_groups(loop, runs, limit=10, texts=True)
    assert (first.signature, first.attempts, first.items, first.passed) == ("s1", 3, 2, 1)
    assert (first.examples, first.message) == (["b", "a"], "first")
    assert (second.kind, second.cause, second.attempts) == ("json_invalid", "fence", 1)
    (only,) = failure_groups(loop, runs, limit=1, texts=False)
    assert (only.signature, only.message) == ("s1", None)


def test_items_that_gave_up_are_grouped_by_their_reason() -> None:
    failed = ItemRecord(state="failed", reason="max_attempts")
    lost = ItemRecord(state="quarantined", reason="worker_lost ×3")
    loop = loop_of({"q": lost, **dict.fromkeys("abcd", failed), "p": passed(1)})
    first, second = gave_up_groups(loop, 10)
    assert (first.reason, first.items, first.examples) == ("max_attempts", 4, ["a", "b", "c"])
    assert (second.state, second.reason, second.items) == ("quarantined", "worker_lost ×3", 1)
    assert gave_up_groups(loop, 1) == [first]


def test_healings_are_counted_by_what_came_of_them() -> None:
    heals = [
        HealRecord(number=1, at=1, item="a", action="skip", reason="r", advice="quotes"),
        HealRecord(number=2, at=2, item="b", action="split", reason="r", outcome="passed"),
        HealRecord(
            number=3, at=3, item="c", action="split", reason="r", outcome="failed", result="r"
        ),
    ]
    first, second = heal_counts(heals)
    assert (first.action, first.outcomes) == ("split", {"passed": 1, "failed": 1})
    assert (second.action, second.outcomes) == ("skip", {"pending": 1})
    assert [each.number for each in newest_heals(heals, limit=2, texts=True)] == [3, 2]
    hidden = newest_heals(heals, limit=9, texts=False)
    assert {(each.reason, each.result, each.advice) for each in hidden} == {("", "", "")}


def test_what_needs_a_person_is_listed_first() -> None:
    states = {
        "p": ItemRecord(),
        "r": ItemRecord(state="ready"),
        "w": ItemRecord(state="running", job_id="j1"),
        "n": ItemRecord(state="running", job_id="j2"),
        "b": ItemRecord(state="blocked"),
        "f": ItemRecord(state="failed"),
        "q": ItemRecord(state="quarantined"),
        "s": ItemRecord(state="skipped"),
        "d": passed(1),
    }
    found = left_items(loop_of(states), {"j2"})
    assert "".join(item for item, _ in found) == "qfbnwrp"
    assert dict(found)["w"] == "waiting"


# -- bounds ----------------------------------------------------------------------------------------


@dataclass
class ReadOnlyLedger:
    """A ledger with one loop, which counts the jobs that are read."""

    snapshot: LoopSnapshot
    jobs_read: list[str] = field(default_factory=list)

    def now(self) -> float:
        return NOW

    def read_loop(self, name: str) -> LoopReading:
        return LoopReading(snapshot=self.snapshot, fleet=LoopFleet(slots=1))

    def job(self, job_id: str) -> None:
        self.jobs_read.append(job_id)


@pytest.fixture
def large() -> ReadOnlyLedger:
    """A loop of 5,000 items: 2,000 passed, then one gave up and a long chain waits for it."""
    names = [f"i{n}" for n in range(5000)]
    specs: Specs = {name: (names[n - 1],) if n > 2000 else () for n, name in enumerate(names)}
    done = {name: replace(passed(n), job_id=name) for n, name in enumerate(names[:2000])}
    failed = ItemRecord(state="failed", reason="max_attempts", since=1, runs=1, job_id="bad")
    blocked = dict.fromkeys(names[2001:], ItemRecord(state="blocked", reason="i2000 failed"))
    return ReadOnlyLedger(snapshot(specs, {**done, "i2000": failed, **blocked}))


def test_a_large_loop_has_a_bounded_report(large: ReadOnlyLedger) -> None:
    unused: Any = None
    context = LoopContext(
        ledger=cast(Any, large),
        intake=unused,
        publish=unused,
        slots=lambda: 1,
        price=lambda _: None,
    )
    found = generate_report(context, "alpha", rows=50)
    assert (found.total, found.left_total, len(found.left)) == (5000, 3000, 50)
    assert (found.critical_path_length, len(found.critical_path)) == (3000, 50)
    assert len(found.burn_down) == 49
    assert large.jobs_read[:3] == ["bad", "i0", "i1"], "what gave up, then the newest"
    assert len(large.jobs_read) == 100
    assert found.left[0].command == "mulligan loops reset alpha i2000"
