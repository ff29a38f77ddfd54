"""Circuit breakers shared by the fleet. While all are closed, an attempt needs no round trip."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mulligan.policies.jobs.breaker import Breaker, BreakerPolicy, ProbeCall, WaitForProvider
from mulligan.tasks.jobs.context import ProviderHold
from mulligan.tasks.ports.errors import TransportFault
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.calls import RedisCalls

#: Maximum age in seconds of a worker's copy of breakers and pauses.
_REFRESH = 1.0
#: Seconds after which an attempt checks again whether its provider is still paused.
_PAUSE_SECONDS = 5.0


class RedisBreakers:
    """See tasks/jobs/context.py:Breakers."""

    def __init__(
        self,
        calls: RedisCalls,
        *,
        prefix: str,
        now: Callable[[], float],
        policy: BreakerPolicy | None = None,
    ) -> None:
        self._calls = calls
        self._fleet = keys.fleet_prefix(prefix)
        self._paused_key = keys.paused(keys.partition_prefixes(prefix, 1)[0])
        self._now = now
        self._policy = policy or BreakerPolicy()
        self._cached: dict[str, str] = {}
        self._paused: frozenset[str] = frozenset()
        self._cached_at = float("-inf")
        self._lock = threading.Lock()

    def wait(self, provider: str) -> ProviderHold | None:
        known = self._snapshot()
        if f"provider:{provider}" in self._paused:
            return ProviderHold(seconds=_PAUSE_SECONDS, waiting_for="pause")
        if provider not in known:
            return None
        while True:
            text = self._read(provider)
            match self._parse(text).allow(self._now(), self._policy):
                case WaitForProvider(seconds=seconds):
                    return ProviderHold(seconds=max(seconds, 0.05))
                case ProbeCall(breaker=breaker):
                    if self._swap(provider, text, breaker):
                        return None
                case _:
                    return None

    def fault(self, fault: TransportFault) -> None:
        while True:
            text = self._read(fault.provider)
            changed = self._parse(text).record_fault(
                self._now(), self._policy, retry_after=fault.retry_after
            )
            if self._swap(fault.provider, text, changed):
                return

    def success(self, provider: str) -> None:
        if provider not in self._snapshot():
            return
        while not self._swap(provider, self._read(provider), None):
            pass

    def all(self) -> dict[str, Breaker]:
        """Return every breaker with faults on record."""
        rows = self._calls.hashes([keys.breakers(self._fleet)])[0]
        return {provider: self._parse(text) for provider, text in rows.items()}

    def _snapshot(self) -> dict[str, str]:
        """Return breakers with faults on record, at most a second old; refreshes pauses, too."""
        with self._lock:
            if self._calls.clock.monotonic() - self._cached_at > _REFRESH:
                names = [keys.breakers(self._fleet), self._paused_key]
                self._cached, paused = self._calls.hashes(names)
                self._paused = frozenset(paused)
                self._cached_at = self._calls.clock.monotonic()
            return self._cached

    def _read(self, provider: str) -> str:
        return str(self._calls.run("HGET", keys.breakers(self._fleet), provider) or "")

    def _swap(self, provider: str, old: str, new: Breaker | None) -> bool:
        answer = self._calls.one(
            "swap",
            self._fleet,
            key=keys.breakers(""),
            field=provider,
            old=old,
            new=new.model_dump_json() if new else "",
            event=_state_change(provider, self._parse(old), new or Breaker()),
        )
        with self._lock:
            self._cached_at = float("-inf")
        return bool(answer[0] == "swapped")

    @staticmethod
    def _parse(text: str) -> Breaker:
        return Breaker.model_validate_json(text) if text else Breaker()


def _state_change(provider: str, before: Breaker, after: Breaker) -> dict[str, Any] | None:
    """Return the event of a changed state; None if it did not change."""
    if before.state == after.state:
        return None
    return {
        "provider": provider,
        "state": after.state,
        "faults": after.faults,
        "openings": after.openings,
        "until": after.until,
    }
