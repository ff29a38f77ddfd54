"""The retry memory: how often each failure happened, as an immutable value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mulligan.policies.failures.failure import FailureRecord


@dataclass(frozen=True)
class RetryMemory:
    """Counts of the strict signatures seen so far. Recording returns a new memory."""

    #: A read-only copy of the given counts.
    counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", MappingProxyType(dict(self.counts)))

    def __hash__(self) -> int:
        return hash(frozenset(self.counts.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return RetryMemory, (dict(self.counts),)

    def count(self, signature: str) -> int:
        return self.counts.get(signature, 0)

    def record(self, record: FailureRecord) -> RetryMemory:
        """Return the memory with this failure counted once more."""
        return self.record_all([record])

    def record_all(self, records: Iterable[FailureRecord]) -> RetryMemory:
        """Return the memory after one attempt. Each distinct signature counts once."""
        signatures = {record.classification_signature for record in records}
        bumped = {signature: self.count(signature) + 1 for signature in signatures}
        return RetryMemory({**self.counts, **bumped})
