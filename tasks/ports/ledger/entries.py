"""Entries of work to do, and the leases on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mulligan.policies.loops.budget import Resource
from mulligan.policies.loops.progress import AgentProgress

#: ``done`` sends a producer the outcome of its job; ``loop`` says that a loop must be planned.
EntryKind = Literal["attempt", "verification", "cycle", "done", "loop"]
_KINDS: dict[str, EntryKind] = {
    "a": "attempt",
    "v": "verification",
    "c": "cycle",
    "d": "done",
    "l": "loop",
}


@dataclass(frozen=True)
class Entry:
    """One piece of work, as the outbox, the leases and the messages name it."""

    kind: EntryKind
    #: The job; of a hint, the loop.
    job_id: str
    attempt: int
    #: The verifier's index in the job, or the cycle's loop index.
    index: int | None = None

    def __str__(self) -> str:
        if self.kind == "attempt":
            return f"a:{self.job_id}/{self.attempt}"
        if self.kind == "verification":
            return f"v:{self.job_id}/{self.attempt}/{self.index}"
        if self.kind in ("done", "loop"):
            return f"{self.kind[0]}:{self.job_id}/{self.attempt}"
        return f"c:{self.cycle_id}"

    @property
    def loop(self) -> str:
        """The name of the loop of a hint."""
        return self.job_id.partition("-")[2]

    @property
    def cycle_id(self) -> str:
        return f"{self.job_id}:{self.attempt}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Entry:
        tag, _, rest = text.partition(":")
        parts = rest.replace("/", ":").split(":")
        index = int(parts[2]) if len(parts) > 2 else None
        return cls(_KINDS[tag], parts[0], int(parts[1]), index)


@dataclass(frozen=True)
class Publication:
    """An outbox entry to publish, and its queue."""

    entry: Entry
    queue: str
    priority: int
    #: How often sending it has failed since it was last sent.
    failures: int = 0


@dataclass(frozen=True)
class Lease:
    """The right to write about one entry until the lease expires."""

    entry: Entry
    token: str
    #: When the claim was sent, by the clock of leases; None if unknown.
    sent_at: float | None = field(default=None, compare=False)
    #: What its attempt has used so far, if its runner says so.
    metered: Mapping[Resource, float] = field(default_factory=dict, compare=False)
    #: How its attempt goes, with the seconds since each sign of progress.
    progress: AgentProgress | None = field(default=None, compare=False)


@dataclass(frozen=True)
class EntryRequeued:
    """A requeued entry: it runs again after ``delay`` seconds, as far as known."""

    delay: float
    #: Seconds until its provider may be called again; None if it may now.
    provider_opens_in: float | None = None
    #: Entries that waited for what this one has freed, to publish now.
    released: tuple[Publication, ...] = ()


@dataclass(frozen=True)
class ClaimRefused:
    """There is nothing to do for this message.

    ``detail`` is the cause of an escalation, or the reason behind which the entry waits.
    ``alone``: it has lost too many workers, and other work ran in the last one, too. A process that
    runs nothing else may claim it once more.
    """

    reason: Literal[
        "gone",
        "finished",
        "held",
        "verifying",
        "paused",
        "over_quota",
        "no_slot",
        "provider_busy",
        "early",
        "alone",
        "newer",
        "escalated",
        "stored",
        "other_report",
        "lost",
    ]
    detail: str = ""
