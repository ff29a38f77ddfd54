"""RetryPolicy: the single authority on retries. A decision is a value; tasks perform it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mulligan.policies.failures.failure import FailureKind, FailureRecord
from mulligan.policies.failures.memory import RetryMemory
from mulligan.policies.jobs.job import Mode, PolicySpec

#: Below this score the mandatory immediate retry follows.
PASSING_SCORE = 70.0

Queue = Literal["repair", "attempt"]


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Run the corrected attempt. In mode ``immediate_retry`` it is mandatory and opens a cycle."""

    reason: str
    mode: Mode = "policy_retry"
    delay: float = 0.0
    queue: Queue = "attempt"
    #: 0 is the front of a queue.
    priority: int = 0


@dataclass(frozen=True, kw_only=True)
class ChangeStrategy(Retry):
    """Run again, but differently: fresh context, constrained decoding, another model."""


@dataclass(frozen=True, kw_only=True)
class Escalate:
    """Stop: a person must look."""

    reason: str
    delay: float = 0.0
    queue: None = None
    priority: int = 0


Decision = Retry | ChangeStrategy | Escalate


def _mandatory(reason: str) -> Retry:
    return Retry(reason=reason, mode="immediate_retry", queue="repair")


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and for which failures, a job may be tried again."""

    max_attempts: int = 4
    same_failure_limit: int = 2
    escalate_on: frozenset[FailureKind] = frozenset({FailureKind.UNSAFE_REQUEST})

    @classmethod
    def from_spec(cls, spec: PolicySpec, *, since: int = 0) -> RetryPolicy:
        """The policy of a job; ``since`` attempts before a person's requeue do not count."""
        return cls(since + spec.max_attempts, spec.same_failure_limit, spec.escalate_on)

    def should_stop_retrying(self, record: FailureRecord, memory: RetryMemory) -> bool:
        """Whether a limit is passed: too many attempts, or this failure seen too often."""
        return record.attempt > self.max_attempts or self._repeats(record, memory)

    def should_retry(self, record: FailureRecord, memory: RetryMemory) -> bool:
        """Whether to try again, as the handbook defines it (attempts are 1-based)."""
        return record.kind not in self.escalate_on and not self.should_stop_retrying(record, memory)

    def decide(
        self,
        record: FailureRecord,
        memory: RetryMemory,
        *,
        mode: Mode = "immediate_retry",
        score: float | None = None,
        exempt: bool = False,
        exhausted: str | None = None,
    ) -> Decision:
        """What follows a failed attempt. ``memory`` is as it stood before this failure.

        The rows of the decision table, first one that fits. ``exhausted`` names the budget or
        guardrail that ran out; an exempt task type has no mandatory retry.
        """
        low = score is not None and score < PASSING_SCORE and not exempt
        later = mode != "initial"
        if record.kind in self.escalate_on:
            return Escalate(reason=record.kind.value)
        if exhausted is not None:
            return Escalate(reason=exhausted)
        if low and mode == "initial":
            return _mandatory(f"score {score:g} is below {PASSING_SCORE:g}")
        if later and self._repeats(record, memory):
            return Escalate(reason=FailureKind.REPEATED_FAILURE.value)
        if record.attempt + 1 > self.max_attempts:
            return Escalate(reason="max_attempts")
        if low and mode == "policy_retry":
            return _mandatory(f"score {score:g} is below {PASSING_SCORE:g}")
        if memory.count(record.classification_signature):
            return ChangeStrategy(reason=f"{record.kind} again: change the strategy")
        return Retry(reason=f"{record.kind}: correct and retry")

    def _repeats(self, record: FailureRecord, memory: RetryMemory) -> bool:
        return memory.count(record.classification_signature) >= self.same_failure_limit
