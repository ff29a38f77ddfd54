"""RetryPolicy: the single authority on retries. A decision is a value that tasks perform."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from typing import Literal

from mulligan.policies.failures.failure import FailureKind, FailureRecord
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import Mode, PolicySpec

#: Below this score the mandatory immediate retry follows.
PASSING_SCORE = 70.0
_CENT = Decimal("0.01")
#: The cause of work that does not fit together with what others merged meanwhile. So many of them
#: do not count as attempts: they are nobody's mistake.
MERGE_CONFLICT = "merge_conflict"
FREE_CONFLICTS = 5


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Run the corrected attempt. In mode ``immediate_retry`` it is mandatory and opens a cycle."""

    reason: str
    mode: Mode = "policy_retry"


@dataclass(frozen=True, kw_only=True)
class ChangeStrategy(Retry):
    """Run again differently: with a fresh context, constrained decoding or another model."""


@dataclass(frozen=True, kw_only=True)
class Escalate:
    """Stop: a person must look."""

    reason: str


Decision = Retry | ChangeStrategy | Escalate


#: Reasons to escalate: the job has used up its attempts, or repeats one failure.
MAX_ATTEMPTS = "max_attempts"
REPEATED_FAILURE = FailureKind.REPEATED_FAILURE.value


def passes(score: float | None) -> bool:
    """Whether a score is high enough. A missing score is not."""
    return score is not None and score >= PASSING_SCORE


def score_in_full(score: float | None) -> str:
    """Format a score for a sentence, with up to two decimals, rounded down: ``69.99``, ``70``."""
    if score is None:
        return "–"
    return f"{Decimal(repr(score)).quantize(_CENT, ROUND_DOWN):f}".rstrip("0").rstrip(".")


def owes_immediate_retry(mode: Mode, score: float | None, *, exempt: bool) -> bool:
    """Whether the mandatory immediate retry must follow an attempt with this score.

    It follows a low score of an attempt, but not of an immediate retry, a delayed verification or
    an exempt task type. An attempt without a score was not completed.
    """
    if score is None or passes(score) or exempt:
        return False
    return mode in ("initial", "policy_retry")


def leaves_room_to_retry(policy: PolicySpec, *, exempt: bool) -> bool:
    """Whether a job may run at least twice, as the mandatory retry needs."""
    return exempt or policy.max_attempts >= 2


def opens_cycle(
    decision: Decision | None, mode: Mode, score: float | None, *, exempt: bool
) -> Literal["pending_immediate_retry", "escalated"] | None:
    """Return the status of the cycle that a decision opens; None if it opens none.

    A mandatory retry that a budget, a guardrail or ``escalate_on`` forbids opens a cycle that is
    escalated from the start. One that the job's own limits forbid opens none.
    """
    match decision:
        case Retry(mode="immediate_retry"):
            return "pending_immediate_retry"
        case Escalate(reason=reason) if reason not in (MAX_ATTEMPTS, REPEATED_FAILURE):
            return "escalated" if owes_immediate_retry(mode, score, exempt=exempt) else None
        case _:
            return None


class RetryPolicy(PolicySpec):
    """The limits of a job's retries, and the decisions that follow from them."""

    @classmethod
    def from_spec(cls, spec: PolicySpec, *, attempts_before_requeue: int = 0) -> RetryPolicy:
        """Return the policy of a job. The attempts before a person's requeue do not count."""
        max_attempts = attempts_before_requeue + spec.max_attempts
        # Not validated again, because the sum may exceed the limit for one job.
        return cls.model_construct(**{**dict(spec), "max_attempts": max_attempts})

    def should_stop_retrying(self, record: FailureRecord, memory: RetryMemory) -> bool:
        """Whether a limit is reached: too many attempts, or this failure too often."""
        return record.attempt > self.max_attempts or self._repeats(record, memory)

    def should_retry(self, record: FailureRecord, memory: RetryMemory) -> bool:
        """Whether to try again, as the handbook defines it (attempts are 1-based)."""
        return not self._ends(record) and not self.should_stop_retrying(record, memory)

    def decide(
        self,
        record: FailureRecord,
        memory: RetryMemory,
        *,
        mode: Mode = "immediate_retry",
        score: float | None = None,
        exempt: bool = False,
        exhausted: str | None = None,
        start_over: bool = False,
    ) -> Decision:
        """Decide what follows a failed attempt: the first row of the decision table that fits.

        ``memory`` does not include this failure. ``exhausted`` names the budget or guardrail that
        is used up; an exempt task type has no mandatory retry. ``start_over``: the attempt only
        repeated itself, so that every retry changes the strategy.
        """
        retry = ChangeStrategy if start_over else Retry
        mandatory = None
        if owes_immediate_retry(mode, score, exempt=exempt):
            reason = f"score {score_in_full(score)} is below {PASSING_SCORE:g}"
            mandatory = retry(reason=reason, mode="immediate_retry")
        if self._ends(record):
            return Escalate(reason=record.kind.value)
        if exhausted is not None:
            return Escalate(reason=exhausted)
        if mandatory and mode == "initial":
            return mandatory
        if mode != "initial" and self._repeats(record, memory):
            return Escalate(reason=REPEATED_FAILURE)
        if record.attempt + 1 > self.max_attempts:
            return Escalate(reason=MAX_ATTEMPTS)
        if mandatory:
            return mandatory
        if memory.count(record.classification_signature):
            return ChangeStrategy(reason=f"{record.kind} again")
        return retry(reason=record.kind.value)

    def _ends(self, record: FailureRecord) -> bool:
        """Whether a failure of this kind is never retried. A guess from words is not enough."""
        return record.kind in self.escalate_on and not record.guessed

    def _repeats(self, record: FailureRecord, memory: RetryMemory) -> bool:
        return memory.count(record.classification_signature) >= self.same_failure_limit
