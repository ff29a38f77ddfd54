"""The ledger's contract: what a worker says about a running attempt, with the ledger's times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.jobs import answer
from support.ledger_scenario import Scenario
from support.loops import LoopScenario, item

from mulligan.policies.loops.progress import AgentProgress
from mulligan.tasks.ports.ledger import Claim, LiveItem

HUNG = AgentProgress(
    at={"event": 40.0, "cpu": 2.0}, waits_on="tool", state="T", processes=3, finding="it hangs"
)


@pytest.fixture
def loops(scenario: Scenario) -> LoopScenario:
    loops = LoopScenario(scenario)
    loops.create(item("a"))
    loops.plan()
    return loops


def live(loops: LoopScenario) -> LiveItem:
    (found,) = loops.scenario.ledger.live_items()
    return found


def renew(loops: LoopScenario, claim: Claim, progress: AgentProgress | None) -> None:
    assert not loops.scenario.ledger.renew([replace(claim.lease, progress=progress)])


def test_a_renewal_says_how_the_attempt_goes(loops: LoopScenario) -> None:
    claim = loops.claim("a")
    assert live(loops).progress is None
    renew(loops, claim, HUNG)
    renewed_at, found = live(loops).renewed_at, live(loops).progress
    assert found is not None
    assert renewed_at is not None
    assert found.at == pytest.approx({"event": renewed_at - 40, "cpu": renewed_at - 2}, abs=0.01)
    assert replace(found, at=HUNG.at) == HUNG
    (seen,) = loops.read().fleet.live
    assert seen.progress == found


def test_progress_ends_with_the_agent(loops: LoopScenario) -> None:
    """When the agent has ended, or its answer is stored, then nothing is said about it."""
    claim = loops.claim("a")
    renew(loops, claim, HUNG)
    renew(loops, claim, None)
    assert live(loops).progress is None
    renew(loops, claim, HUNG)
    loops.scenario.ledger.store_output(claim.lease, answer(), verifications=[0])
    assert live(loops).progress is None


def test_the_next_worker_begins_anew(loops: LoopScenario) -> None:
    claim = loops.claim("a")
    renew(loops, claim, HUNG)
    loops.scenario.ledger.requeue(claim.lease, delay=0.0, detail="the worker was shut down")
    loops.claim("a")
    assert live(loops).progress is None


@pytest.mark.parametrize(
    "text", ["", "x", "1 {}", "1 []", '1 {"at": {"cpu": "x"}}', 'x {"at": {}}', "1"]
)
def test_a_damaged_text_says_nothing(loops: LoopScenario, text: str) -> None:
    claim = loops.claim("a")
    key = f"mulligan:{{p00}}:job:{claim.job_id}:1"
    loops.scenario.ledger.calls.run("HSET", key, "progress", text)
    assert live(loops).progress is None
