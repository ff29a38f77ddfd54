"""The ledger's contract: outbox, retention, events and listings."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.jobs import answer, make_job
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import escalates, retries_by_policy, retries_immediately, succeeds

from mulligan.tasks.ports.ledger import Entry, Publication, Submission
from mulligan.workers.ledger import keys


def submit_stamped(scenario: Scenario) -> str:
    job_id = scenario.submit()
    scenario.ledger.stamp([Entry("attempt", job_id, 1)])
    return job_id


def complete(scenario: Scenario, job_id: str) -> None:
    claim = scenario.claim(job_id)
    scenario.settle(claim, succeeds(claim))


# -- the outbox ------------------------------------------------------------------------------------


def test_an_outcome_waits_in_the_outbox_until_it_is_sent(scenario: Scenario) -> None:
    """Given a producer that asked for the outcome, then the sweep returns it until it is sent."""
    job_id = scenario.submit(on_done={"task": "shop.answered", "queue": "shop"})
    done = Entry("done", job_id, 1)
    assert scenario.swept_entries() == set()
    complete(scenario, job_id)
    assert scenario.sweep() == [Publication(done, "shop", 5)]
    scenario.ledger.stamp([done])
    scenario.advance(scenario.settings.republish_after * 10)
    assert scenario.sweep("shop") == []


@pytest.mark.parametrize("end", ["escalated", "cancelled"])
def test_every_final_state_is_sent(scenario: Scenario, end: str) -> None:
    job_id = scenario.submit(on_done={"task": "shop.answered", "queue": "shop"})
    if end == "cancelled":
        scenario.ledger.cancel(job_id)
    else:
        claim = scenario.claim(job_id)
        scenario.settle(claim, escalates(claim))
    assert scenario.swept_entries() == {f"d:{job_id}/1"}


def test_an_unpublished_entry_is_found_after_the_grace_period(scenario: Scenario) -> None:
    job_id = scenario.submit(priority=2)
    assert scenario.swept_entries("attempt") == set()
    found = [Publication(Entry("attempt", job_id, 1), "attempt", 2)]
    for _ in range(3):  # until it is stamped as published
        scenario.advance(scenario.settings.outbox_grace + 1)
        assert scenario.sweep() == found
        assert scenario.sweep() == []


def test_a_published_entry_is_not_repeated_while_its_queue_is_busy(scenario: Scenario) -> None:
    submit_stamped(scenario)
    for _ in range(5):
        scenario.advance(scenario.settings.republish_after + 1)
        assert scenario.swept_entries("repair", "verify") == set()


def test_a_published_entry_is_published_again_when_its_queue_is_empty(scenario: Scenario) -> None:
    """Given a message lost in a broker's client, when the queue is empty, then it is repeated."""
    job_id = submit_stamped(scenario)
    scenario.advance(scenario.settings.republish_after - 5)
    assert scenario.swept_entries("attempt") == set()
    scenario.advance(6)
    assert scenario.swept_entries("attempt") == {f"a:{job_id}/1"}


def test_a_published_entry_is_published_again_after_it_was_overtaken(scenario: Scenario) -> None:
    lost = submit_stamped(scenario)
    scenario.advance(scenario.settings.republish_after / 2)
    complete(scenario, submit_stamped(scenario))  # published too soon to count as overtaking
    scenario.advance(scenario.settings.republish_after / 2 + 1)
    assert scenario.swept_entries() == set()
    complete(scenario, submit_stamped(scenario))
    scenario.advance(scenario.settings.republish_after + 1)
    assert scenario.swept_entries() == {f"a:{lost}/1"}


def test_every_repeat_doubles_the_wait(scenario: Scenario) -> None:
    job_id = submit_stamped(scenario)
    entry, wait = Entry("attempt", job_id, 1), scenario.settings.republish_after
    for _ in range(4):
        scenario.advance(wait - 10)
        assert scenario.swept_entries("attempt") == set()
        scenario.advance(11)
        assert scenario.swept_entries("attempt") == {str(entry)}
        scenario.ledger.stamp([entry])
        wait *= 2


