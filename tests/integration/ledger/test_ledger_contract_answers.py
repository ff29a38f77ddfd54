"""The ledger's contract, in memory and on Redis: answers, slow verifications, giving back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.ledger_stage import (
    Stage,
    StageMaker,
    answer,
    escalates,
    passed,
    retries_at_once,
    retries_by_policy,
    succeeds,
)

from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, Publication, Settlement


@pytest.fixture
def play(stage: StageMaker) -> Stage:
    return stage()


# -- storing an answer --------------------------------------------------------------------------


def test_a_stored_answer_is_given_to_whoever_claims_next(play: Stage) -> None:
    """Given an answer that was paid for, when its worker dies, then nobody pays again."""
    job_id = play.submit()
    assert play.ledger.store_output(play.take(job_id).lease, answer("paid for")) == []
    play.expire_leases()
    heir = play.take(job_id)
    assert heir.output == answer("paid for")
    assert (heir.tokens_used, heir.seconds_used) == (10, 0.5)


def test_an_answer_stored_twice_with_one_token_is_counted_once(play: Stage) -> None:
    job_id = play.submit()
    lease = play.take(job_id).lease
    for _ in range(2):
        assert play.ledger.store_output(lease, answer(tokens=7, seconds=0.25)) == []
    assert (play.view(job_id).tokens, play.view(job_id).seconds) == (7, 0.25)


@pytest.mark.parametrize("tokens", [None, 0])
def test_unknown_usage_counts_for_nothing_and_is_not_0(play: Stage, tokens: int | None) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    play.ledger.store_output(claim.lease, answer(tokens=tokens))
    assert play.view(job_id).tokens == tokens
    play.settle(claim, succeeds(claim))
    told = [event.data for event in play.ledger.events() if event.type == "job"]
    assert (told[-1]["state"], told[-1]["tokens"]) == ("succeeded", tokens)


def test_usage_adds_up_over_attempts(play: Stage) -> None:
    job_id = play.submit()
    first = play.take(job_id)
    play.ledger.store_output(first.lease, answer(tokens=3, seconds=0.5))
    play.settle(first, retries_at_once(first))
    second = play.take(job_id, 2)
    play.ledger.store_output(second.lease, answer(tokens=4, seconds=0.25))
    assert (play.view(job_id).tokens, play.view(job_id).seconds) == (7, 0.75)


# -- slow verifications -------------------------------------------------------------------------


def test_storing_an_answer_hands_its_slow_verifications_over(play: Stage) -> None:
    job_id = play.submit(priority=7)
    claim = play.take(job_id)
    told = play.ledger.store_output(claim.lease, answer(), verifications=[0, 2], priority=7)
    entries = [Entry("verification", job_id, 1, index) for index in (0, 2)]
    assert told == [Publication(entry, "verify", 7) for entry in entries]
    # Told again to whoever asks again with the same token.
    again = play.ledger.store_output(claim.lease, answer(), verifications=[0, 2], priority=7)
    assert again == told
    assert play.attempt(job_id).state == "verifying"
    play.advance(play.settings.outbox_grace + 1)
    assert play.sweep() == told


@pytest.mark.parametrize("settlement", [retries_at_once, retries_by_policy])
def test_the_verifications_of_a_retry_go_to_the_front(
    play: Stage, settlement: Callable[[Claim], Settlement]
) -> None:
    """What is told to the caller is what stands in the outbox."""
    job_id = play.submit(priority=7)
    first = play.take(job_id)
    play.settle(first, settlement(first))
    retry = play.take(job_id, 2)
    told = play.ledger.store_output(retry.lease, answer(), verifications=[0], priority=7)
    front = Publication(Entry("verification", job_id, 2, 0), "verify", 0)
    assert told == [front]
    play.advance(play.settings.outbox_grace + 1)
    assert play.sweep() == [front]
    check = play.take_check(job_id, 0, number=2)
    play.ledger.requeue(check.lease, delay=1, detail="no pytest", counter="verifier_errors")
    play.advance(2)
    assert play.sweep() == [front]


def test_a_verification_in_hand_has_the_answer_and_is_held(play: Stage) -> None:
    job_id = play.submit()
    play.hand_over(job_id)
    assert play.take_check(job_id, 0).output == answer()
    assert play.refused_check(job_id, 0) == ClaimRefused("held")
    assert play.take_check(job_id, 1).lease.entry.index == 1


def test_only_the_last_to_store_is_given_the_attempt(play: Stage) -> None:
    job_id = play.submit()
    play.hand_over(job_id)
    first, second = play.take_check(job_id, 0), play.take_check(job_id, 1)
    assert play.ledger.store_result(second.lease, passed("b"), elapsed=0.25) == ClaimRefused(
        "stored"
    )
    last = play.ledger.store_result(first.lease, passed("a"), elapsed=0.25)
    assert isinstance(last, Claim)
    assert last.lease.entry == Entry("attempt", job_id, 1)
    assert last.results == {0: passed("a"), 1: passed("b")}
    assert last.output == answer()
    assert last.seconds_used == 1.0  # the answer's 0.5 and twice 0.25
    assert play.refusal(job_id) == ClaimRefused("held")
    play.settle(last, succeeds(last))
    assert play.view(job_id).state == "succeeded"


def test_a_result_stored_twice_counts_once(play: Stage) -> None:
    """Given an answer of the ledger that was lost, when the call is repeated, it hears it again."""
    job_id = play.submit()
    play.hand_over(job_id)
    first, second = play.take_check(job_id, 0), play.take_check(job_id, 1)
    for _ in range(2):
        assert play.ledger.store_result(first.lease, passed(), elapsed=1) == ClaimRefused("stored")
    last = play.ledger.store_result(second.lease, passed(), elapsed=1)
    assert play.ledger.store_result(second.lease, passed(), elapsed=1) == last
    assert isinstance(last, Claim)
    assert play.view(job_id).seconds == 2.5
    assert play.ledger.store_result(first.lease, passed(), elapsed=1) == ClaimRefused("stored")
    play.settle(last, succeeds(last))
    assert play.ledger.store_result(second.lease, passed(), elapsed=1) == ClaimRefused("stored")


def test_of_many_storing_at_once_exactly_one_is_last(play: Stage) -> None:
    job_id = play.submit()
    play.hand_over(job_id, range(12))
    checks = [play.take_check(job_id, index) for index in range(12)]
    with ThreadPoolExecutor(12) as pool:
        told = list(
            pool.map(lambda c: play.ledger.store_result(c.lease, passed(), elapsed=0), checks)
        )
    assert sum(isinstance(each, Claim) for each in told) == 1
    assert told.count(ClaimRefused("stored")) == 11


def test_a_settler_that_dies_leaves_everything_to_the_next_one(play: Stage) -> None:
    """Given all results stored, when the last storer dies, then the sweep brings the attempt
    back with its answer and its results, and nothing is run again."""
    job_id = play.submit()
    play.hand_over(job_id)
    for index in (0, 1):
        last = play.ledger.store_result(
            play.take_check(job_id, index).lease, passed(str(index)), elapsed=0
        )
    assert isinstance(last, Claim)
    assert play.expire_leases() == {f"a:{job_id}/1"}
    heir = play.take(job_id)
    assert heir.output == answer()
    assert heir.results == {0: passed("0"), 1: passed("1")}
    assert play.ledger.settle(last.lease, succeeds(last)) == ClaimRefused("lost")
    play.settle(heir, succeeds(heir))
    assert play.refused_check(job_id, 0) == ClaimRefused("finished")


def test_a_verification_that_is_stored_or_not_wanted_any_more_is_finished(play: Stage) -> None:
    job_id = play.submit()
    play.hand_over(job_id)
    play.ledger.store_result(play.take_check(job_id, 0).lease, passed(), elapsed=0)
    assert play.refused_check(job_id, 0) == ClaimRefused("finished")
    play.ledger.cancel(job_id)
    assert play.refused_check(job_id, 1) == ClaimRefused("finished")
    assert play.refused_check("p00-unknown", 1) == ClaimRefused("gone")


def test_a_verification_that_loses_every_worker_escalates_its_job(play: Stage) -> None:
    job_id = play.submit()
    play.hand_over(job_id, [0])
    for _ in range(play.settings.max_claims):
        zombie = play.take_check(job_id, 0)
        assert play.expire_leases() == {f"v:{job_id}/1/0"}
    assert play.refused_check(job_id, 0) == ClaimRefused("escalated", "worker_lost")
    view = play.view(job_id)
    assert (view.state, view.reason) == ("escalated", "worker_lost")
    assert view.detail == "3 workers were lost while verifying attempt 1"
    assert play.ledger.store_result(zombie.lease, passed(), elapsed=0) == ClaimRefused("lost")


def test_a_verification_repeated_with_its_own_token_is_claimed_once(
    play: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = play.submit()
    play.hand_over(job_id)
    monkeypatch.setattr("secrets.token_hex", lambda _bytes: "f00d")
    assert play.take_check(job_id, 0) == play.take_check(job_id, 0)


def test_the_results_of_a_cancelled_job_are_kept_and_lead_nowhere(play: Stage) -> None:
    job_id = play.submit()
    play.hand_over(job_id, [0])
    check = play.take_check(job_id, 0)
    play.ledger.cancel(job_id)
    last = play.ledger.store_result(check.lease, passed(), elapsed=0)
    assert isinstance(last, Claim)
    assert play.settle(last, retries_at_once(last)) is None
    assert play.view(job_id).state == "cancelled"


# -- giving back --------------------------------------------------------------------------------


def test_an_attempt_given_back_waits_and_is_not_blamed(play: Stage) -> None:
    """Given transport faults, then they are counted, and no claim is held against the attempt."""
    job_id = play.submit(priority=4)
    for fault in range(1, 6):  # more often than max_claims
        claim = play.take(job_id)
        assert claim.faults == fault - 1
        given_back = play.ledger.requeue(claim.lease, delay=10, detail="503", counter="faults")
        assert given_back is None
        view, attempt = play.view(job_id), play.attempt(job_id)
        assert (view.state, view.waiting_for) == ("waiting", "delay")
        assert (attempt.state, attempt.claims) == ("queued", 0)
        assert (attempt.faults, attempt.last_fault) == (fault, "503")
        assert play.swept("attempt") == set()
        play.advance(11)
        assert play.sweep() == [Publication(Entry("attempt", job_id, 1), "attempt", 4)]


def test_what_a_job_waits_for_is_told(play: Stage) -> None:
    job_id = play.submit()
    play.ledger.requeue(play.take(job_id).lease, delay=10, detail="open", waiting_for="breaker")
    assert play.view(job_id).waiting_for == "breaker"


def test_an_attempt_given_back_without_delay_goes_at_once(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    assert play.ledger.requeue(claim.lease, delay=0, detail="the worker was shut down") is None
    assert (play.view(job_id).state, play.view(job_id).waiting_for) == ("queued", None)
    assert play.swept() == {f"a:{job_id}/1"}
    assert play.ledger.requeue(claim.lease, delay=0, detail="again") == ClaimRefused("lost")


def test_a_retry_given_back_keeps_its_queue_and_its_place_at_the_front(play: Stage) -> None:
    job_id = play.submit(priority=9)
    first = play.take(job_id)
    play.settle(first, retries_at_once(first))
    play.ledger.requeue(play.take(job_id, 2).lease, delay=0, detail="shut down")
    assert play.sweep() == [Publication(Entry("attempt", job_id, 2), "repair", 0)]


def test_waiting_beyond_the_deadline_is_escalated_now(play: Stage) -> None:
    job_id = play.submit(deadline=100)
    told = play.ledger.requeue(play.take(job_id).lease, delay=101, detail="503 from the provider")
    assert told == ClaimRefused("escalated", "deadline")
    view = play.view(job_id)
    assert (view.state, view.reason) == ("escalated", "deadline")
    assert view.detail == "503 from the provider"


def test_past_its_limit_a_counter_escalates(play: Stage) -> None:
    job_id = play.submit()
    told = None
    for _ in range(3):
        assert told is None
        told = play.ledger.requeue(
            play.take(job_id).lease,
            delay=0,
            detail="pytest is missing",
            counter="verifier_errors",
            limit=3,
            reason="tool_error",
        )
    assert told == ClaimRefused("escalated", "tool_error")
    view = play.view(job_id)
    assert (view.state, view.reason, view.detail) == (
        "escalated",
        "tool_error",
        "pytest is missing",
    )


def test_a_verification_without_a_verdict_is_tried_again_and_then_escalated(play: Stage) -> None:
    job_id = play.submit()
    play.hand_over(job_id)
    for again in (True, False):
        told = play.ledger.requeue(
            play.take_check(job_id, 1).lease,
            delay=5,
            detail="no pytest",
            counter="verifier_errors",
            limit=2,
            reason="tool_error",
        )
        if again:
            assert told is None
            assert play.attempt(job_id).state == "verifying"
            assert play.refused_check(job_id, 1) == ClaimRefused("early")
            play.advance(6)
            assert f"v:{job_id}/1/1" in play.swept()
    assert told == ClaimRefused("escalated", "tool_error")
    assert play.view(job_id).reason == "tool_error"


def test_giving_back_an_attempt_of_a_finished_job_is_refused(play: Stage) -> None:
    job_id = play.submit()
    claim = play.take(job_id)
    play.ledger.cancel(job_id)
    told = play.ledger.requeue(claim.lease, delay=0, detail="shut down")
    assert told == ClaimRefused("finished")
    assert play.swept("attempt") == set()
    assert play.ledger.settle(claim.lease, escalates(claim)) == ClaimRefused("lost")
