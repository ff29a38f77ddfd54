"""What ends its process is not tried for ever, and what only shared the process is not blamed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.fleet import running_fleet
from support.jobs import GOOD, scripted
from support.ledger_scenario import Scenario, ScenarioMaker

from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import ClaimRefused
from mulligan.workers.celery.broker.queues import Pool
from mulligan.workers.celery.counted_run import counted_run

CONTROL = Pool(name="control", queues=("control",), kind="solo")
WORK = Pool(name="work", queues=("repair", "verify", "attempt"), slots=2)


@pytest.fixture
def scenario(new_fake_scenario: ScenarioMaker) -> Scenario:
    """A worker with several slots, whose entries share their process."""
    scenario = new_fake_scenario(max_claims=2)
    scenario.ledger.shares_process = True
    return scenario


def test_an_attempt_of_a_shared_process_is_tried_alone_before_it_is_blamed(
    scenario: Scenario,
) -> None:
    job_id = scenario.submit()
    for _ in range(2):
        scenario.claim(job_id)
        scenario.expire_leases()
    assert scenario.refusal(job_id) == ClaimRefused("alone")
    assert scenario.view(job_id).state == "queued"
    scenario.ledger.shares_process = False
    scenario.claim(job_id)
    scenario.expire_leases()
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "worker_lost")
    assert scenario.view(job_id).detail == "3 workers were lost while running attempt 1"


def test_an_attempt_that_was_given_back_is_not_blamed(scenario: Scenario) -> None:
    """When its worker is stopped, or its provider is away, it has proved nothing."""
    job_id = scenario.submit()
    for _ in range(2):
        scenario.claim(job_id)
        scenario.expire_leases()
    scenario.ledger.shares_process = False
    claim = scenario.claim(job_id)
    scenario.ledger.requeue(claim.lease, delay=0.0, detail="the worker was shut down")
    scenario.ledger.shares_process = True
    assert scenario.refusal(job_id) == ClaimRefused("alone")
    scenario.ledger.shares_process = False
    scenario.claim(job_id)


def test_an_attempt_with_a_process_of_its_own_is_blamed_after_two(scenario: Scenario) -> None:
    scenario.ledger.shares_process = False
    job_id = scenario.submit()
    for _ in range(2):
        scenario.claim(job_id)
        scenario.expire_leases()
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "worker_lost")


def test_a_verification_is_tried_alone_before_it_is_blamed(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id, [0])
    for _ in range(2):
        scenario.claim_verification(job_id, 0)
        scenario.expire_leases()
    assert scenario.verification_refusal(job_id, 0) == ClaimRefused("alone")
    scenario.ledger.shares_process = False
    scenario.claim_verification(job_id, 0)
    scenario.expire_leases()
    assert scenario.verification_refusal(job_id, 0) == ClaimRefused("escalated", "worker_lost")


def test_unfinished_runs_count_other_processes_until_one_ends(scenario: Scenario) -> None:
    runs = scenario.ledger.unfinished_runs
    assert [runs.begin("x", process=name) for name in ("a", "b", "b", "c")] == [0, 1, 1, 2]
    assert runs.begin("y" * 10_000, process="a") == 0
    runs.end("x")
    assert runs.begin("x", process="d") == 0
    scenario.advance(90_000)
    assert runs.begin("x", process="e") == 0


def test_what_ended_its_processes_is_refused(scenario: Scenario) -> None:
    """A submission and the plan of a loop have no claim that counts their workers."""
    ledger = scenario.ledger

    def services(worker: str) -> Any:
        return SimpleNamespace(ledger=ledger, context=SimpleNamespace(worker=worker))

    dead = [counted_run(services(worker), "deadly", most=2) for worker in ("a", "b")]
    for each in dead:
        each.__enter__()  # and nothing comes after it
    with pytest.raises(BadInput, match="2 processes ended"):
        counted_run(services("c"), "deadly", most=2).__enter__()
    (record,) = ledger.refused_submissions.newest()
    assert (record.id, record.problems) == ("deadly", ("2 processes ended while working on it",))
    with (
        pytest.raises(ValueError, match="an ordinary error"),
        counted_run(services("d"), "harmless", most=1),
    ):
        raise ValueError("an ordinary error")
    with counted_run(services("e"), "harmless", most=1):
        pass


@pytest.mark.chaos
def test_a_killer_is_escalated_and_its_neighbours_are_not() -> None:
    with tempfile.TemporaryDirectory(prefix="mulligan-") as name:
        folder, crashes = Path(name), Path(name) / "crashes"
        crashes.mkdir()
        with running_fleet(
            folder,
            pools=(),
            environment={"MULLIGAN_CRASH_DIR": str(crashes)},
            lease=1.0,
        ) as fleet:
            (killer,) = fleet.submit(scripted(GOOD))
            neighbours = fleet.submit(scripted({"text": GOOD, "delay": 2.0}))
            (crashes / f"asking a:{killer}_1").touch()
            for pool in (CONTROL, WORK):
                fleet.stack.add(pool.name, pool.argv())
            views = fleet.wait_until_finished([killer, *neighbours], seconds=120)
            assert (views[0].state, views[0].reason) == ("escalated", "worker_lost")
            assert {view.state for view in views[1:]} == {"succeeded"}
            log = (folder / "logs" / "work.log").read_text()
            assert f"a:{killer}/1 has lost its workers; it runs in a process of its own" in log
