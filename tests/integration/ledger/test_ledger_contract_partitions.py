"""The ledger's contract with several partitions: keys, raising the number, events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.jobs import answer, make_job
from support.ledger_scenario import Scenario, ScenarioMaker, intake_of
from support.settlements import escalates, succeeds

from mulligan.console.cli.find_job import find_job
from mulligan.policies.figures.facts import Figure
from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Accepted, KeyConflict, Submission
from mulligan.workers.backends.follow import LedgerFeed
from mulligan.workers.figures.fold import Fold
from mulligan.workers.figures.windows import FigureReader
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.accept_steps import RESERVED_MS
from mulligan.workers.ledger.partitions import REFRESH

KEY = "pay-invoice-7"


ACCEPTED = Figure("job", ("accepted",), "n")


def scoped(task_type: str, **fields: Any) -> Job:
    """Return a job that shares the memory of its task type, and so its partition."""
    fields = {"memory_scope": "task_type", "idempotency_key": KEY, **fields}
    return make_job(task_type=task_type, **fields)


def external(subject: str) -> Job:
    return make_job(
        subject=subject,
        runner={"kind": "external"},
        verifiers=["external.score"],
        delayed_verification={"mode": "reformulate"},
        idempotency_key=KEY,
    )


def away_from_home(scenario: Scenario, *, than: str | None = None) -> Job:
    """Return a job whose partition is neither that of its key nor that of the job ``than``."""
    home = keys.partition_of(scenario.new_id(make_job(idempotency_key=KEY)))
    for n in range(100):
        job = scoped(f"type{n}")
        partition = keys.partition_of(scenario.new_id(job))
        if partition not in (home, than and keys.partition_of(than)):
            return job
    raise AssertionError("every task type is in the partition of the key")


def finish(scenario: Scenario, job_id: str) -> None:
    claim = scenario.claim(job_id)
    scenario.ledger.store_output(claim.lease, answer())
    scenario.settle(claim, succeeds(claim))


# -- the key alone decides -------------------------------------------------------------------------


def test_one_key_is_one_job_whatever_decides_the_partition(new_scenario: ScenarioMaker) -> None:
    """Given jobs with one key in the partitions of different memories, lanes and of the key itself,
    then the first is accepted and all others are refused, in each order."""
    for n, first in enumerate([scoped("a"), external("mia"), make_job(idempotency_key=KEY)]):
        scenario = new_scenario(partitions=8, key_prefix=f"order{n}")
        accepted = scenario.accept(first)
        assert isinstance(accepted, Accepted)
        assert scenario.accept(first) == Accepted(id=accepted.id, status="seen")
        others = [*map(scoped, "bcdefg"), external("tom"), external("ada")]
        others.append(make_job(idempotency_key=KEY, prompt="Another."))
        assert len({scenario.new_id(job) for job in others}) > 3
        assert {scenario.accept(job) for job in others} == {KeyConflict(id=accepted.id)}
        assert [view.id for view in scenario.ledger.jobs()] == [accepted.id]
        assert find_job(scenario.ledger, KEY).id == accepted.id


def test_a_batch_with_one_key_for_two_jobs_stores_none(new_fake_scenario: ScenarioMaker) -> None:
    scenario = new_fake_scenario(partitions=8)
    for jobs in ([scoped("a"), scoped("b")], [make_job(idempotency_key=KEY), scoped("c")]):
        with pytest.raises(BadInput, match="was used for another job"):
            submit_jobs(intake_of(scenario), jobs)
    assert scenario.ledger.jobs() == []
    (stored,) = submit_jobs(intake_of(scenario), [scoped("a")])
    for other in (scoped("a", prompt="Another."), scoped("b"), make_job(idempotency_key=KEY)):
        with pytest.raises(BadInput, match="was used for another job"):
            submit_jobs(intake_of(scenario), [make_job(idempotency_key="another"), other])
    assert [view.id for view in scenario.ledger.jobs()] == [stored.id]
    again = submit_jobs(intake_of(scenario), [make_job(idempotency_key="another"), scoped("a")])
    assert [each.status for each in again] == ["accepted", "seen"]


def test_only_a_key_away_from_its_job_costs_a_round_trip(new_fake_scenario: ScenarioMaker) -> None:
    scenario = new_fake_scenario(partitions=3)
    away = away_from_home(scenario)

    def round_trips(*jobs: Job) -> int:
        submissions = [Submission(id=scenario.new_id(job), job=job) for job in jobs]
        before = scenario.ledger.round_trips
        scenario.ledger.accept(submissions)
        return scenario.ledger.round_trips - before

    plain = [make_job(), make_job(idempotency_key="k"), make_job(memory_scope="task_type")]
    assert [round_trips(job) for job in (*plain, away)] == [1, 1, 1, 2]
    assert (
        round_trips(*(away.model_copy(update={"idempotency_key": f"{n}"}) for n in range(9))) <= 2
    )
    one = new_fake_scenario(key_prefix="one")
    assert one.ledger.numbers().count == 1
    before = one.ledger.round_trips
    one.submit(idempotency_key="k")
    assert one.ledger.round_trips == before + 1


def test_a_reservation_is_found_by_the_job_that_it_was_made_for(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a producer that died between reserving a key and storing its job, then the repetition
    stores it, and until then another job with the key is refused for a while only."""
    scenario = new_scenario(partitions=3)
    job = away_from_home(scenario)
    reserve(scenario, job)
    other = make_job(idempotency_key=KEY)
    assert isinstance(scenario.accept(other), KeyConflict)
    assert isinstance(
        scenario.accept(away_from_home(scenario, than=scenario.new_id(job))), KeyConflict
    )
    accepted = scenario.accept(job)
    assert isinstance(accepted, Accepted)
    assert accepted.status == "accepted"
    assert isinstance(scenario.accept(other), KeyConflict)


