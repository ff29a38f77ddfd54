"""The port for leases that a process holds and renews."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from mulligan.policies.loops.budget import Resource
from mulligan.policies.loops.progress import AgentProgress


class HeldLease(Protocol):
    """A lease that is renewed while its attempt runs."""

    def is_sure(self) -> bool:
        """Whether the lease surely holds now. Asked before a model is: a process may have slept.

        Makes a round trip only if the last renewal is older than a lease.
        """

    def meter(self, used: Mapping[Resource, float]) -> None:
        """Note what the attempt has used so far. The next renewal tells the ledger."""

    def progress(self, progress: AgentProgress | None) -> None:
        """Note how the attempt goes, with the seconds since each sign of progress.

        The next renewal tells the ledger.
        """


class UnwatchedLease:
    """A lease that nobody renews, for tests and short steps."""

    def is_sure(self) -> bool:
        return True

    def meter(self, used: Mapping[Resource, float]) -> None:
        pass

    def progress(self, progress: AgentProgress | None) -> None:
        pass
