"""The part of the ledger for what loops have to do with each other: locks, events, decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mulligan.policies.coordination.decision import Decision
from mulligan.policies.coordination.locks import FileLock
from mulligan.tasks.ports.ledger.entries import Publication


@dataclass(frozen=True, kw_only=True)
class EmittedEvent:
    """An event that was given off and is there for everybody who waits for it."""

    name: str
    tenant: str
    at: float
    #: The items, as `loop/item`, and the persons that stand by it.
    by: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Coordination:
    """What all loops have to do with each other."""

    locks: Sequence[FileLock] = ()
    denied: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[EmittedEvent] = ()
    #: The newest first.
    decisions: Sequence[Decision] = ()
    #: The loops that wait for items of others or for events, or that give events off.
    coupled: Sequence[str] = ()


class CoordinationLedger(Protocol):
    """Reading what loops have to do with each other, and what running items add to it."""

    def declare_files(
        self, lock: FileLock, *, seen: Sequence[str], new: Sequence[str], text: str
    ) -> bool:
        """Note the files that a running item was seen to change; from now on it declares them.

        ``lock``: with all files of the item. ``text``: of the decision. Return whether it is new.
        """

    def coordination(self, *, limit: int = 100) -> Coordination:
        """Return what all loops have to do with each other, with the newest decisions."""

    def emit_event(
        self, name: str, *, tenant: str, by: str
    ) -> tuple[Literal["emitted", "seen", "full"], Sequence[Publication]]:
        """Give an event off. ``seen``: it is there already."""

    def withdraw_event(
        self, name: str, *, tenant: str
    ) -> tuple[Literal["withdrawn", "held", "unknown"], Sequence[Publication]]:
        """Take back what a person gave off. ``held``: items stand by it, so that it stays."""

    def forget_events(self, events: Sequence[EmittedEvent]) -> int:
        """Forget events of people unless a loop waits for them. Return how many."""
