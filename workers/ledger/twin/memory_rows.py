"""The rows of the in-memory ledger.

They have the names and the fields they have in Redis (see keys.py), and hold text as they do
there: what cannot be serialised fails here too, and one set of views reads both.
"""

from __future__ import annotations

from collections.abc import Mapping

from mulligan.workers.ledger import keys


def stamp(ms: float) -> str:
    return f"{ms:.3f}"


def job_name(job_id: str) -> str:
    return f"job:{job_id}"


def attempt_name(job_id: str, number: int) -> str:
    return f"job:{job_id}:{number}"


def cycle_name(cycle_id: str) -> str:
    return f"cycle:{cycle_id}"


def remedy_name(job_id: str, coarse: str) -> str:
    """What the fleet learns, it learns per partition."""
    return f"{keys.partition_of(job_id)}:remedy:{coarse}"


def queue_of(mode: str) -> str:
    return "repair" if mode == "immediate_retry" else "attempt"


def priority_of(mode: str, priority: int) -> int:
    """Retries, and all that belongs to them, go to the front."""
    return priority if mode == "initial" else 0


class Rows:
    """Hashes of text with a time to live."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, str]] = {}
        self._ends: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def get(self, name: str) -> dict[str, str]:
        """A copy; a missing row is empty."""
        return dict(self._rows.get(name, {}))

    def set(self, name: str, fields: Mapping[str, object]) -> None:
        self._rows.setdefault(name, {}).update({key: str(value) for key, value in fields.items()})

    def add(self, name: str, field: str, amount: int) -> int:
        total = int(self._rows.get(name, {}).get(field, "0")) + amount
        self.set(name, {field: total})
        return total

    def add_seconds(self, name: str, field: str, amount: float) -> None:
        self.set(name, {field: float(self._rows.get(name, {}).get(field, "0")) + amount})

    def drop_field(self, name: str, field: str) -> None:
        self._rows.get(name, {}).pop(field, None)

    def expire(self, name: str, at: float) -> None:
        if name in self._rows:
            self._ends[name] = at

    def persist(self, name: str) -> None:
        self._ends.pop(name, None)

    def drop(self, name: str) -> None:
        self._rows.pop(name, None)
        self._ends.pop(name, None)

    def drop_expired(self, now: float) -> None:
        for name in [name for name, end in self._ends.items() if end <= now]:
            self.drop(name)
