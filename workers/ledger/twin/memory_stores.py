"""What belongs beside the in-memory ledger: breakers and blobs of this process alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mulligan.policies.jobs.breaker import Breaker, BreakerPolicy, ProbeCall, WaitForProvider
from mulligan.tasks.jobs.context import ProviderHold
from mulligan.tasks.ports.errors import MissingBlob, TransportFault
from mulligan.workers.sandbox.workspace import content_address


@dataclass
class MemoryBreakers:
    """See tasks.bench.Breakers."""

    clock: Callable[[], float] = time.time
    policy: BreakerPolicy = field(default_factory=BreakerPolicy)
    _kept: dict[str, Breaker] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, provider: str) -> ProviderHold | None:
        with self._lock:
            match self._kept.get(provider, Breaker()).allow(self.clock(), self.policy):
                case WaitForProvider(seconds=seconds):
                    return ProviderHold(seconds=max(seconds, 0.05))
                case ProbeCall(breaker=breaker):
                    self._kept[provider] = breaker
            return None

    def fault(self, fault: TransportFault) -> None:
        with self._lock:
            before = self._kept.get(fault.provider, Breaker())
            self._kept[fault.provider] = before.record_fault(
                self.clock(), self.policy, retry_after=fault.retry_after
            )

    def success(self, provider: str) -> None:
        with self._lock:
            self._kept.pop(provider, None)


@dataclass
class MemoryBlobs:
    """See tasks.ports.BlobStore."""

    _kept: dict[str, bytes] = field(default_factory=dict)

    def put(self, data: bytes) -> str:
        address = content_address(data)
        self._kept[address] = data
        return address

    def get(self, address: str) -> bytes:
        try:
            return self._kept[address]
        except KeyError:
            raise MissingBlob(f"{address} is not stored") from None
