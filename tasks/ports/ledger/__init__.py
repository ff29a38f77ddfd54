"""The port for the ledger, which holds the truth about every job. Messages are only hints.

There is one implementation, `workers/ledger/redis_ledger.py`, and each of its methods is one round
trip. Writing needs the token of a lease; a caller that has lost its lease is refused.
"""

from __future__ import annotations

from typing import Protocol

from mulligan.tasks.ports.ledger.attempt_ledger import (
    AttemptLedger,
    Claim,
    CyclePlan,
    Finish,
    NextAttempt,
    Remedy,
    SessionNote,
    Settlement,
    VerificationLedger,
)
from mulligan.tasks.ports.ledger.coordination_ledger import (
    Coordination,
    CoordinationLedger,
    EmittedEvent,
)
from mulligan.tasks.ports.ledger.cycle_ledger import CycleClaim, CycleFailure, CycleLedger
from mulligan.tasks.ports.ledger.entries import (
    ClaimRefused,
    Entry,
    EntryKind,
    EntryRequeued,
    Lease,
    Publication,
)
from mulligan.tasks.ports.ledger.escalation_ledger import (
    Ended,
    Escalation,
    EscalationEnd,
    EscalationGroup,
    EscalationLedger,
    EscalationState,
)
from mulligan.tasks.ports.ledger.external_ledger import ExternalLedger, NextEntry
from mulligan.tasks.ports.ledger.job_ledger import (
    Accepted,
    BroughtAttempt,
    JobLedger,
    KeyConflict,
    Submission,
)
from mulligan.tasks.ports.ledger.ledger_reader import (
    AttemptView,
    Event,
    JobView,
    LedgerClock,
    LedgerReader,
)
from mulligan.tasks.ports.ledger.loop_ledger import (
    ArrivingJob,
    ImportRefused,
    ItemRun,
    LiveItem,
    LoopArrival,
    LoopExport,
    LoopFleet,
    LoopLedger,
    LoopNote,
    LoopReading,
    LoopWrite,
    MergeQueue,
    Requester,
    WriteRefused,
    Written,
)
from mulligan.tasks.ports.ledger.queue_ledger import QueueLedger

__all__ = [
    "Accepted",
    "ArrivingJob",
    "AttemptLedger",
    "AttemptView",
    "BroughtAttempt",
    "Claim",
    "ClaimRefused",
    "Coordination",
    "CoordinationLedger",
    "CycleClaim",
    "CycleFailure",
    "CycleLedger",
    "CyclePlan",
    "EmittedEvent",
    "Ended",
    "Entry",
    "EntryKind",
    "EntryRequeued",
    "Escalation",
    "EscalationEnd",
    "EscalationGroup",
    "EscalationLedger",
    "EscalationState",
    "Event",
    "ExternalLedger",
    "Finish",
    "ImportRefused",
    "ItemRun",
    "JobLedger",
    "JobView",
    "KeyConflict",
    "Lease",
    "Ledger",
    "LedgerClock",
    "LedgerReader",
    "LiveItem",
    "LoopArrival",
    "LoopExport",
    "LoopFleet",
    "LoopLedger",
    "LoopNote",
    "LoopReading",
    "LoopWrite",
    "MergeQueue",
    "NextAttempt",
    "NextEntry",
    "Publication",
    "QueueLedger",
    "Remedy",
    "Requester",
    "SessionNote",
    "Settlement",
    "Submission",
    "VerificationLedger",
    "WriteRefused",
    "Written",
]


class Ledger(
    JobLedger,
    AttemptLedger,
    VerificationLedger,
    CycleLedger,
    ExternalLedger,
    EscalationLedger,
    QueueLedger,
    LoopLedger,
    CoordinationLedger,
    LedgerReader,
    Protocol,
):
    """All parts of the ledger. A function takes only the part that it needs."""
