"""The ledger's contract, in memory and on Redis: outbox, retention, events and listings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.jobs import answer, make_job
from support.ledger_scenario import Scenario, ScenarioMaker
from support.settlements import escalates, retries_by_policy, retries_immediately, succeeds

from mulligan.tasks.ports.ledger import Entry, Publication, Submission


@pytest.fixture
def scenario(new_scenario: ScenarioMaker) -> Scenario:
    return new_scenario()


def submit_stamped(scenario: Scenario) -> str:
    job_id = scenario.submit()
    scenario.ledger.stamp([Entry("attempt", job_id, 1)])
    return job_id


def run_through(scenario: Scenario, job_id: str) -> None:
    claim = scenario.claim(job_id)
    scenario.settle(claim, succeeds(claim))


# -- the outbox ---------------------------------------------------------------------------------


def test_an_outcome_waits_in_the_outbox_until_it_is_told(scenario: Scenario) -> None:
    """Given a producer that wants to be told, then the sweep has its outcome until it is sent."""
    job_id = scenario.submit(on_done={"task": "shop.answered", "queue": "shop"})
    told = Entry("done", job_id, 1)
    assert scenario.swept_entries() == set()
    run_through(scenario, job_id)
    assert scenario.sweep() == [Publication(told, "shop", 5)]
    scenario.ledger.stamp([told])
    scenario.advance(scenario.settings.republish_after * 10)
    assert scenario.sweep("shop") == []


@pytest.mark.parametrize("end", ["escalated", "cancelled"])
def test_every_end_is_told(scenario: Scenario, end: str) -> None:
    job_id = scenario.submit(on_done={"task": "shop.answered", "queue": "shop"})
    if end == "cancelled":
        scenario.ledger.cancel(job_id)
    else:
        claim = scenario.claim(job_id)
        scenario.settle(claim, escalates(claim))
    assert scenario.swept_entries() == {f"d:{job_id}/1"}


def test_an_entry_that_nobody_published_is_found_after_the_grace(scenario: Scenario) -> None:
    job_id = scenario.submit(priority=2)
    assert scenario.swept_entries("attempt") == set()
    found = [Publication(Entry("attempt", job_id, 1), "attempt", 2)]
    for _ in range(3):  # again and again, until somebody says that it was published
        scenario.advance(scenario.settings.outbox_grace + 1)
        assert scenario.sweep() == found
        assert scenario.sweep() == []


def test_a_published_entry_is_left_alone_while_its_queue_is_busy(scenario: Scenario) -> None:
    submit_stamped(scenario)
    for _ in range(5):
        scenario.advance(scenario.settings.republish_after + 1)
        assert scenario.swept_entries("repair", "verify") == set()


def test_a_published_entry_is_published_again_when_its_queue_is_empty(scenario: Scenario) -> None:
    """Given a message lost in a broker's client, when the queue is empty, then it goes again."""
    job_id = submit_stamped(scenario)
    scenario.advance(scenario.settings.republish_after - 5)
    assert scenario.swept_entries("attempt") == set()
    scenario.advance(6)
    assert scenario.swept_entries("attempt") == {f"a:{job_id}/1"}


def test_a_published_entry_is_published_again_once_it_was_overtaken(scenario: Scenario) -> None:
    lost = submit_stamped(scenario)
    scenario.advance(scenario.settings.republish_after / 2)
    run_through(
        scenario, submit_stamped(scenario)
    )  # published too soon after it to count as overtaking
    scenario.advance(scenario.settings.republish_after / 2 + 1)
    assert scenario.swept_entries() == set()
    run_through(scenario, submit_stamped(scenario))
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
    scenario.ledger.stamp([Entry("attempt", job_id, 1)])  # a stamp that comes late
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries("attempt") == set()


def test_a_stamp_that_comes_late_does_not_touch_an_entry_given_back(scenario: Scenario) -> None:
    """Given a worker so fast that it claimed an attempt and gave it back for a second before its
    publisher stamped it, then the attempt comes back after that second, not after the minute."""
    job_id = scenario.submit()
    scenario.ledger.requeue(scenario.claim(job_id).lease, delay=1, detail="the breaker is open")
    scenario.ledger.stamp([Entry("attempt", job_id, 1)])
    scenario.advance(2)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
    scenario.ledger.stamp([Entry("attempt", job_id, 1)])
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == set()


def test_a_delayed_entry_that_nobody_published_is_found_again(scenario: Scenario) -> None:
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
    told = scenario.ledger.accept([Submission(id=scenario.new_id(job), job=job) for job in jobs])
    scenario.ledger.stamp([Entry("attempt", each.id, 1) for each in told])
    for minute in range(5):
        scenario.advance(scenario.settings.republish_after + 1)
        run_through(scenario, told[minute].id)
        assert scenario.swept_entries("repair", "verify") == set()


