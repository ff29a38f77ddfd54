"""The self-repair cycle: the record of one mandatory immediate retry, and its transitions."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from mulligan.policies.value import Value

PROTOCOL_VERSION = "self-repair-immediate-v1"


class CycleStatus(StrEnum):
    PENDING_IMMEDIATE_RETRY = "pending_immediate_retry"
    PENDING_DELAYED_VERIFICATION = "pending_delayed_verification"
    COMPLETED = "completed"
    ESCALATED = "escalated"
    CANCELLED = "cancelled"


#: Every legal transition.
TRANSITIONS: dict[CycleStatus, frozenset[CycleStatus]] = {
    CycleStatus.PENDING_IMMEDIATE_RETRY: frozenset(
        {
            CycleStatus.PENDING_DELAYED_VERIFICATION,
            CycleStatus.ESCALATED,
            CycleStatus.CANCELLED,
        }
    ),
    CycleStatus.PENDING_DELAYED_VERIFICATION: frozenset(
        {CycleStatus.COMPLETED, CycleStatus.ESCALATED, CycleStatus.CANCELLED}
    ),
    CycleStatus.COMPLETED: frozenset(),
    CycleStatus.ESCALATED: frozenset(),
    CycleStatus.CANCELLED: frozenset(),
}


class IllegalTransition(ValueError):
    """A cycle was asked to make a transition that is not legal."""


class SelfRepairCycle(Value):
    """One mandatory retry, unique per source attempt and loop index."""

    id: str
    job_id: str
    source_attempt: int = Field(ge=1)
    loop_index: int = Field(ge=1)
    status: CycleStatus = CycleStatus.PENDING_IMMEDIATE_RETRY
    immediate_attempt_id: str | None = None
    created_at: float
    immediate_at: float | None = None
    ended_at: float | None = None
    #: Why it ended: ``repeated_failure``, ``delayed_verification 40``…
    reason: str | None = None
    #: The score of its delayed verification.
    score: float | None = None
    #: ``taskType``, ``prompt``, ``targetNodes``, ``causeLabel``
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def open(self) -> bool:
        return bool(TRANSITIONS[self.status])

    def move(self, to: CycleStatus, *, at: float, **changes: Any) -> SelfRepairCycle:
        """Return the cycle after a transition. Raise IllegalTransition if it is not legal."""
        if to not in TRANSITIONS[self.status]:
            raise IllegalTransition(f"a cycle cannot go from {self.status} to {to}")
        ended = {} if TRANSITIONS[to] else {"ended_at": at}
        return self.model_copy(update={"status": to, **ended, **changes})


def cycle_id(job_id: str, source_attempt: int, loop_index: int) -> str:
    """Return the id of a cycle. One failure cannot open two cycles, because they share the id."""
    return f"{job_id}:{source_attempt}:{loop_index}"
