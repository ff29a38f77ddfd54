"""The ledger's contract: answers, slow verifications and requeued attempts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.jobs import answer, passed
from support.ledger_scenario import Scenario
from support.settlements import escalates, retries_by_policy, retries_immediately, succeeds

from mulligan.tasks.ports.ledger import (
    Claim,
    ClaimRefused,
    Entry,
    EntryRequeued,
    Publication,
    Settlement,
)

# -- storing an answer -----------------------------------------------------------------------------


def test_a_stored_answer_is_given_to_the_next_claim(scenario: Scenario) -> None:
    """Given an answer that was paid for, when its worker dies, then it is not bought again."""
    job_id = scenario.submit()
    assert scenario.ledger.store_output(scenario.claim(job_id).lease, answer("paid for")) == []
    scenario.expire_leases()
    successor = scenario.claim(job_id)
    assert successor.output == answer("paid for")
    assert (successor.tokens_used, successor.seconds_used) == (10, 0.5)


def test_an_answer_stored_twice_with_one_token_is_counted_once(scenario: Scenario) -> None:
    job_id = scenario.submit()
    lease = scenario.claim(job_id).lease
    for _ in range(2):
        assert scenario.ledger.store_output(lease, answer(tokens=7, seconds=0.25)) == []
    assert (scenario.view(job_id).tokens, scenario.view(job_id).seconds) == (7, 0.25)


@pytest.mark.parametrize("tokens", [None, 0])
def test_unknown_usage_is_null_and_not_0(scenario: Scenario, tokens: int | None) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.ledger.store_output(claim.lease, answer(tokens=tokens))
    assert scenario.view(job_id).tokens == tokens
    scenario.settle(claim, succeeds(claim))
    events = [event.data for event in scenario.ledger.events() if event.type == "job"]
    assert (events[-1]["state"], events[-1]["tokens"]) == ("succeeded", tokens)


def test_usage_adds_up_over_attempts(scenario: Scenario) -> None:
    job_id = scenario.submit()
    first = scenario.claim(job_id)
    scenario.ledger.store_output(first.lease, answer(tokens=3, seconds=0.5))
    scenario.settle(first, retries_immediately(first))
    second = scenario.claim(job_id, 2)
    scenario.ledger.store_output(second.lease, answer(tokens=4, seconds=0.25))
    assert (scenario.view(job_id).tokens, scenario.view(job_id).seconds) == (7, 0.75)


# -- slow verifications ----------------------------------------------------------------------------


def test_storing_an_answer_publishes_its_slow_verifications(scenario: Scenario) -> None:
    job_id = scenario.submit(priority=7)
    claim = scenario.claim(job_id)
    published = scenario.ledger.store_output(
        claim.lease, answer(), verifications=[0, 2], priority=7
    )
    entries = [Entry("verification", job_id, 1, index) for index in (0, 2)]
    assert published == [Publication(entry, "verify", 7) for entry in entries]
    # A repeated call with the same token gets the same result.
    again = scenario.ledger.store_output(claim.lease, answer(), verifications=[0, 2], priority=7)
    assert again == published
    assert scenario.attempt(job_id).state == "verifying"
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.sweep() == published


@pytest.mark.parametrize("settlement", [retries_immediately, retries_by_policy])
def test_the_verifications_of_a_retry_go_to_the_front(
    scenario: Scenario, settlement: Callable[[Claim], Settlement]
) -> None:
    """The caller gets the same publication that is in the outbox."""
    job_id = scenario.submit(priority=7)
    first = scenario.claim(job_id)
    scenario.settle(first, settlement(first))
    retry = scenario.claim(job_id, 2)
    published = scenario.ledger.store_output(retry.lease, answer(), verifications=[0], priority=7)
    front = Publication(Entry("verification", job_id, 2, 0), "verify", 0)
    assert published == [front]
    scenario.advance(scenario.settings.outbox_grace + 1)
    assert scenario.sweep() == [front]
    check = scenario.claim_verification(job_id, 0, number=2)
    scenario.ledger.requeue(check.lease, delay=1, detail="no pytest", counter="verifier_errors")
    scenario.advance(2)
    assert scenario.sweep() == [front]


def test_a_claimed_verification_has_the_answer_and_is_held(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    assert scenario.claim_verification(job_id, 0).output == answer()
    assert scenario.verification_refusal(job_id, 0) == ClaimRefused("held")
    assert scenario.claim_verification(job_id, 1).lease.entry.index == 1


def test_only_the_last_stored_result_claims_the_attempt(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    first, second = scenario.claim_verification(job_id, 0), scenario.claim_verification(job_id, 1)
    assert scenario.ledger.store_result(second.lease, passed("b"), elapsed=0.25) == ClaimRefused(
        "stored"
    )
    last = scenario.ledger.store_result(first.lease, passed("a"), elapsed=0.25)
    assert isinstance(last, Claim)
    assert last.lease.entry == Entry("attempt", job_id, 1)
    assert last.results == {0: passed("a"), 1: passed("b")}
    assert last.output == answer()
    assert last.seconds_used == 1.0  # the answer's 0.5 and twice 0.25
    assert scenario.refusal(job_id) == ClaimRefused("held")
    scenario.settle(last, succeeds(last))
    assert scenario.view(job_id).state == "succeeded"


def test_a_result_stored_twice_counts_once(scenario: Scenario) -> None:
    """Given a lost reply of the ledger, when the call is repeated, it gets the same reply."""
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    first, second = scenario.claim_verification(job_id, 0), scenario.claim_verification(job_id, 1)
    for _ in range(2):
        assert scenario.ledger.store_result(first.lease, passed(), elapsed=1) == ClaimRefused(
            "stored"
        )
    last = scenario.ledger.store_result(second.lease, passed(), elapsed=1)
    assert scenario.ledger.store_result(second.lease, passed(), elapsed=1) == last
    assert isinstance(last, Claim)
    assert scenario.view(job_id).seconds == 2.5
    assert scenario.ledger.store_result(first.lease, passed(), elapsed=1) == ClaimRefused("stored")
    scenario.settle(last, succeeds(last))
    assert scenario.ledger.store_result(second.lease, passed(), elapsed=1) == ClaimRefused("stored")


def test_of_many_concurrent_results_exactly_one_is_last(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id, range(12))
    checks = [scenario.claim_verification(job_id, index) for index in range(12)]
    with ThreadPoolExecutor(12) as pool:
        results = list(
            pool.map(lambda c: scenario.ledger.store_result(c.lease, passed(), elapsed=0), checks)
        )
    assert sum(isinstance(each, Claim) for each in results) == 1
    assert results.count(ClaimRefused("stored")) == 11


def test_a_worker_that_dies_before_settling_leaves_everything_to_the_next(
    scenario: Scenario,
) -> None:
    """Given all results stored, when the last worker dies, then the sweep brings the attempt back
    with its answer and its results, and nothing is run again."""
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    for index in (0, 1):
        last = scenario.ledger.store_result(
            scenario.claim_verification(job_id, index).lease, passed(str(index)), elapsed=0
        )
    assert isinstance(last, Claim)
    assert scenario.expire_leases() == {f"a:{job_id}/1"}
    successor = scenario.claim(job_id)
    assert successor.output == answer()
    assert successor.results == {0: passed("0"), 1: passed("1")}
    assert scenario.ledger.settle(last.lease, succeeds(last)) == ClaimRefused("lost")
    scenario.settle(successor, succeeds(successor))
    assert scenario.verification_refusal(job_id, 0) == ClaimRefused("finished")


def test_a_stored_or_cancelled_verification_is_finished(
    scenario: Scenario,
) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    scenario.ledger.store_result(scenario.claim_verification(job_id, 0).lease, passed(), elapsed=0)
    assert scenario.verification_refusal(job_id, 0) == ClaimRefused("finished")
    scenario.ledger.cancel(job_id)
    assert scenario.verification_refusal(job_id, 1) == ClaimRefused("finished")
    assert scenario.verification_refusal("p00-unknown", 1) == ClaimRefused("gone")


def test_a_message_about_a_verification_that_was_never_asked_for_is_dropped(
    scenario: Scenario,
) -> None:
    """Otherwise it is claimed until its job is escalated."""
    job_id = scenario.submit()
    scenario.hand_over(job_id, verifications=[1, 10])
    for index in (0, 2, 11):
        assert scenario.verification_refusal(job_id, index).reason == "gone"
    assert scenario.expire_leases() == {f"v:{job_id}/1/1", f"v:{job_id}/1/10"}
    scenario.claim_verification(job_id, 10)


def test_a_verification_that_loses_every_worker_escalates_its_job(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id, [0])
    for _ in range(scenario.settings.max_claims):
        zombie = scenario.claim_verification(job_id, 0)
        assert scenario.expire_leases() == {f"v:{job_id}/1/0"}
    assert scenario.verification_refusal(job_id, 0) == ClaimRefused("escalated", "worker_lost")
    view = scenario.view(job_id)
    assert (view.state, view.reason) == ("escalated", "worker_lost")
    assert view.detail == "3 workers were lost while verifying attempt 1"
    assert scenario.ledger.store_result(zombie.lease, passed(), elapsed=0) == ClaimRefused("lost")


def test_a_verification_claim_repeated_with_its_token_is_the_same(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "f00d")
    assert scenario.claim_verification(job_id, 0) == scenario.claim_verification(job_id, 0)


def test_the_results_of_a_cancelled_job_are_kept_and_start_nothing(scenario: Scenario) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id, [0])
    check = scenario.claim_verification(job_id, 0)
    scenario.ledger.cancel(job_id)
    last = scenario.ledger.store_result(check.lease, passed(), elapsed=0)
    assert isinstance(last, Claim)
    assert scenario.settle(last, retries_immediately(last)) is None
    assert scenario.view(job_id).state == "cancelled"


# -- requeueing ------------------------------------------------------------------------------------


def test_a_requeued_attempt_waits_and_loses_no_claim(scenario: Scenario) -> None:
    """Given transport faults, then they are counted, and the claims are not."""
    job_id = scenario.submit(priority=4)
    for fault in range(1, 6):  # more often than max_claims
        claim = scenario.claim(job_id)
        assert claim.faults == fault - 1
        requeued = scenario.ledger.requeue(claim.lease, delay=10, detail="503", counter="faults")
        assert requeued == EntryRequeued(delay=10)
        view, attempt = scenario.view(job_id), scenario.attempt(job_id)
        assert (view.state, view.waiting_for) == ("waiting", "delay")
        assert (attempt.state, attempt.claims) == ("queued", 0)
        assert (attempt.faults, attempt.last_fault) == (fault, "503")
        assert scenario.swept_entries("attempt") == set()
        scenario.advance(11)
        assert scenario.sweep() == [Publication(Entry("attempt", job_id, 1), "attempt", 4)]


def test_an_attempt_requeued_without_delay_is_published_at_once(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    requeued = scenario.ledger.requeue(claim.lease, delay=0, detail="the worker was shut down")
    assert requeued == EntryRequeued(delay=0)
    assert (scenario.view(job_id).state, scenario.view(job_id).waiting_for) == ("queued", None)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
    # A repeated call, whose first answer was lost, answers the same and changes nothing.
    assert scenario.ledger.requeue(claim.lease, delay=0, detail="again") == requeued
    assert scenario.swept_entries() == set()


def test_a_requeued_retry_keeps_its_queue_and_priority(scenario: Scenario) -> None:
    job_id = scenario.submit(priority=9)
    first = scenario.claim(job_id)
    scenario.settle(first, retries_immediately(first))
    scenario.ledger.requeue(scenario.claim(job_id, 2).lease, delay=0, detail="shut down")
    assert scenario.sweep() == [Publication(Entry("attempt", job_id, 2), "repair", 0)]


def test_no_deadline_ends_a_job_before_it_has_passed(scenario: Scenario) -> None:
    """Given a delay beyond the deadline, then the attempt is due at the deadline, and only then is
    the job escalated, with the last fault."""
    job_id = scenario.submit(deadline=100)
    requeued = scenario.ledger.requeue(
        scenario.claim(job_id).lease, delay=500, detail="503 from the provider", counter="faults"
    )
    assert isinstance(requeued, EntryRequeued)
    assert 90 < requeued.delay <= 100
    assert scenario.view(job_id).state == "waiting"
    scenario.advance(101)
    assert scenario.swept_entries() == {f"a:{job_id}/1"}
    assert scenario.refusal(job_id) == ClaimRefused("escalated", "deadline")
    view = scenario.view(job_id)
    assert (view.state, view.reason) == ("escalated", "deadline")
    assert view.detail == "the job's deadline passed; the last fault: 503 from the provider"


def test_a_fault_after_the_deadline_escalates(scenario: Scenario) -> None:
    job_id = scenario.submit(deadline=10)
    claim = scenario.claim(job_id)
    scenario.advance(11)
    refused = scenario.ledger.requeue(claim.lease, delay=1, detail="503")
    assert refused == ClaimRefused("escalated", "deadline")


def test_a_counter_at_its_limit_escalates(scenario: Scenario) -> None:
    job_id = scenario.submit()
    result: EntryRequeued | ClaimRefused = EntryRequeued(delay=0)
    for _ in range(3):
        assert result == EntryRequeued(delay=0)
        result = scenario.ledger.requeue(
            scenario.claim(job_id).lease,
            delay=0,
            detail="pytest is missing",
            counter="verifier_errors",
            limit=3,
            reason="tool_error",
        )
    assert result == ClaimRefused("escalated", "tool_error")
    view = scenario.view(job_id)
    assert (view.state, view.reason, view.detail) == (
        "escalated",
        "tool_error",
        "pytest is missing",
    )


def test_a_verification_without_a_verdict_is_retried_and_then_escalated(
    scenario: Scenario,
) -> None:
    job_id = scenario.submit()
    scenario.hand_over(job_id)
    for retried in (True, False):
        result = scenario.ledger.requeue(
            scenario.claim_verification(job_id, 1).lease,
            delay=5,
            detail="no pytest",
            counter="verifier_errors",
            limit=2,
            reason="tool_error",
        )
        if retried:
            assert result == EntryRequeued(delay=5)
            assert scenario.attempt(job_id).state == "verifying"
            assert scenario.verification_refusal(job_id, 1) == ClaimRefused("early")
            scenario.advance(6)
            assert f"v:{job_id}/1/1" in scenario.swept_entries()
    assert result == ClaimRefused("escalated", "tool_error")
    assert scenario.view(job_id).reason == "tool_error"


def test_requeueing_an_attempt_of_a_finished_job_is_refused(scenario: Scenario) -> None:
    job_id = scenario.submit()
    claim = scenario.claim(job_id)
    scenario.ledger.cancel(job_id)
    refused = scenario.ledger.requeue(claim.lease, delay=0, detail="shut down")
    assert refused == ClaimRefused("finished")
    assert scenario.swept_entries("attempt") == set()
    assert scenario.ledger.settle(claim.lease, escalates(claim)) == ClaimRefused("lost")
