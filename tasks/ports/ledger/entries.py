"""What is to be done, and the right to do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: ``done`` tells a producer how its job ended.
EntryKind = Literal["attempt", "verification", "cycle", "done"]


_KINDS: dict[str, EntryKind] = {"a": "attempt", "v": "verification", "c": "cycle", "d": "done"}


@dataclass(frozen=True)
class Entry:
    """Something to be done, as the outbox, the leases and the messages name it."""

    kind: EntryKind
    job_id: str
    attempt: int
    #: The verifier's place in the job, or the cycle's loop index.
    index: int | None = None

    def __str__(self) -> str:
        if self.kind == "attempt":
            return f"a:{self.job_id}/{self.attempt}"
        if self.kind == "verification":
            return f"v:{self.job_id}/{self.attempt}/{self.index}"
        if self.kind == "done":
            return f"d:{self.job_id}/{self.attempt}"
        return f"c:{self.cycle_id}"

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
    """An outbox entry to be published, and where."""

    entry: Entry
    queue: str
    priority: int


@dataclass(frozen=True)
class Lease:
    """The right to write about one entry, until it expires or is lost."""

    entry: Entry
    token: str


@dataclass(frozen=True)
class ClaimRefused:
    """Nothing to do for this message. ``reason`` says why; ``detail`` an escalation's cause."""

    reason: Literal[
        "gone",
        "finished",
        "held",
        "verifying",
        "paused",
        "over_quota",
        "early",
        "escalated",
        "stored",
        "lost",
    ]
    detail: str = ""