def test_what_is_more_urgent_may_go_first_and_nothing_is_sent_again(
    new_scenario: ScenarioMaker,
) -> None:
    """Given a backlog, when an urgent job that came a long time after it is claimed, then the
    backlog is not lost, only less urgent; when one as urgent as it is claimed, the rest is."""
    scenario = new_scenario()
    backlog = {f"a:{scenario.submit(priority=5)}/1" for _ in range(3)}
    scenario.ledger.stamp([Entry.parse(text) for text in backlog])
    scenario.advance(scenario.settings.republish_after + 1)
    for priority, lost in ((0, set()), (4, set()), (5, backlog)):
        later = scenario.submit(priority=priority)
        scenario.ledger.stamp([Entry("attempt", later, 1)])
        run_through(scenario, later)
        assert scenario.swept_entries() == lost
        scenario.advance(scenario.settings.republish_after + 1)


def test_an_urgent_entry_is_missed_when_a_less_urgent_one_was_served(scenario: Scenario) -> None:
    urgent = scenario.submit(priority=0)
    scenario.ledger.stamp([Entry("attempt", urgent, 1)])
    scenario.advance(scenario.settings.republish_after + 1)
    later = scenario.submit(priority=5)
    scenario.ledger.stamp([Entry("attempt", later, 1)])
    run_through(scenario, later)
    assert scenario.swept_entries() == {f"a:{urgent}/1"}


def test_a_long_backlog_holds_nothing_up_that_is_due(new_scenario: ScenarioMaker) -> None:
    """Given more published entries to look at than a sweep looks at, then what was never
    published goes out with the next sweep all the same."""
    scenario = new_scenario(sweep_limit=2)
    backlog = [Entry("attempt", scenario.submit(), 1) for _ in range(9)]
    scenario.ledger.stamp(backlog)
    scenario.advance(scenario.settings.republish_after + 1)
    late = scenario.submit()
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.swept_entries() == {f"a:{late}/1"}


def test_a_sweep_does_a_bounded_amount_and_the_next_one_the_rest(
    new_scenario: ScenarioMaker,
) -> None:
    scenario = new_scenario(sweep_limit=2)
    expected = {f"a:{scenario.submit()}/1" for _ in range(5)}
    scenario.advance(scenario.settings.outbox_grace + 1)
    batches = [scenario.swept_entries() for _ in range(3)]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert set().union(*batches) == expected


# -- retention ----------------------------------------------------------------------------------


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


def test_a_job_that_has_not_ended_is_kept_for_ever(scenario: Scenario) -> None:
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
    # The compact record of the cycle stays, for its own retention.
    assert [cycle.id for cycle in scenario.ledger.cycles(since=0, limit=9)] == [entry.cycle_id]
    scenario.advance(scenario.settings.cycle_retention)
    scenario.sweep()
    assert scenario.ledger.cycles(since=0, limit=9) == []


def test_a_retention_that_is_no_whole_number_of_milliseconds_ends_jobs_whole(
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


def test_a_memory_ends_with_its_jobs_even_if_it_was_written_last(scenario: Scenario) -> None:
    """Given a job that was cancelled while it ran, when its failure is counted afterwards, then
    that memory does not outlive the job's retention."""
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


# -- events and listings ------------------------------------------------------------------------


def test_events_tell_the_life_of_a_job_in_order(scenario: Scenario) -> None:
    job_id, entry = scenario.repaired_job(name="Alice")
    scenario.advance(601)
    lease = scenario.claim_recheck(entry).lease
    scenario.ledger.settle_cycle(lease, status="completed", score=100)
    told = [
        (event.type, event.data.get("attempt"), event.data.get("state") or event.data["status"])
        for event in scenario.ledger.events()
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


def test_events_go_on_where_a_reader_left_off(scenario: Scenario) -> None:
    scenario.submit()
    (first,) = scenario.ledger.events()
    assert list(scenario.ledger.events(after=first.id)) == []
    assert list(scenario.ledger.events(after="$")) == []
    job_id = scenario.submit()
    assert [event.job_id for event in scenario.ledger.events(after=first.id)] == [job_id]


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
    scenario.ledger.requeue(
        scenario.claim(job_id).lease, delay=5, detail="503", waiting_for="delay"
    )
    scenario.ledger.cancel(job_id)
    told = [event.data for event in scenario.ledger.events() if event.type != "cycle"]
    assert [data["state"] for data in told] == [
        "queued", "running", "lease_expired", "running", "waiting", "cancelled",
    ]  # fmt: skip
    assert told[4]["detail"] == "503"
    assert told[5]["reason"] == "cancelled"


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
    run_through(scenario, done)
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


def test_the_ledger_has_a_clock_of_its_own(scenario: Scenario) -> None:
    before = scenario.ledger.now()
    job_id = scenario.submit()
    first = scenario.claim(job_id)
    scenario.settle(first, retries_immediately(first))
    view = scenario.view(job_id)
    assert view.created_at >= before - 0.001  # stamps are rounded to the microsecond
    assert scenario.ledger.now() >= view.created_at - 0.001