def test_a_claim_removes_its_entry(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.claim(job_id)
    scenario.ledger.stamp([Entry("attempt", job_id, 1)])  # a late stamp
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries("attempt") == set()


def test_a_late_stamp_does_not_change_a_requeued_entry(scenario: Scenario) -> None:
    """Given a worker that claimed an attempt and requeued it for a second before its publisher
    stamped it, then the attempt is due after that second, not after the minute."""
    job_id = scenario.submit()
    scenario.ledger.requeue(scenario.claim(job_id).lease, delay=1, detail="the breaker is open")
    scenario.ledger.stamp([Entry("attempt", job_id, 1)])
    scenario.advance(2)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
    scenario.ledger.stamp([Entry("attempt", job_id, 1)])
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == set()


def test_an_unpublished_delayed_entry_is_found_again(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.ledger.requeue(scenario.claim(job_id).lease, delay=10, detail="503")
    scenario.advance(11)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}


def test_a_backlog_is_never_published_twice(new_scenario: ScenarioMaker) -> None:
    """Given 1,000 published entries and slow workers, then none of them is published again."""
    scenario = new_scenario(sweep_limit=2000)
    jobs = [make_job() for _ in range(1000)]
    accepted = scenario.ledger.accept(
        [Submission(id=scenario.new_id(job), job=job) for job in jobs]
    )
    scenario.ledger.stamp([Entry("attempt", each.id, 1) for each in accepted])
    for minute in range(5):
        scenario.advance(scenario.settings.republish_after + 1)
        complete(scenario, accepted[minute].id)
        assert scenario.swept_entries("repair", "verify") == set()


def test_an_entry_is_lost_by_what_happens_in_the_queue_that_it_was_sent_to(
    scenario: Scenario,
) -> None:
    """Given a message that was sent to a user's lane, then neither the queue it was filed under nor
    the claims from there say that it is lost; those of the lane do."""
    lane, after = "mine.repair", scenario.settings.republish_after + 1
    lost = Entry("attempt", scenario.submit(priority=5), 1)
    scenario.ledger.stamp([lost], moved=[Publication(lost, lane, 0)])
    assert lane in scenario.ledger.published_queues()
    scenario.advance(after)
    other = scenario.submit(priority=5)
    scenario.ledger.stamp([Entry("attempt", other, 1)])
    complete(scenario, other)
    assert scenario.swept_entries("attempt", "repair") == set()
    later = Entry("attempt", scenario.submit(priority=5), 1)
    scenario.ledger.stamp([later], moved=[Publication(later, lane, 0)])
    complete(scenario, later.job_id)
    scenario.advance(after)
    assert scenario.swept_entries() == {str(lost)}
    scenario.ledger.stamp([lost])  # sent again to where it was sent before
    scenario.advance(4 * after)
    assert scenario.swept_entries("attempt", "repair") == set()
    scenario.advance(4 * after)
    assert scenario.swept_entries(lane) == {str(lost)}


def test_a_more_urgent_entry_does_not_overtake_a_backlog(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a backlog, when a later but more urgent job is claimed, then the backlog is not
    repeated; when a later job of the same priority is claimed, then it is."""
    scenario = new_scenario()
    backlog = {f"a:{scenario.submit(priority=5)}/1" for _ in range(3)}
    scenario.ledger.stamp([Entry.parse(text) for text in backlog])
    scenario.advance(scenario.settings.republish_after + 1)
    for priority, lost in ((0, set()), (4, set()), (5, backlog)):
        later = scenario.submit(priority=priority)
        scenario.ledger.stamp([Entry("attempt", later, 1)])
        complete(scenario, later)
        assert scenario.swept_entries() == lost
        scenario.advance(scenario.settings.republish_after + 1)


def test_a_less_urgent_entry_overtakes_an_urgent_one(scenario: Scenario) -> None:
    urgent = scenario.submit(priority=0)
    scenario.ledger.stamp([Entry("attempt", urgent, 1)])
    scenario.advance(scenario.settings.republish_after + 1)
    later = scenario.submit(priority=5)
    scenario.ledger.stamp([Entry("attempt", later, 1)])
    complete(scenario, later)
    assert scenario.swept_entries() == {f"a:{urgent}/1"}


def test_cancelling_a_new_job_does_not_repeat_the_backlog(new_scenario: ScenarioMaker) -> None:
    """Given 400 published entries, when the newest job is cancelled, which claims nothing, then no
    entry of the backlog counts as overtaken."""
    scenario = new_scenario(sweep_limit=2000)
    jobs = [make_job() for _ in range(400)]
    accepted = scenario.ledger.accept(
        [Submission(id=scenario.new_id(job), job=job) for job in jobs]
    )
    scenario.ledger.stamp([Entry("attempt", each.id, 1) for each in accepted])
    scenario.advance(scenario.settings.republish_after + 1)
    scenario.ledger.cancel(submit_stamped(scenario))
    assert scenario.swept_entries() == set()
    scenario.advance(scenario.settings.republish_after + 1)
    assert scenario.swept_entries() == set()


def test_a_lost_urgent_entry_does_not_wait_for_an_older_backlog(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a backlog, and a retry that was published after it and lost: the broker serves the most
    urgent first, so a claim of the backlog half a minute later proves the loss."""
    scenario = new_scenario()
    backlog = [submit_stamped(scenario) for _ in range(3)]
    scenario.advance(1)
    lost = scenario.submit(priority=0)
    scenario.ledger.stamp([Entry("attempt", lost, 1)])
    scenario.advance(scenario.settings.republish_after / 2 + 1)
    complete(scenario, backlog[0])
    scenario.advance(scenario.settings.republish_after / 2)
    assert scenario.swept_entries() == {f"a:{lost}/1"}


def test_a_claim_soon_after_an_urgent_publication_proves_no_loss(scenario: Scenario) -> None:
    """A worker may claim a message that it took before the urgent one was published."""
    older = submit_stamped(scenario)
    urgent = scenario.submit(priority=0)
    scenario.ledger.stamp([Entry("attempt", urgent, 1)])
    scenario.advance(scenario.settings.republish_after / 2 - 1)
    complete(scenario, older)
    scenario.advance(scenario.settings.republish_after)
    assert scenario.swept_entries() == set()


@pytest.mark.parametrize(
    ("lost", "backlog", "repeated"),
    [(2, 3, True), (0, 2, False), (3, 5, False), (4, 6, True), (5, 5, False), (9, 5, False)],
)
def test_only_a_less_urgent_band_proves_a_loss_by_its_claim(
    scenario: Scenario, lost: int, backlog: int, repeated: bool
) -> None:
    """Redis has one list for the priorities 0 to 2, 3 to 5, 6 to 8, and 9."""
    older = scenario.submit(priority=backlog)
    scenario.ledger.stamp([Entry("attempt", older, 1)])
    entry = Entry("attempt", scenario.submit(priority=lost), 1)
    scenario.ledger.stamp([entry])
    scenario.advance(scenario.settings.republish_after - 1)
    scenario.claim(older)
    scenario.advance(2)
    assert scenario.swept_entries() == ({str(entry)} if repeated else set())


def test_a_broker_without_priorities_proves_no_loss_by_a_claim(scenario: Scenario) -> None:
    """On AMQP an urgent message waits behind the older ones."""
    older = submit_stamped(scenario)
    urgent = scenario.submit(priority=0)
    scenario.ledger.stamp([Entry("attempt", urgent, 1)])
    scenario.advance(scenario.settings.republish_after - 1)
    scenario.claim(older)
    scenario.advance(2)
    assert scenario.ledger.sweep(empty_queues=[], by_priority=False) == []


def test_a_loss_is_proven_by_a_claim_in_another_partition(new_scenario: ScenarioMaker) -> None:
    """Partitions share the broker's queues, so they share what claims prove."""
    scenario = new_scenario(partitions=2)
    by_partition: dict[str, list[str]] = {}
    while len(by_partition) < 2:
        job_id = scenario.submit(priority=5)
        by_partition.setdefault(job_id.partition("-")[0], []).append(job_id)
    backlog, other = by_partition.values()
    scenario.ledger.stamp([Entry("attempt", each, 1) for each in (*backlog, *other)])
    lost = Entry("attempt", other[0], 1)
    scenario.advance(scenario.settings.republish_after + 1)
    while (late := scenario.submit(priority=5)).partition("-")[0] == lost.job_id.partition("-")[0]:
        scenario.ledger.cancel(late)
    scenario.ledger.stamp([Entry("attempt", late, 1)])
    for each in (*backlog, late):
        scenario.claim(each)
    assert str(lost) in scenario.swept_entries()


def test_a_long_backlog_does_not_delay_unpublished_entries(new_scenario: ScenarioMaker) -> None:
    """Given more published entries than one sweep checks, then the next sweep still publishes what
    was never published."""
    scenario = new_scenario(sweep_limit=2)
    backlog = [Entry("attempt", scenario.submit(), 1) for _ in range(9)]
    scenario.ledger.stamp(backlog)
    scenario.advance(scenario.settings.republish_after + 1)
    late = scenario.submit()
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == {f"a:{late}/1"}


def test_a_due_retry_is_in_the_first_sweep_however_much_is_due(new_scenario: ScenarioMaker) -> None:
    """Given more jobs than a sweep takes, all older than a retry that was never published."""
    scenario = new_scenario(sweep_limit=5)
    retried = scenario.submit()
    claim = scenario.claim(retried)
    for _ in range(20):
        scenario.submit()
    scenario.advance(1)
    scenario.settle(claim, retries_immediately(claim))
    scenario.advance(10)
    assert f"a:{retried}/2" in scenario.swept_entries()


def test_a_sweep_is_bounded_and_the_next_one_continues(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(sweep_limit=2)
    expected = {f"a:{scenario.submit()}/1" for _ in range(5)}
    scenario.advance(scenario.settings.outbox_grace + 1)
    batches = [scenario.swept_entries() for _ in range(3)]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert set().union(*batches) == expected


# -- retention -------------------------------------------------------------------------------------


def test_a_finished_job_is_kept_for_its_retention_and_then_gone(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.ledger.store_output(claim.lease, answer())
    scenario.settle(claim, escalates(claim))
    scenario.advance(scenario.settings.retention - 10)
    scenario.sweep()
    assert scenario.attempt(job_id).output == answer()
    scenario.advance(11)
    scenario.sweep()
    assert scenario.ledger.job(job_id) is None
    assert scenario.ledger.jobs() == []
    assert scenario.ledger.jobs(state="escalated") == []
    assert scenario.refusal(job_id).reason == "gone"


def test_an_unfinished_job_never_expires(scenario: Scenario) -> None:
    waiting = scenario.submit(deadline=10 * 365 * 86400)
    running = scenario.submit(deadline=10 * 365 * 86400)
    scenario.claim(running)
    scenario.advance(scenario.settings.retention * 100)
    scenario.sweep()
    assert {view.id for view in scenario.ledger.jobs()} == {waiting, running}


def test_retention_does_not_start_before_the_delayed_verification_has_ended(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(retention=100)
    job_id, entry = scenario.repaired_job()
    scenario.advance(601)
    scenario.sweep()
    taken = scenario.claim_recheck(entry)
    assert taken.claim.output == answer("repaired")
    scenario.ledger.settle_cycle(taken.lease, status="completed", score=100)
    scenario.advance(99)
    assert len(scenario.view(job_id).attempts) == 2
    scenario.advance(2)
    assert scenario.ledger.job(job_id) is None
    # The compact record of the cycle has a longer retention.
    assert [cycle.id for cycle in scenario.ledger.cycles(since=0, limit=9)] == [entry.cycle_id]
    scenario.advance(scenario.settings.cycle_retention)
    scenario.sweep()
    assert scenario.ledger.cycles(since=0, limit=9) == []


def test_a_retention_may_be_a_fraction_of_a_millisecond(
    new_scenario: ScenarioMaker,
) -> None:
    """16.1 * 1000 is 16100.000000000002, which PEXPIRE refuses in the middle of a script."""
    scenario = new_scenario(retention=16.1, cycle_retention=16.1)
    job_id, entry = scenario.repaired_job()
    scenario.advance(601)
    lease = scenario.claim_recheck(entry).lease
    assert scenario.ledger.settle_cycle(lease, status="completed", score=100)
    scenario.advance(17)
    assert scenario.ledger.job(job_id) is None


def test_a_memory_written_after_its_job_ended_expires_with_it(scenario: Scenario) -> None:
    """Given a job cancelled while it ran, when its failure is counted afterwards, then that memory
    does not outlive the job's retention."""
    job_id = scenario.submit(memory_scope="task_type")
    claim = scenario.claim(job_id)
    scenario.ledger.cancel(job_id)
    scenario.settle(claim, retries_by_policy(claim, signatures=("late",)))
    scenario.advance(scenario.settings.retention - 10)
    assert scenario.claim(scenario.submit(memory_scope="task_type")).memory.count("late") == 1
    scenario.advance(11)
    assert scenario.claim(scenario.submit(memory_scope="task_type")).memory.count("late") == 0


def test_an_idempotency_key_is_free_again_after_the_retention(scenario: Scenario) -> None:
    job_id = scenario.submit(idempotency_key="weekly")
    scenario.ledger.cancel(job_id)
    scenario.advance(scenario.settings.retention + 1)
    assert scenario.submit(idempotency_key="weekly", prompt="Another one.") == job_id


# -- events and listings ---------------------------------------------------------------------------


def test_events_describe_a_job_in_order(scenario: Scenario) -> None:
    job_id, entry = scenario.repaired_job(name="Alice")
    scenario.advance(601)
    lease = scenario.claim_recheck(entry).lease
    scenario.ledger.settle_cycle(lease, status="completed", score=100)
    found = [
        (event.type, event.data.get("attempt"), event.data.get("state") or event.data["status"])
        for event in scenario.ledger.events()
    ]
    assert found == [
        ("job", None, "queued"),
        ("attempt", 1, "running"),
        ("attempt", 1, "settled"),
        ("cycle", None, "pending_immediate_retry"),
        ("attempt", 2, "running"),
        ("attempt", 2, "settled"),
        ("cycle", None, "pending_delayed_verification"),
        ("job", None, "succeeded"),
        ("cycle", None, "completed"),
    ]
    first, _, settled, *_ = scenario.ledger.events()
    assert first.job_id == job_id
    assert first.data == {
        "type": "job",
        "job": job_id,
        "state": "queued",
        "task_type": "extract",
        "name": "Alice",
    }
    assert settled.data == {
        "type": "attempt",
        "job": job_id,
        "attempt": 1,
        "state": "settled",
        "score": 40.0,
        "success": False,
        "kind": "json_invalid",
        "next": "immediate_retry",
    }


def test_events_continue_after_a_reader_s_position(scenario: Scenario) -> None:
    scenario.submit()
    (first,) = scenario.ledger.events()
    assert list(scenario.ledger.events(after=first.id)) == []
    assert list(scenario.ledger.events(after="$")) == []
    job_id = scenario.submit()
    assert [event.job_id for event in scenario.ledger.events(after=first.id)] == [job_id]


def test_a_reader_gets_every_event_of_several_partitions(new_scenario: ScenarioMaker) -> None:
    """Given one partition with more events than one reading, then the others' events arrive too."""
    scenario = new_scenario(partitions=2)
    jobs = [scenario.submit() for _ in range(9)]
    busy = jobs[0]
    crowd = json.dumps({"type": "job", "job": busy, "state": "running"})
    stream = f"mulligan:{{{keys.partition_of(busy)}}}:events"
    for _ in range(1500):
        scenario.ledger.calls.run("XADD", stream, "*", "data", crowd)
    jobs += [scenario.submit() for _ in range(9)]
    seen, after = [], "0"
    while found := list(scenario.ledger.events(after=after)):
        seen += [event.job_id for event in found if event.data["state"] == "queued"]
        after = found[-1].id
    assert sorted(seen) == sorted(jobs)


def test_a_reader_may_wait_for_the_next_event(scenario: Scenario) -> None:
    scenario.submit()
    (first,) = scenario.ledger.events()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: list(scenario.ledger.events(after=first.id, block=20)))
        job_id = scenario.submit()
        assert [event.job_id for event in waiting.result(20)] == [job_id]
    (_, last) = scenario.ledger.events()
    assert list(scenario.ledger.events(after=last.id, block=0.001)) == []


def test_lost_leases_and_waiting_are_events_too(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.claim(job_id)
    scenario.expire_leases()
    scenario.ledger.requeue(scenario.claim(job_id).lease, delay=5, detail="503")
    scenario.ledger.cancel(job_id)
    events = [event.data for event in scenario.ledger.events() if event.type != "cycle"]
    assert [data["state"] for data in events] == [
        "queued", "running", "lease_expired", "running", "waiting", "cancelled",
    ]  # fmt: skip
    assert events[4]["detail"] == "503"
    assert events[5]["reason"] == "cancelled"


def test_jobs_are_listed_newest_first_without_their_attempts(scenario: Scenario) -> None:
    jobs = []
    for _ in range(4):
        jobs.append(scenario.submit())
        scenario.advance(1)
    listed = scenario.ledger.jobs()
    assert [view.id for view in listed] == jobs[::-1]
    assert listed[0].attempts == ()
    assert [view.id for view in scenario.ledger.jobs(limit=2)] == [jobs[3], jobs[2]]


def test_jobs_are_listed_by_state(scenario: Scenario) -> None:
    queued, running, done, waiting = (scenario.submit() for _ in range(4))
    scenario.claim(running)
    complete(scenario, done)
    scenario.ledger.requeue(scenario.claim(waiting).lease, delay=9, detail="503")
    by_state = {
        state: [view.id for view in scenario.ledger.jobs(state=state)]
        for state in ("queued", "running", "succeeded", "waiting", "cancelled")
    }
    assert by_state == {
        "queued": [queued],
        "running": [running],
        "succeeded": [done],
        "waiting": [waiting],
        "cancelled": [],
    }


def test_an_unknown_job_is_none(scenario: Scenario) -> None:
    assert scenario.ledger.job("p00-unknown") is None


def test_timestamps_come_from_the_ledger_s_clock(scenario: Scenario) -> None:
    before = scenario.ledger.now()
    job_id = scenario.submit()
    first = scenario.claim(job_id)
    scenario.settle(first, retries_immediately(first))
    view = scenario.view(job_id)
    assert view.created_at >= before - 0.001  # stamps are rounded to the microsecond
    assert scenario.ledger.now() >= view.created_at - 0.001
