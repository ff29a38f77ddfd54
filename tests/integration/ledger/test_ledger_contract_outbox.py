"""The ledger's contract, in memory and on Redis: outbox, retention, events and listings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.ledger_stage import (
    Stage,
    StageMaker,
    answer,
    escalates,
    make_job,
    retries_at_once,
    retries_by_policy,
    succeeds,
)

from mulligan.tasks.ports.ledger import Entry, Publication, Submission


@pytest.fixture
def play(stage: StageMaker) -> Stage:
    return stage()


def submit_stamped(play: Stage) -> str:
    job_id = play.submit()
    play.ledger.stamp([Entry("attempt", job_id, 1)])
    return job_id


def run_through(play: Stage, job_id: str) -> None:
    claim = play.take(job_id)
    play.settle(claim, succeeds(claim))


# -- the outbox ---------------------------------------------------------------------------------


def test_an_outcome_waits_in_the_outbox_until_it_is_told(play: Stage) -> None:
    """Given a producer that wants to be told, then the sweep has its outcome until it is sent."""
    job_id = play.submit(on_done={"task": "shop.answered", "queue": "shop"})
    told = Entry("done", job_id, 1)
    assert play.swept() == set()
    run_through(play, job_id)
    assert play.sweep() == [Publication(told, "shop", 5)]
    play.ledger.stamp([told])
    play.advance(play.settings.republish_after * 10)
    assert play.sweep("shop") == []


@pytest.mark.parametrize("end", ["escalated", "cancelled"])
def test_every_end_is_told(play: Stage, end: str) -> None:
    job_id = play.submit(on_done={"task": "shop.answered", "queue": "shop"})
    if end == "cancelled":
        play.ledger.cancel(job_id)
    else:
        claim = play.take(job_id)
        play.settle(claim, escalates(claim))
    assert play.swept() == {f"d:{job_id}/1"}


def test_an_entry_that_nobody_published_is_found_after_the_grace(play: Stage) -> None:
    job_id = play.submit(priority=2)
    assert play.swept("attempt") == set()
    found = [Publication(Entry("attempt", job_id, 1), "attempt", 2)]
    for _ in range(3):  # again and again, until somebody says that it was published
        play.advance(play.settings.outbox_grace + 1)
        assert play.sweep() == found
        assert play.sweep() == []


def test_a_published_entry_is_left_alone_while_its_queue_is_busy(play: Stage) -> None:
    submit_stamped(play)
    for _ in range(5):
        play.advance(play.settings.republish_after + 1)
        assert play.swept("repair", "verify") == set()


def test_a_published_entry_is_published_again_when_its_queue_is_empty(play: Stage) -> None:
    """Given a message lost in a broker's client, when the queue is empty, then it goes again."""
    job_id = submit_stamped(play)
    play.advance(play.settings.republish_after - 5)
    assert play.swept("attempt") == set()
    play.advance(6)
    assert play.swept("attempt") == {f"a:{job_id}/1"}


def test_a_published_entry_is_published_again_once_it_was_overtaken(play: Stage) -> None:
    lost = submit_stamped(play)
    play.advance(play.settings.republish_after / 2)
    run_through(play, submit_stamped(play))  # published too soon after it to count as overtaking
    play.advance(play.settings.republish_after / 2 + 1)
    assert play.swept() == set()
    run_through(play, submit_stamped(play))
    play.advance(play.settings.republish_after + 1)
    assert play.swept() == {f"a:{lost}/1"}


def test_every_repeat_doubles_the_wait(play: Stage) -> None:
    job_id = submit_stamped(play)
    entry, wait = Entry("attempt", job_id, 1), play.settings.republish_after
    for _ in range(4):
        play.advance(wait - 10)
        assert play.swept("attempt") == set()
        play.advance(11)
        assert play.swept("attempt") == {str(entry)}
        play.ledger.stamp([entry])
        wait *= 2


def test_a_claim_removes_its_entry(play: Stage) -> None:
    job_id = play.submit()
    play.take(job_id)
    play.ledger.stamp([Entry("attempt", job_id, 1)])  # a stamp that comes late
    play.advance(play.settings.outbox_grace + 1)
    assert play.swept("attempt") == set()


def test_a_stamp_that_comes_late_does_not_touch_an_entry_given_back(play: Stage) -> None:
    """Given a worker so fast that it claimed an attempt and gave it back for a second before its
    publisher stamped it, then the attempt comes back after that second, not after the minute."""
    job_id = play.submit()
    play.ledger.requeue(play.take(job_id).lease, delay=1, detail="the breaker is open")
    play.ledger.stamp([Entry("attempt", job_id, 1)])
    play.advance(2)
    assert play.swept() == {f"a:{job_id}/1"}
    play.ledger.stamp([Entry("attempt", job_id, 1)])
    play.advance(play.settings.outbox_grace + 1)
    assert play.swept() == set()


