"""Real workers of two releases on one ledger: an upgrade, a rollback and another upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.fleet import CONTROL, WORK, Fleet, running_fleet
from support.jobs import GOOD, MISSING, scripted
from support.newer_release import SCHEMA, Job
from support.waiting import wait_for

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.ports.ledger import Accepted, JobView, Submission
from mulligan.workers.ledger.connection.calls import connect
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import job_ids
from mulligan.workers.local.supervisor import Stack

TESTS = Path(__file__).parents[2]
#: Each job needs its mandatory retry and its delayed verification.
PLAIN = scripted(MISSING, GOOD)


@contextmanager
def workers(fleet: Fleet, *, newer: bool) -> Iterator[None]:
    """Run one worker of a release, next to the older control worker."""
    name = "newer" if newer else "older"
    environment = {**fleet.stack.environment, "PYTHONPATH": str(TESTS)}
    stack = Stack(fleet.folder, environment)
    argv = WORK.argv()
    if newer:
        argv[argv.index("mulligan.workers.app")] = "support.newer_release"
    try:
        stack.add(name, [part.replace("work@", f"{name}@") for part in argv])
        wait_for(lambda: name in pools(fleet), f"the {name} worker's first beat", seconds=60)
        yield
    finally:
        stack.stop()


def pools(fleet: Fleet) -> dict[str, tuple[str, int]]:
    beats = fleet.ledger.beats.live(now=fleet.ledger.now())
    return {beat.pool: (beat.release, beat.reads_schema) for beat in beats}


def submit_newer(fleet: Fleet, count: int) -> list[str]:
    """Submit jobs with the newer release's field, as its producer does."""
    settings = fleet.services.settings
    ledger = RedisLedger(connect(settings.ledger or ""), settings, patience=10, schema=SCHEMA)
    jobs = [Job.model_validate({**PLAIN, "region": "eu"}) for _ in range(count)]
    submissions = [Submission(id=job_ids.job_id(partitions=1), job=job) for job in jobs]
    accepted = [answer for answer in ledger.accept(submissions) if isinstance(answer, Accepted)]
    fleet.services.publish([each.publication for each in accepted if each.publication])
    return [each.id for each in accepted]


def views_of(fleet: Fleet, ids: list[str]) -> list[JobView]:
    return [view for view in map(fleet.ledger.job, ids) if view is not None]


def wait_for_waiting(fleet: Fleet, ids: list[str]) -> None:
    """Wait until the older workers have left these jobs to others, without counting a claim."""
    wait_for(
        lambda: all(view.waiting_for == "version" for view in views_of(fleet, ids)),
        "the newer jobs to wait",
    )
    assert [view.attempts[0].claims for view in views_of(fleet, ids)] == [0] * len(ids)


def test_an_upgrade_and_a_rollback_lose_nothing(tmp_path: Path) -> None:
    """Given jobs of both releases, when workers are upgraded, rolled back and upgraded again, then
    each job ends as it does with one release."""
    with running_fleet(tmp_path, pools=(CONTROL,), lease=3.0) as fleet:
        newer, plain = submit_newer(fleet, 3), fleet.submit(*[PLAIN] * 3)
        with workers(fleet, newer=False):
            fleet.wait_until_finished(plain)
            wait_for_waiting(fleet, newer)
        with workers(fleet, newer=True):
            assert pools(fleet)["newer"] == ("9.1.0", SCHEMA.number)
            newer += submit_newer(fleet, 3)
            plain += fleet.submit(*[PLAIN] * 3)
            wait_for(
                lambda: any(view.state in TERMINAL for view in views_of(fleet, newer)),
                "a newer job to end",
            )
        last = submit_newer(fleet, 1)
        plain += fleet.submit(*[PLAIN] * 3)
        with workers(fleet, newer=False):
            ended = fleet.wait_until_finished(plain)
            wait_for_waiting(fleet, last)
        with workers(fleet, newer=True):
            ended += fleet.wait_until_finished(newer + last, seconds=120)
        expected = ("succeeded", [1, 2], ["completed"])
        assert [summary(view) for view in ended] == [expected] * len(ended)
        assert [view.needs_schema for view in ended] == [1] * len(plain) + [SCHEMA.number] * 7
        assert not fleet.ledger.escalations(only_open=False)


def summary(view: JobView) -> tuple[str, list[int], list[str]]:
    numbers = [attempt.plan.number for attempt in view.attempts]
    return view.state, numbers, [cycle.status.value for cycle in view.cycles]
