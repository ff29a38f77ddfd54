"""The part of the ledger for what loops have to do with each other: locks, events, decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mulligan.policies.coordination.decision import Decision
from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.coordination.order import ItemOrders
from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.tasks.ports.ledger.entries import Publication


@dataclass(frozen=True, kw_only=True)
class EmittedEvent:
    """An event that was given off and is there for everybody who waits for it."""

    name: str
    tenant: str
    at: float
    #: The first items, as `loop/item`, and the person that stand by it.
    by: tuple[str, ...]
    #: How many more items do.
    more: int = 0
    #: The person among them, who can withdraw it; empty if there is none.
    person: str = ""


@dataclass(frozen=True, kw_only=True)
class Coordination:
    """What all loops have to do with each other."""

    locks: Sequence[FileLock] = ()
    denied: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[EmittedEvent] = ()
    #: The newest first.
    decisions: Sequence[Decision] = ()
    #: Loops → their items → the orders that are in force, however old.
    orders: Mapping[str, Mapping[str, ItemOrders]] = field(default_factory=dict)


class CoordinationLedger(Protocol):
    """Reading what loops have to do with each other, and what running items add to it."""

    def declare_files(
        self, lock: FileLock, *, seen: Sequence[str], new: Sequence[str], text: str
    ) -> bool:
        """Note the files that a running item was seen to change; from now on it declares them.

        ``lock``: with all files of the item. ``text``: of the decision. Return whether it is new.
        """

    def coordination(self, *, limit: int = 100, tenant: str | None = None) -> Coordination:
        """Return what all loops have to do with each other, with the newest decisions.

        Without decisions (0), no orders are read either. ``tenant``: whose events; None for all.
        """

    def coupled_loops(self) -> list[str]:
        """Return the loops that wait for items of others or for events, or give events off."""

    def loop_waits(self, names: Sequence[str]) -> Iterator[LoopSnapshot]:
        """Yield loops as far as others wait for them: not what they used and how they were healed.

        They are read a few at a time.
        """

    def loop_orders(self, names: Sequence[str]) -> list[Mapping[str, ItemOrders]]:
        """Return the orders of the items of some loops."""

    def event_sources(self, tenant: str, event: str | None = None) -> Mapping[str, Sequence[str]]:
        """Return the events of a tenant with the loops whose items give them off.

        ``event``: only this one.
        """

    def emit_event(
        self, name: str, *, tenant: str, by: str, account: str
    ) -> tuple[Literal["emitted", "seen", "full"], Sequence[Publication]]:
        """Give an event off. ``seen``: it is there already. ``account``: who is limited."""

    def withdraw_event(
        self, name: str, *, tenant: str
    ) -> tuple[Literal["withdrawn", "held", "unknown"], Sequence[Publication]]:
        """Take back what a person gave off. ``held``: items stand by it, so that it stays."""

    def forget_events(self, *, before: float) -> int:
        """Forget events that people gave off before a time, unless a loop waits for them.

        Return how many.
        """
