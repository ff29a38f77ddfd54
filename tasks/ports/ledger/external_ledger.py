"""External work: attempts that a person or another system makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mulligan.tasks.ports.ledger.attempt_ledger import Claim, SessionNote
from mulligan.tasks.ports.ledger.cycle_ledger import CycleClaim
from mulligan.tasks.ports.ledger.entries import ClaimRefused, Entry, Lease


@dataclass(frozen=True, kw_only=True)
class NextEntry:
    """What a subject is to do next. With a token: it holds it already, until ``expires_at``."""

    entry: Entry
    token: str | None = None
    expires_at: float | None = None


class ExternalLedger(Protocol):
    """What a subject has to do, and what it did."""

    def next_of(self, subject: str, *, tenant: str | None = None) -> NextEntry | None:
        """What a subject is to do next: what it holds, else the mandatory retry first.

        What a pause or a quota holds back is passed over, and its job waits for that.
        """

    def hold(self, lease: Lease) -> Claim | CycleClaim | ClaimRefused:
        """What a subject holds by this token, to write about it."""

    def session(self, subject: str, *, tenant: str | None = None) -> list[SessionNote]:
        """What a subject did in its session, oldest first."""
