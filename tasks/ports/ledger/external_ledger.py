"""The part of the ledger for external work: attempts that a person or another system makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mulligan.tasks.ports.ledger.attempt_ledger import Claim, SessionNote
from mulligan.tasks.ports.ledger.cycle_ledger import CycleClaim
from mulligan.tasks.ports.ledger.entries import ClaimRefused, Entry, Lease


@dataclass(frozen=True, kw_only=True)
class NextEntry:
    """A subject's next task. With a token, the subject already holds it, until ``expires_at``."""

    entry: Entry
    token: str | None = None
    expires_at: float | None = None


class ExternalLedger(Protocol):
    """The tasks and the session of a subject."""

    def next_of(
        self, subject: str, *, tenant: str | None = None, owner: str | None = None
    ) -> NextEntry | None:
        """Return a subject's next task: its mandatory retry, then what it holds, then the rest.

        A task behind a pause or a quota is skipped, and its job waits for that. ``owner``: without
        the work of other producers.
        """

    def hold(self, lease: Lease, *, report: str | None = None) -> Claim | CycleClaim | ClaimRefused:
        """Return what a subject holds by this token.

        ``report``: the digest of its report. Refused as ``other_report`` if the token has reported
        something else before, and as ``stored`` or ``verifying`` if nothing is left to do.
        """

    def session(self, subject: str, *, tenant: str | None = None) -> list[SessionNote]:
        """Return the attempts of a subject's session, oldest first."""
