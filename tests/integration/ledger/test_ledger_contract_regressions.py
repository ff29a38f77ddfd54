"""The ledger's contract: what a loop remembers of regressions is written once, and told."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_scenario import Scenario
from support.loops import LoopScenario, item

from mulligan.policies.loops.loop import LoopChange
from mulligan.policies.regressions.record import Regression, RegressionLog
from mulligan.tasks.ports.ledger import LoopWrite, Written


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    made = LoopScenario(scenario)
    made.create(item("a"))
    return made


def log(**fields: Any) -> RegressionLog:
    values = {"number": 1, "item": "a", "runs": 1, "at": 1.5, "good": "g", "bad": "b", "seen": "s"}
    return RegressionLog().with_found(Regression.model_validate({**values, **fields}))


def write(loops: LoopScenario, found: RegressionLog) -> None:
    change = LoopChange(regressions=found)
    written = loops.scenario.ledger.write_loop(LoopWrite(reading=loops.read(), change=change))
    assert isinstance(written, Written)


def test_a_record_is_kept_until_it_is_replaced(loops: LoopScenario) -> None:
    assert loops.read().snapshot.loop.regressions == RegressionLog()
    write(loops, log(summary="é\n|"))
    assert loops.read().snapshot.loop.regressions == log(summary="é\n|")
    write(loops, RegressionLog(commit="c"))
    assert loops.read().snapshot.loop.regressions == RegressionLog(commit="c")


def test_of_two_sweeps_that_read_the_same_only_one_writes(loops: LoopScenario) -> None:
    reading, ledger = loops.read(), loops.scenario.ledger
    change = LoopChange(regressions=log())
    assert isinstance(ledger.write_loop(LoopWrite(reading=reading, change=change)), Written)
    assert ledger.write_loop(LoopWrite(reading=reading, change=change)) == "stale"


def test_each_status_is_an_event_without_texts(loops: LoopScenario) -> None:
    write(loops, log(summary="secret"))
    write(loops, log(summary="secret", steps=1))  # nothing that people are told
    write(loops, log(summary="secret", status="reopened", culprit="c1", culprit_item="b"))
    found = [each.data for each in loops.scenario.ledger.events() if each.type == "loop"]
    events = [each for each in found if "regression" in each]
    assert [each["regression"] for each in events] == ["bisecting", "reopened"]
    assert events[-1]["culprit"] == "c1"
    assert events[-1]["culprit_item"] == "b"
    assert "secret" not in str(events)
