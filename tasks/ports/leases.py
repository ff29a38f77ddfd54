"""The port for leases that a process holds and renews."""

from __future__ import annotations

from typing import Protocol


class HeldLease(Protocol):
    """A lease that is renewed while its attempt runs."""

    def is_sure(self) -> bool:
        """Whether the lease surely holds now. Asked before a model is: a process may have slept.

        Makes a round trip only if the last renewal is older than a lease.
        """


class UnwatchedLease:
    """A lease that nobody renews, for tests and short steps."""

    def is_sure(self) -> bool:
        return True