@pytest.mark.parametrize("kind", ["of the key's partition", "of a third partition"])
def test_an_abandoned_reservation_is_replaced(new_fake_scenario: ScenarioMaker, kind: str) -> None:
    """Given a reservation without a job for a minute, then another job gets the key, and the first
    producer, which went on only now, is refused."""
    scenario = new_fake_scenario(partitions=3)
    slow = away_from_home(scenario)
    reserved_at = reserve(scenario, slow)
    scenario.advance(RESERVED_MS / 1000 + 1)
    at_home = kind == "of the key's partition"
    other = (
        make_job(idempotency_key=KEY)
        if at_home
        else away_from_home(scenario, than=scenario.new_id(slow))
    )
    accepted = scenario.accept(other)
    assert isinstance(accepted, Accepted)
    assert accepted.status == "accepted"
    slow_id = scenario.new_id(slow)
    request = scenario.ledger._accept_request(Submission(id=slow_id, job=slow))
    prefix = keys.prefix_of(scenario.settings.key_prefix, slow_id)
    late = scenario.ledger.calls.one("accept", prefix, **request, reserved_at=reserved_at)
    assert late[0] == "late"
    assert scenario.accept(slow) == KeyConflict(id=accepted.id)
    assert [view.id for view in scenario.ledger.jobs()] == [accepted.id]


def reserve(scenario: Scenario, job: Job) -> str:
    """Do the first step of accepting a job, as a producer does that dies then."""
    submission = Submission(id=scenario.new_id(job), job=job)
    answers, reserved_at = scenario.ledger._reserve([submission], None)
    assert answers == {}
    return reserved_at[0]


def test_a_key_may_move_to_another_partition_after_retention(
    new_fake_scenario: ScenarioMaker,
) -> None:
    """Given a job that is no longer kept and left records, then its key may be used by a job of
    another memory and again by the first one, which gets an id of its own."""
    scenario = new_fake_scenario(partitions=3, retention=100.0)
    job = away_from_home(scenario)
    one = scenario.accept(job)
    claim = scenario.claim(one.id)
    scenario.settle(claim, escalates(claim))
    scenario.end(f"{one.id}:1", "resolved")
    scenario.advance(101)
    two = scenario.accept(make_job(idempotency_key=KEY))
    assert isinstance(two, Accepted)
    assert two.status == "accepted"
    assert keys.partition_of(two.id) != keys.partition_of(one.id)
    assert scenario.accept(job) == KeyConflict(id=two.id)
    finish(scenario, two.id)
    scenario.advance(101)
    three = scenario.accept(job)
    assert isinstance(three, Accepted)
    assert (three.id, three.status) == (f"{one.id}_2", "accepted")
    assert scenario.accept(job) == Accepted(id=three.id, status="seen")
    assert scenario.accept(make_job(idempotency_key=KEY)) == KeyConflict(id=three.id)
    assert find_job(scenario.ledger, KEY).id == three.id


