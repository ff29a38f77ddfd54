"""Every status of a cycle, and all that a job can wait for, reached as in real life."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.ledger_stage import FakeRunner, Stage, StageMaker, bench_of, intake_of

from mulligan.policies.cycles.cycle import CycleStatus
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.context import ProviderHold
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.jobs.settle import Settled
from mulligan.tasks.jobs.submit import read_job, submit_jobs
from mulligan.tasks.ports.errors import TransportFault
from mulligan.tasks.ports.ledger import Entry, Finish
from mulligan.workers.celery.state_task import Escalated, StateTask

AFTER = 601
#: Fails first, then does it right.
REPAIRS = ["no JSON", "{}"]


def submit(play: Stage) -> str:
    job = read_job(
        {
            "task_type": "extract",
            "prompt": "Extract the person.",
            "runner": "model",
            "verifiers": ["json.object"],
            "labels": {"tenant": "acme"},
        }
    )
    (told,) = submit_jobs(intake_of(play), [job])
    return told.id


def run(play: Stage, job_id: str, answers: list[str], *, attempts: int) -> None:
    context = bench_of(play, FakeRunner(answers))
    for number in range(1, attempts + 1):
        run_attempt(context, Entry("attempt", job_id, number))


def _low_score(play: Stage) -> str:
    job_id = submit(play)
    run(play, job_id, REPAIRS, attempts=1)
    return job_id


def _repaired(play: Stage) -> str:
    job_id = submit(play)
    run(play, job_id, REPAIRS, attempts=2)
    return job_id


def _verified_later(play: Stage) -> str:
    job_id = _repaired(play)
    play.advance(AFTER)
    run_recheck(bench_of(play), Entry("cycle", job_id, 1, 1))
    return job_id


def _never_repaired(play: Stage) -> str:
    job_id = submit(play)
    run(play, job_id, ["no JSON"], attempts=4)
    return job_id


def _cancelled(play: Stage) -> str:
    job_id = _low_score(play)
    play.ledger.cancel(job_id)
    return job_id


STATUSES: dict[CycleStatus, Callable[[Stage], str]] = {
    CycleStatus.PENDING_IMMEDIATE_RETRY: _low_score,
    CycleStatus.PENDING_DELAYED_VERIFICATION: _repaired,
    CycleStatus.COMPLETED: _verified_later,
    CycleStatus.ESCALATED: _never_repaired,
    CycleStatus.CANCELLED: _cancelled,
}


@pytest.mark.parametrize("status", CycleStatus)
def test_every_status_of_a_cycle_is_reached(fake_stage: StageMaker, status: CycleStatus) -> None:
    play = fake_stage()
    job_id = STATUSES[status](play)
    cycle = play.cycle(job_id)
    assert cycle.status is status
    assert cycle.open is (cycle.ended_at is None)
    told = [event.data for event in play.ledger.events() if event.type == "cycle"]
    assert told[-1]["status"] == status.value


# -- what Flower is told of an escalation ---------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "reason", "count"),
    [
        (["no JSON"], "repeated_failure: json_invalid (prose) $", "seen 3 times"),
        # another failure each time, until none is left
        (["no JSON", "", "[]", '{"a": }'], "max_attempts: json_invalid (syntax) $", "seen once"),
    ],
)
def test_an_escalation_is_told_with_kind_place_and_count(
    fake_stage: StageMaker, answers: list[str], reason: str, count: str
) -> None:
    play = fake_stage()
    job_id = submit(play)
    context = bench_of(play, FakeRunner(answers))
    entries = [Entry("attempt", job_id, number) for number in (1, 2, 3, 4)]
    told = [(entry, run_attempt(context, entry)) for entry in entries]
    entry, last = next(
        (entry, outcome)
        for entry, outcome in told
        if isinstance(outcome, Settled) and isinstance(outcome.then, Finish)
    )
    with pytest.raises(Escalated) as caught:
        StateTask().report(entry, last)
    assert str(caught.value) == f"extract attempt {entry.attempt}: {reason}, {count}"


# -- what a job can wait for -----------------------------------------------------------------------


class Open:
    """The breaker of every provider is open."""

    def wait(self, provider: str) -> ProviderHold | None:
        return ProviderHold(seconds=5.0)

    def fault(self, fault: TransportFault) -> None: ...

    def success(self, provider: str) -> None: ...


def _transport_fault(play: Stage) -> str:
    job_id = submit(play)
    runner = FakeRunner([TransportFault("503", provider="fake")])
    run_attempt(bench_of(play, runner), Entry("attempt", job_id, 1))
    return job_id


def _quota(play: Stage) -> str:
    play.take(submit(play))
    job_id = submit(play)
    run(play, job_id, REPAIRS, attempts=1)
    return job_id


def _paused(play: Stage) -> str:
    play.ledger.pause("task_type:extract")
    job_id = submit(play)
    run(play, job_id, REPAIRS, attempts=1)
    return job_id


def _breaker(play: Stage) -> str:
    job_id = submit(play)
    run_attempt(bench_of(play, breakers=Open()), Entry("attempt", job_id, 1))
    return job_id


@pytest.mark.parametrize(
    ("waiting_for", "story"),
    [("delay", _transport_fault), ("budget", _quota), ("pause", _paused), ("breaker", _breaker)],
)
def test_everything_a_job_can_wait_for(
    fake_stage: StageMaker, waiting_for: str, story: Callable[[Stage], str]
) -> None:
    play = fake_stage(quotas={"acme": {"concurrency": 1}})
    view = play.view(story(play))
    assert (view.state, view.waiting_for) == ("waiting", waiting_for)
