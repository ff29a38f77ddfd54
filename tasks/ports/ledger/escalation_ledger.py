"""The part of the ledger for escalations and their groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from mulligan.policies.jobs.job import Decoding
from mulligan.tasks.ports.ledger.entries import ClaimRefused, Publication
from mulligan.tasks.ports.ledger.ledger_reader import LedgerClock

EscalationState = Literal["open", "resolved", "requeued", "cancelled"]
EscalationEnd = Literal["resolved", "requeued", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class Escalation:
    """Something that a person must look at, and how it ended."""

    id: str
    job_id: str
    attempt: int
    #: Set if a cycle's delayed verification failed.
    cycle_id: str | None
    signature: str
    reason: str
    kind: str | None
    task_type: str
    detail: str
    tenant: str | None
    at: float
    state: EscalationState
    ended_at: float | None
    ended_by: str | None
    note: str | None


@dataclass(frozen=True, kw_only=True)
class EscalationGroup:
    """Escalations with one signature. The counts by task type and tenant are of open ones."""

    signature: str
    reason: str
    kind: str | None
    detail: str
    example: str
    task_types: Mapping[str, int]
    tenants: Mapping[str, int]
    open: int
    total: int
    first_at: float
    last_at: float
    muted_until: float | None
    alerted_at: float | None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An escalation that was ended; a requeued job has an attempt to publish."""

    state: EscalationEnd
    publication: Publication | None = None


class EscalationLedger(LedgerClock, Protocol):
    """Reading and ending escalations."""

    def groups(
        self, *, only_open: bool = True, tenant: str | None = None, limit: int = 100
    ) -> list[EscalationGroup]:
        """Return groups of escalations, newest first."""

    def group(self, signature: str) -> EscalationGroup | None: ...

    def escalation(self, escalation_id: str) -> Escalation | None: ...

    def escalations(
        self,
        *,
        signature: str | None = None,
        only_open: bool = True,
        tenant: str | None = None,
        limit: int = 50,
    ) -> list[Escalation]:
        """Return escalations, newest first; without a signature, of every group."""

    def end_escalation(
        self,
        escalation_id: str,
        *,
        how: EscalationEnd,
        by: str,
        note: str = "",
        prompt: str | None = None,
        decoding: Decoding | None = None,
    ) -> Ended | ClaimRefused:
        """End an escalation. ``requeued`` starts the job again, with a new prompt if given."""

    def mute(self, signature: str, *, until: float | None) -> bool:
        """Send no alerts about a group until then. Return whether the group exists."""