def test_a_delayed_entry_that_nobody_published_is_found_again(play: Stage) -> None:
    job_id = play.submit()
    play.ledger.requeue(play.take(job_id).lease, delay=10, detail="503")
    play.advance(11)
    assert play.swept() == {f"a:{job_id}/1"}
    play.advance(play.settings.outbox_grace + 1)
    assert play.swept() == {f"a:{job_id}/1"}


def test_a_backlog_is_never_published_twice(stage: StageMaker) -> None:
    """Given 1,000 published entries and slow workers, then none of them is published again."""
    play = stage(sweep_limit=2000)
    jobs = [make_job() for _ in range(1000)]
    told = play.ledger.accept([Submission(id=play.new_id(job), job=job) for job in jobs])
    play.ledger.stamp([Entry("attempt", each.id, 1) for each in told])
    for minute in range(5):
        play.advance(play.settings.republish_after + 1)
        run_through(play, told[minute].id)
        assert play.swept("repair", "verify") == set()


def test_what_is_more_urgent_may_go_first_and_nothing_is_sent_again(stage: StageMaker) -> None:
    """Given a backlog, when an urgent job that came a long time after it is claimed, then the
    backlog is not lost, only less urgent; when one as urgent as it is claimed, the rest is."""
    play = stage()
    backlog = {f"a:{play.submit(priority=5)}/1" for _ in range(3)}
    play.ledger.stamp([Entry.parse(text) for text in backlog])
    play.advance(play.settings.republish_after + 1)
    for priority, lost in ((0, set()), (4, set()), (5, backlog)):
        later = play.submit(priority=priority)
        play.ledger.stamp([Entry("attempt", later, 1)])
        run_through(play, later)
        assert play.swept() == lost
        play.advance(play.settings.republish_after + 1)


def test_an_urgent_entry_is_missed_when_a_less_urgent_one_was_served(play: Stage) -> None:
    urgent = play.submit(priority=0)
    play.ledger.stamp([Entry("attempt", urgent, 1)])
    play.advance(play.settings.republish_after + 1)
    later = play.submit(priority=5)
    play.ledger.stamp([Entry("attempt", later, 1)])
    run_through(play, later)
    assert play.swept() == {f"a:{urgent}/1"}


def test_a_long_backlog_holds_nothing_up_that_is_due(stage: StageMaker) -> None:
    """Given more published entries to look at than a sweep looks at, then what was never
    published goes out with the next sweep all the same."""
    play = stage(sweep_limit=2)
    backlog = [Entry("attempt", play.submit(), 1) for _ in range(9)]
    play.ledger.stamp(backlog)
    play.advance(play.settings.republish_after + 1)
    late = play.submit()
    play.advance(play.settings.outbox_grace + 1)
    assert play.swept() == {f"a:{late}/1"}


def test_a_sweep_does_a_bounded_amount_and_the_next_one_the_rest(stage: StageMaker) -> None:
    play = stage(sweep_limit=2)
    expected = {f"a:{play.submit()}/1" for _ in range(5)}
    play.advance(play.settings.outbox_grace + 1)
    batches = [play.swept() for _ in range(3)]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert set().union(*batches) == expected


# -- retention ----------------------------------------------------------------------------------