@pytest.mark.parametrize("cycle_retention", [10, 50_000])
def test_a_key_is_known_for_as_long_as_its_job_may_be_kept(
    new_fake_scenario: ScenarioMaker, cycle_retention: int
) -> None:
    scenario = new_fake_scenario(partitions=3, cycle_retention=cycle_retention)
    accepted = scenario.accept(away_from_home(scenario))
    scenario.advance(86_400 + scenario.settings.retention)  # its deadline, and how long it is kept
    assert scenario.accept(make_job(idempotency_key=KEY)) == KeyConflict(id=accepted.id)


# -- raising the number ----------------------------------------------------------------------------


def test_raising_the_number_accepts_no_key_twice(new_scenario: ScenarioMaker) -> None:
    """Given jobs, user tasks, lanes and memories of a ledger with one partition, when a process
    raises the number, then it finds all of them, and its new jobs are in all partitions."""
    for n, number in enumerate([1, 2]):
        before = new_scenario(partitions=number, key_prefix=f"raised{n}")
        named = [make_job(idempotency_key=f"k{n}") for n in range(8)]
        named += [scoped(f"t{n}", idempotency_key=f"s{n}") for n in range(8)]
        ids = [before.accept(job).id for job in named]
        lanes = [before.submit_external(f"s{n}") for n in range(8)]
        tasks = [before.ledger.user_task_id(f"message {n}") for n in range(8)]
        before.ledger.accept([Submission(id=each, job=make_job()) for each in tasks])
        shared = before.new_id(make_job(memory_scope="task_type"))

        after = new_scenario(partitions=3 + n, key_prefix=f"raised{n}")
        assert [after.accept(job) for job in named] == [
            Accepted(id=each, status="seen") for each in ids
        ]
        assert [after.ledger.user_task_id(f"message {n}") for n in range(8)] == tasks
        assert [after.next_entry(f"s{n}") for n in range(8)] == [f"a:{each}/1" for each in lanes]
        other = after.new_id(make_job(memory_scope="task_type"))
        assert keys.partition_of(other) == keys.partition_of(shared)
        new = [after.submit() for _ in range(40)]
        assert {keys.partition_of(each) for each in new} == {f"p0{i}" for i in range(3 + n)}
        stored = {*ids, *lanes, *tasks, *new}
        assert {view.id for view in after.ledger.jobs(limit=200)} == stored
        after.advance(after.settings.outbox_grace + 1)
        assert after.swept_entries() == {f"a:{each}/1" for each in stored - {*lanes}}
        Fold(after.ledger).run()
        assert FigureReader(after.ledger).totals()[ACCEPTED] == len(stored)


