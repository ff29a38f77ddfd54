"""RetryPolicy: the handbook's two questions, and the decision table of the mandatory retry."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.failure import FailureKind, FailureRecord
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import Mode
from mulligan.policies.repair.retry import (
    ChangeStrategy,
    Escalate,
    Retry,
    RetryPolicy,
    opens_cycle,
    owes_immediate_retry,
)


def failure(
    attempt: int = 1,
    signature: str = "v1:a",
    kind: FailureKind = FailureKind.SCHEMA_INVALID,
) -> FailureRecord:
    return FailureRecord(
        kind=kind,
        classification_signature=signature,
        coarse_signature="v1:coarse",
        message="broken",
        source="verify",
        attempt=attempt,
    )


def memory_of(count: int, signature: str = "v1:a") -> RetryMemory:
    memory = RetryMemory()
    for _ in range(count):
        memory = memory.record(failure(signature=signature))
    return memory


@pytest.mark.parametrize(
    ("attempt", "count", "stop"),
    [
        (1, 0, False),
        (4, 0, False),  # 4 is not greater than max_attempts 4
        (5, 0, True),  # 5 > 4
        (1, 1, False),  # one in memory is below the limit of 2
        (1, 2, True),  # two identical signatures block a third
        (1, 3, True),
    ],
)
def test_retrying_stops_at_either_limit(attempt: int, count: int, stop: bool) -> None:
    policy = RetryPolicy(max_attempts=4, same_failure_limit=2)
    assert policy.should_stop_retrying(failure(attempt), memory_of(count)) is stop
    assert policy.should_retry(failure(attempt), memory_of(count)) is not stop


def test_a_kind_to_escalate_is_not_retried_although_no_limit_is_reached() -> None:
    policy = RetryPolicy(escalate_on=frozenset({FailureKind.UNSAFE_REQUEST}))
    record = failure(kind=FailureKind.UNSAFE_REQUEST)
    assert not policy.should_retry(record, RetryMemory())
    assert not policy.should_stop_retrying(record, RetryMemory())


def test_a_guessed_kind_is_retried() -> None:
    policy = RetryPolicy(escalate_on=frozenset({FailureKind.COMMAND_FAILED}))
    words = classify_failure(ValueError("the clock is timed out"), source="task")
    structure = classify_failure(TimeoutError("the clock is timed out"), source="task")
    assert words.kind == structure.kind == "command_failed"
    assert policy.should_retry(words, RetryMemory())
    assert isinstance(policy.decide(words, RetryMemory()), Retry)
    assert policy.decide(structure, RetryMemory()) == Escalate(reason="command_failed")


def test_another_signature_does_not_count() -> None:
    assert RetryPolicy().should_retry(failure(signature="v1:b"), memory_of(9, "v1:a"))


# Columns: mode, attempt, score, n (times this signature is in memory), other arguments, decision.
# max_attempts is 4 and same_failure_limit is 2 throughout.
TABLE: list[tuple[Mode, int, float | None, int, dict[str, Any], object]] = [
    # A kind to escalate or an exhausted budget comes first.
    ("initial", 1, 10, 0, {"kind": FailureKind.UNSAFE_REQUEST}, "unsafe_request"),
    ("initial", 1, 10, 0, {"exhausted": "budget_tokens"}, "budget_tokens"),
    # The first low score is always retried at once, whatever is in memory.
    ("initial", 1, 69.99, 0, {}, "immediate_retry"),
    ("initial", 1, 0, 5, {}, "immediate_retry"),
    # 70 is not below 70: no cycle. But with a failed required verifier it is not a success.
    ("initial", 1, 70, 0, {}, Retry),
    ("initial", 1, 70, 1, {}, ChangeStrategy),
    # An exempt type below 70 has no mandatory retry.
    ("initial", 1, 10, 0, {"exempt": True}, Retry),
    # After the mandatory retry: retry a new failure, change the strategy for the same one, stop.
    ("immediate_retry", 2, 10, 0, {}, Retry),
    ("immediate_retry", 2, 10, 1, {}, ChangeStrategy),
    ("immediate_retry", 2, 10, 2, {}, "repeated_failure"),
    ("immediate_retry", 2, 90, 2, {}, "repeated_failure"),
    # A policy retry below 70 opens the next cycle.
    ("policy_retry", 3, 10, 0, {}, "immediate_retry"),
    ("policy_retry", 3, 10, 1, {}, "immediate_retry"),
    ("policy_retry", 3, 10, 2, {}, "repeated_failure"),
    ("policy_retry", 3, 90, 0, {}, Retry),
    ("policy_retry", 3, 10, 0, {"exempt": True}, Retry),
    # The fourth of four attempts is the last.
    ("immediate_retry", 4, 10, 0, {}, "max_attempts"),
    ("policy_retry", 4, 10, 1, {}, "max_attempts"),
    ("policy_retry", 4, 10, 2, {}, "repeated_failure"),  # the memory's row comes first
    # An attempt without an answer has no score: no cycle.
    ("initial", 1, None, 0, {}, Retry),
    ("initial", 1, None, 1, {}, ChangeStrategy),
]


@pytest.mark.parametrize(("mode", "attempt", "score", "count", "more", "expected"), TABLE)
def test_the_decision_table(
    mode: Mode,
    attempt: int,
    score: float | None,
    count: int,
    more: dict[str, Any],
    expected: object,
) -> None:
    more = dict(more)
    record = failure(attempt, kind=more.pop("kind", FailureKind.SCHEMA_INVALID))
    policy = RetryPolicy(max_attempts=4, same_failure_limit=2)
    decision = policy.decide(record, memory_of(count), mode=mode, score=score, **more)
    match expected:
        case "immediate_retry":
            assert isinstance(decision, Retry)
            assert decision.mode == "immediate_retry"
        case str(reason):
            assert decision == Escalate(reason=reason)
        case _:
            assert type(decision) is expected
            assert isinstance(decision, Retry)
            assert decision.mode == "policy_retry"


# Columns: mode, score, exempt, whether the mandatory retry must follow.
MANDATORY: list[tuple[Mode, float | None, bool, bool]] = [
    ("initial", 69.99, False, True),
    ("policy_retry", 0, False, True),
    ("initial", 70, False, False),  # 70 is not below 70
    ("initial", 10, True, False),
    ("initial", None, False, False),  # not completed
    ("immediate_retry", 10, False, False),
    ("delayed_verification", 10, False, False),
]


@pytest.mark.parametrize(("mode", "score", "exempt", "expected"), MANDATORY)
def test_which_attempts_need_the_mandatory_retry(
    mode: Mode, score: float | None, exempt: bool, expected: bool
) -> None:
    assert owes_immediate_retry(mode, score, exempt=exempt) is expected
    # A budget that forbids the retry still opens a cycle.
    status = opens_cycle(Escalate(reason="budget_tokens"), mode, score, exempt=exempt)
    assert status == ("escalated" if expected else None)


def test_only_the_mandatory_retry_opens_a_cycle() -> None:
    retry = Retry(reason="score 40 is below 70", mode="immediate_retry")
    assert opens_cycle(retry, "initial", 40, exempt=False) == "pending_immediate_retry"
    others = (
        None,
        Retry(reason="new failure"),
        ChangeStrategy(reason="again"),
        Escalate(reason="max_attempts"),
        Escalate(reason="repeated_failure"),
    )
    assert {opens_cycle(each, "policy_retry", 40, exempt=False) for each in others} == {None}


@given(
    attempt=st.integers(2, 10),
    count=st.integers(0, 5),
    score=st.one_of(st.none(), st.floats(0, 100)),
    mode=st.sampled_from(["immediate_retry", "policy_retry"]),
)
def test_later_retries_follow_should_retry(
    attempt: int, count: int, score: float | None, mode: Mode
) -> None:
    policy = RetryPolicy(max_attempts=4, same_failure_limit=2)
    decision = policy.decide(failure(attempt), memory_of(count), mode=mode, score=score)
    allowed = policy.should_retry(failure(attempt + 1), memory_of(count))
    assert isinstance(decision, Retry) == allowed


def test_a_memory_is_immutable_and_counts_a_signature_once_per_attempt() -> None:
    empty = RetryMemory()
    once = empty.record_all([failure(), failure(), failure(signature="v1:b")])
    assert (empty.count("v1:a"), once.count("v1:a"), once.count("v1:b")) == (0, 1, 1)
    assert once.record(failure()).count("v1:a") == 2