def test_a_finished_job_is_kept_for_its_retention_and_then_gone(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    play.ledger.store_output(claim.lease, answer())
    play.settle(claim, escalates(claim))
    play.advance(play.settings.retention - 10)
    play.sweep()
    assert play.attempt(job_id).output == answer()
    play.advance(11)
    play.sweep()
    assert play.ledger.job(job_id) is None
    assert play.ledger.jobs() == []
    assert play.ledger.jobs(state="escalated") == []
    assert play.refusal(job_id).reason == "gone"


def test_a_job_that_has_not_ended_is_kept_for_ever(play: Stage) -> None:
    waiting = play.submit(deadline=10 * 365 * 86400)
    running = play.submit(deadline=10 * 365 * 86400)
    play.take(running)
    play.advance(play.settings.retention * 100)
    play.sweep()
    assert {view.id for view in play.ledger.jobs()} == {waiting, running}


def test_retention_does_not_start_before_the_delayed_verification_has_ended(
    stage: StageMaker,
) -> None:
    play = stage(retention=100)
    job_id, entry = play.repaired()
    play.advance(601)
    play.sweep()
    taken = play.take_recheck(entry)
    assert taken.claim.output == answer("repaired")
    play.ledger.settle_cycle(taken.lease, status="completed", score=100)
    play.advance(99)
    assert len(play.view(job_id).attempts) == 2
    play.advance(2)
    assert play.ledger.job(job_id) is None
    # The compact record of the cycle stays, for its own retention.
    assert [cycle.id for cycle in play.ledger.cycles(since=0, limit=9)] == [entry.cycle_id]
    play.advance(play.settings.cycle_retention)
    play.sweep()
    assert play.ledger.cycles(since=0, limit=9) == []


def test_a_retention_that_is_no_whole_number_of_milliseconds_ends_jobs_whole(
    stage: StageMaker,
) -> None:
    """16.1 * 1000 is 16100.000000000002, which PEXPIRE refuses in the middle of a script."""
    play = stage(retention=16.1, cycle_retention=16.1)
    job_id, entry = play.repaired()
    play.advance(601)
    lease = play.take_recheck(entry).lease
    assert play.ledger.settle_cycle(lease, status="completed", score=100)
    play.advance(17)
    assert play.ledger.job(job_id) is None


def test_a_memory_ends_with_its_jobs_even_if_it_was_written_last(play: Stage) -> None:
    """Given a job that was cancelled while it ran, when its failure is counted afterwards, then
    that memory does not outlive the job's retention."""
    job_id = play.submit(memory_scope="task_type")
    claim = play.take(job_id)
    play.ledger.cancel(job_id)
    play.settle(claim, retries_by_policy(claim, signatures=("late",)))
    play.advance(play.settings.retention - 10)
    assert play.take(play.submit(memory_scope="task_type")).memory.count("late") == 1
    play.advance(11)
    assert play.take(play.submit(memory_scope="task_type")).memory.count("late") == 0


def test_an_idempotency_key_is_free_again_after_the_retention(play: Stage) -> None:
    job_id = play.submit(idempotency_key="weekly")
    play.ledger.cancel(job_id)
    play.advance(play.settings.retention + 1)
    assert play.submit(idempotency_key="weekly", prompt="Another one.") == job_id


# -- events and listings ------------------------------------------------------------------------


def test_events_tell_the_life_of_a_job_in_order(play: Stage) -> None:
    job_id, entry = play.repaired(name="Alice")
    play.advance(601)
    lease = play.take_recheck(entry).lease
    play.ledger.settle_cycle(lease, status="completed", score=100)
    told = [
        (event.type, event.data.get("attempt"), event.data.get("state") or event.data["status"])
        for event in play.ledger.events()
    ]
    assert told == [
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
    first, _, settled, *_ = play.ledger.events()
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


def test_events_go_on_where_a_reader_left_off(play: Stage) -> None:
    play.submit()
    (first,) = play.ledger.events()
    assert list(play.ledger.events(after=first.id)) == []
    assert list(play.ledger.events(after="$")) == []
    job_id = play.submit()
    assert [event.job_id for event in play.ledger.events(after=first.id)] == [job_id]


def test_a_reader_may_wait_for_the_next_event(play: Stage) -> None:
    play.submit()
    (first,) = play.ledger.events()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: list(play.ledger.events(after=first.id, block=20)))
        job_id = play.submit()
        assert [event.job_id for event in waiting.result(20)] == [job_id]
    (_, last) = play.ledger.events()
    assert list(play.ledger.events(after=last.id, block=0.001)) == []


def test_lost_leases_and_waiting_are_events_too(play: Stage) -> None:
    job_id = play.submit()
    play.take(job_id)
    play.expire_leases()
    play.ledger.requeue(play.take(job_id).lease, delay=5, detail="503", waiting_for="delay")
    play.ledger.cancel(job_id)
    told = [event.data for event in play.ledger.events() if event.type != "cycle"]
    assert [data["state"] for data in told] == [
        "queued", "running", "lease_expired", "running", "waiting", "cancelled",
    ]  # fmt: skip
    assert told[4]["detail"] == "503"
    assert told[5]["reason"] == "cancelled"


def test_jobs_are_listed_newest_first_without_their_attempts(play: Stage) -> None:
    jobs = []
    for _ in range(4):
        jobs.append(play.submit())
        play.advance(1)
    listed = play.ledger.jobs()
    assert [view.id for view in listed] == jobs[::-1]
    assert listed[0].attempts == ()
    assert [view.id for view in play.ledger.jobs(limit=2)] == [jobs[3], jobs[2]]


def test_jobs_are_listed_by_state(play: Stage) -> None:
    queued, running, done, waiting = (play.submit() for _ in range(4))
    play.take(running)
    run_through(play, done)
    play.ledger.requeue(play.take(waiting).lease, delay=9, detail="503")
    by_state = {
        state: [view.id for view in play.ledger.jobs(state=state)]
        for state in ("queued", "running", "succeeded", "waiting", "cancelled")
    }
    assert by_state == {
        "queued": [queued],
        "running": [running],
        "succeeded": [done],
        "waiting": [waiting],
        "cancelled": [],
    }


def test_an_unknown_job_is_none(play: Stage) -> None:
    assert play.ledger.job("p00-unknown") is None


def test_the_ledger_has_a_clock_of_its_own(play: Stage) -> None:
    before = play.ledger.now()
    job_id = play.submit()
    first = play.take(job_id)
    play.settle(first, retries_at_once(first))
    view = play.view(job_id)
    assert view.created_at >= before - 0.001  # stamps are rounded to the microsecond
    assert play.ledger.now() >= view.created_at - 0.001
