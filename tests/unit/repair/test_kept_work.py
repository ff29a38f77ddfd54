"""Attempts in a repository: conflicts that do not count, and the tree that a retry goes on with."""

from __future__ import annotations

import pytest

from mulligan.policies.failures.failure import (
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import AttemptPlan, Decoding, Job, Output
from mulligan.policies.repair.retry import ChangeStrategy, Escalate, Retry
from mulligan.policies.repair.strategy import plan_next
from mulligan.policies.repair.verdict import Verdict, judge


def job(max_attempts: int = 3) -> Job:
    return Job.model_validate(
        {
            "task_type": "code",
            "prompt": "Do it.",
            "runner": "coder",
            "verifiers": ["json.object", {"id": "git.merge", "weight": 0.001}],
            "policy": {"max_attempts": max_attempts},
            "workspace": {"git": "/repo", "branch": "mulligan/x"},
        }
    )


def conflict(tip: str) -> VerificationResult:
    finding = Finding(message="both", code="merge_conflict", path="app.py", expected=tip)
    return VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id="git.merge",
        summary="it conflicts",
        evidence={"kind": "missing_context", "conflicts": "<<<<<<< ours"},
        errors=(finding,),
    )


PASSED = VerificationResult(status=VerificationStatus.PASS, verifier_id="json.object")
FAILED = VerificationResult(status=VerificationStatus.FAIL, verifier_id="json.object")
SKIPPED = VerificationResult(status=VerificationStatus.SKIPPED, verifier_id="git.merge")


def judged(plan: AttemptPlan, *results: VerificationResult, seen: RetryMemory) -> Verdict:
    return judge(job(), plan, results, seen)


def test_five_conflicts_do_not_count_as_attempts() -> None:
    """Given 3 attempts, then 5 conflicts leave room for 3 more; the sixth counts."""
    plan, memory = AttemptPlan(), RetryMemory()
    decisions = []
    for number in range(1, 20):
        verdict = judged(plan, PASSED, conflict(f"tip{number}"), seen=memory)
        decisions.append(verdict.decision)
        if isinstance(verdict.decision, Escalate):
            break
        assert verdict.failure is not None
        assert verdict.failure.label == "missing_context.merge_conflict"
        memory = memory.record(verdict.failure)
        assert isinstance(verdict.decision, Retry)
        plan = plan_next(job(), plan, verdict, verdict.decision, output=None, asked_with=Decoding())
    assert len(decisions) == 5 + 3
    assert decisions[-1] == Escalate(reason="max_attempts")


def test_a_conflict_with_the_same_commit_again_is_the_same_failure() -> None:
    first = judged(AttemptPlan(), PASSED, conflict("tip"), seen=RetryMemory())
    assert first.failure is not None
    memory = RetryMemory().record(first.failure)
    again = judged(AttemptPlan(number=2, mode="policy_retry"), PASSED, conflict("tip"), seen=memory)
    assert isinstance(again.decision, ChangeStrategy)


@pytest.mark.parametrize(
    ("plan", "score", "kept"),
    [
        (AttemptPlan(), 40.0, "new"),  # the first one
        (AttemptPlan(number=2, kept="old", kept_score=50.0), 40.0, "old"),  # a worse one
        (AttemptPlan(number=2, kept="old", kept_score=40.0), 40.0, "new"),  # as good: the later
        (AttemptPlan(number=2, kept="old", kept_score=30.0), 40.0, "new"),
    ],
)
def test_a_retry_goes_on_with_the_best_work(plan: AttemptPlan, score: float, kept: str) -> None:
    verdict = judged(plan, FAILED, SKIPPED, seen=RetryMemory())
    verdict = Verdict(**{**vars(verdict), "score": score})
    output = Output(text="done", commit="new", base="base")
    following = plan_next(
        job(), plan, verdict, Retry(reason="x"), output=output, asked_with=Decoding()
    )
    assert following.kept == kept
    assert "The directory has your earlier changes." in (following.prompt or "")


def test_an_attempt_that_changed_nothing_leaves_nothing_to_go_on_with() -> None:
    verdict = judged(AttemptPlan(), FAILED, SKIPPED, seen=RetryMemory())
    output = Output(text="done", commit="base", base="base")
    following = plan_next(
        job(), AttemptPlan(), verdict, Retry(reason="x"), output=output, asked_with=Decoding()
    )
    assert following.kept is None
    assert "earlier changes" not in (following.prompt or "")


def test_a_changed_strategy_begins_with_the_branch() -> None:
    plan = AttemptPlan(number=2, kept="old", kept_score=50.0)
    verdict = judged(plan, FAILED, SKIPPED, seen=RetryMemory())
    following = plan_next(
        job(), plan, verdict, ChangeStrategy(reason="x"), output=None, asked_with=Decoding()
    )
    assert (following.kept, following.kept_score) == (None, -1.0)
    assert "earlier changes" not in (following.prompt or "")


def test_the_prompt_after_a_conflict_quotes_it() -> None:
    verdict = judged(AttemptPlan(), PASSED, conflict("tip"), seen=RetryMemory())
    output = Output(text="done", commit="new", base="base")
    following = plan_next(
        job(), AttemptPlan(), verdict, Retry(reason="x"), output=output, asked_with=Decoding()
    )
    assert "<<<<<<< ours" in (following.prompt or "")
    assert "Your change of app.py conflicts with what was merged meanwhile." in (
        following.prompt or ""
    )


def test_advice_is_about_files_if_the_attempt_changes_files() -> None:
    """Given broken code in a repository, then nobody asks for a whole file as the answer."""
    finding = Finding(message="invalid syntax", code="syntax_error", path="app.py")
    broken = VerificationResult(
        status=VerificationStatus.FAIL, verifier_id="pytest.subprocess", errors=(finding,)
    )
    verdict = judged(AttemptPlan(), broken, SKIPPED, seen=RetryMemory())
    output = Output(text="I have done it.", commit="new", base="base")
    following = plan_next(
        job(), AttemptPlan(), verdict, Retry(reason="x"), output=output, asked_with=Decoding()
    )
    assert "whole file" not in (following.prompt or "")
    assert "Correct the code." in (following.prompt or "")
    assert "I have done it." not in (following.prompt or ""), "a remark proves nothing"