def test_a_process_that_runs_learns_that_the_number_was_raised(
    new_fake_scenario: ScenarioMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a process with the old number, then it sweeps, lists and follows the new partitions
    half a minute later, and hears of what happened there before."""
    old = new_fake_scenario(partitions=1)
    first = old.submit()
    feed = LedgerFeed(old.ledger, after="0")
    assert [event.job_id for event in feed.take()] == [first]
    other = new_fake_scenario(partitions=3, quotas={"*": {"concurrency": 3}})
    jobs = {other.submit() for _ in range(20)}
    assert {keys.partition_of(each) for each in jobs} == {"p00", "p01", "p02"}
    in_first = {each for each in jobs if keys.partition_of(each) == "p00"}
    assert {event.job_id for event in feed.take()} == in_first
    assert {view.id for view in old.ledger.jobs()} == {first, *in_first}
    old.ledger._numbers_read_at -= REFRESH
    assert {view.id for view in old.ledger.jobs()} == {first, *jobs}
    assert {event.job_id for event in feed.take()} == jobs - in_first
    assert list(feed.take()) == []
    old.advance(old.settings.outbox_grace + 1)
    assert old.swept_entries() == {f"a:{each}/1" for each in (first, *jobs)}


def test_a_lower_number_is_refused(new_scenario: ScenarioMaker) -> None:
    new_scenario(partitions=3).submit()
    for lower in (new_scenario(partitions=2), new_scenario(partitions=1)):
        for step in (lower.submit, lower.sweep, lower.ledger.jobs, lower.ledger.parked):
            with pytest.raises(BadInput, match=r"partitions: is [12] here, but the ledger has 3"):
                step()
    unset = new_scenario()
    assert unset.ledger.numbers().count == 3
    assert {keys.partition_of(unset.submit()) for _ in range(40)} == {"p00", "p01", "p02"}


def test_a_worker_that_started_before_a_raise_claims_its_first_job_after_it(
    new_fake_scenario: ScenarioMaker,
) -> None:
    worker = new_fake_scenario(partitions=3, quotas={"*": {"concurrency": 9}})
    worker.ledger.allow_more_partitions()
    other = new_fake_scenario(partitions=5)
    for job_id in [other.submit(labels={"tenant": "acme"}) for _ in range(9)]:
        worker.claim(job_id)
    assert worker.ledger.numbers().count == 5


def test_a_number_set_before_the_first_job_is_the_first_number(
    new_fake_scenario: ScenarioMaker,
) -> None:
    """Given a client that looked at the empty ledger before, then its first job with a key goes
    where the others look for it."""
    client = new_fake_scenario()
    assert client.ledger.jobs() == []
    workers = new_fake_scenario(partitions=3)
    assert workers.ledger.numbers().first == 3
    jobs = [make_job(idempotency_key=f"k{n}") for n in range(9)]
    ids = [client.accept(job).id for job in jobs]
    assert {keys.partition_of(each) for each in ids} == {"p00", "p01", "p02"}
    assert [workers.accept(job).id for job in jobs] == ids


def test_jobs_of_a_release_without_the_record_stay_where_they_are(
    new_fake_scenario: ScenarioMaker,
) -> None:
    """Given a ledger of three partitions that an earlier release wrote, or that lost the record."""
    scenario = new_fake_scenario(partitions=3)
    ids = {n: scenario.submit(idempotency_key=f"k{n}") for n in range(9)}
    scenario.ledger.calls.run("DEL", keys.partitions(scenario.ledger.prefixes()[0]))
    later = new_fake_scenario(partitions=3)
    assert {n: later.accept(make_job(idempotency_key=f"k{n}")).id for n in ids} == ids
    for raised in (scenario, new_fake_scenario(partitions=5)):
        raised.ledger.calls.run("DEL", keys.partitions(raised.ledger.prefixes()[0]))
        raised.ledger._numbers_read_at -= REFRESH
        assert raised.ledger.numbers().first == 3
        assert {n: raised.accept(make_job(idempotency_key=f"k{n}")).id for n in ids} == ids


# -- events ----------------------------------------------------------------------------------------


def test_events_arrive_in_the_order_of_time(new_fake_scenario: ScenarioMaker) -> None:
    """Given more events in one partition than one reading, and one between them and a later one in
    another, then the later one comes last: else a follower would think that it has missed some."""
    scenario = new_fake_scenario(partitions=2)
    prefixes = scenario.ledger.prefixes()
    for at in (*range(1, 1501), 1600):
        prefix = prefixes[at in (700, 1600)]
        data = json.dumps({"type": "job", "job": f"p00-{at}", "state": "running"})
        scenario.ledger.calls.run("XADD", keys.events(prefix), f"{at}-1", "data", data)
    feed = LedgerFeed(scenario.ledger, after="0")
    readings = [[event.job_id for event in feed.take()] for _ in range(3)]
    heard = [each for reading in readings for each in reading]
    assert heard == [f"p00-{at}" for at in (*range(1, 1501), 1600)]


def test_a_position_from_before_a_raise_continues(new_fake_scenario: ScenarioMaker) -> None:
    streams = new_fake_scenario(partitions=3).ledger.event_streams
    assert streams.position("100000-2,200000-5") == ("100000-2", "200000-5", "40000-0")
    assert streams.position("100000-2") == ("100000-2", "40000-0", "40000-0")
    assert streams.position("100000") == ("100000-0",) * 3
    assert streams.position("1-0,2-0,3-0") == ("1-0", "2-0", "3-0")
