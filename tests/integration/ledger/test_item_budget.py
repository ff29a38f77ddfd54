"""The budget of an item: all attempts of its run, also those that nobody reported."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.doubles import FakeRunner
from support.jobs import answer
from support.ledger_scenario import ScenarioMaker, attempt_context
from support.loops import LoopScenario, item

from mulligan.policies.jobs.job import Output
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.ports.errors import TransportFault
from mulligan.tasks.ports.ledger import Entry
from mulligan.tasks.ports.runners import Request

HANGS = TransportFault("no answer in time", provider="fake", maybe_served=True)


@pytest.fixture
def loops(new_fake_scenario: ScenarioMaker) -> LoopScenario:
    return LoopScenario(new_fake_scenario())


@dataclass
class SlowRunner(FakeRunner):
    """A runner whose calls take two seconds on the scenario's clock."""

    loops: LoopScenario | None = None

    def answer(self, request: Request) -> Output:
        assert self.loops is not None
        self.loops.scenario.advance(2.0)
        return super().answer(request)


def work(loops: LoopScenario, runner: FakeRunner) -> None:
    """Run the item's attempts one after the other."""
    context = attempt_context(loops.scenario, runner, price=lambda _: loops.price)
    for _ in range(8):
        loops.plan()
        record = loops.item("a")
        if record.state != "running":
            return
        view = loops.scenario.view(record.job_id)
        entry = Entry("attempt", record.job_id, view.attempts[-1].plan.number)
        run_attempt(context, entry)
        loops.scenario.advance(3600)  # past any back-off
        loops.scenario.sweep()


def reason(loops: LoopScenario) -> tuple[str, str]:
    return loops.item("a").state, loops.item("a").reason


def test_unknown_usage_counts_as_what_was_reserved(loops: LoopScenario) -> None:
    loops.create(item("a"), budget={"item": {"tokens": 100}})
    runner = FakeRunner([answer("no", tokens=None)])
    work(loops, runner)
    assert (reason(loops), len(runner.requests)) == (("failed", "budget_tokens"), 1)


def test_a_cap_for_attempts_leaves_room_for_retries(loops: LoopScenario) -> None:
    loops.create(item("a"), budget={"attempt": {"tokens": 40}, "item": {"tokens": 100}})
    runner = FakeRunner([answer(f"no {n}", tokens=None) for n in range(5)])
    work(loops, runner)
    assert (reason(loops), len(runner.requests)) == (("failed", "budget_tokens"), 3)


def test_the_time_of_calls_that_never_answer_counts(loops: LoopScenario) -> None:
    loops.create(item("a"), budget={"item": {"seconds": 3}})
    runner = SlowRunner([HANGS], loops=loops)
    work(loops, runner)
    assert (reason(loops), len(runner.requests)) == (("failed", "budget_seconds"), 2)


def test_one_lost_worker_does_not_end_an_item(loops: LoopScenario) -> None:
    loops.create(item("a"), budget={"item": {"tokens": 100}})
    loops.plan()
    loops.claim("a")
    loops.scenario.expire_leases()
    work(loops, FakeRunner([answer("{}", tokens=10)]))
    assert loops.item("a").state == "passed"


def test_a_later_attempt_gets_only_what_is_left(loops: LoopScenario) -> None:
    loops.price = 0.001
    loops.create(item("a"), budget={"item": {"money": 0.5, "seconds": 6}})
    runner = FakeRunner([answer("no", tokens=300, seconds=4.0), answer("{}", tokens=10)])
    context = attempt_context(
        loops.scenario, runner, price=lambda _: 0.001, cost=lambda _job, output: 0.3
    )
    loops.plan()
    for number in (1, 2):
        run_attempt(context, Entry("attempt", loops.item("a").job_id, number))
    first, second = runner.requests
    assert first.timeout == 6
    assert second.timeout == pytest.approx(2)
    assert first.token_allowance is not None
    assert second.token_allowance is not None
    assert second.token_allowance < 200 < first.token_allowance
