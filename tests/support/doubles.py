"""Test doubles: a runner, clocks, a ledger and blobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.runners import Request
from mulligan.workers.ledger.fake_redis import fake_client
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.blobs import blob_store
from mulligan.workers.settings.model import Settings


@dataclass
class FakeRunner:
    """A runner that returns or raises its answers in turn and records the requests."""

    answers: Sequence[str | Output | Exception]
    provider: str = "fake"
    requests: list[Request] = field(default_factory=list)

    def answer(self, request: Request) -> Output:
        self.requests.append(request)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Output) else Output(text=answer)


@dataclass
class ManualClock:
    """A clock that advances only by waiting or when a test sets it."""

    now: float = 0.0
    waits: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


class MovableClock:
    """The real time plus a shift that a test sets."""

    def __init__(self) -> None:
        self.shift = 0.0

    def __call__(self) -> float:
        return time.time() + self.shift


def fake_ledger(
    settings: Settings | None = None, *, clock: MovableClock | None = None
) -> RedisLedger:
    """Return a ledger on a new fakeredis."""
    return RedisLedger(fake_client(), settings or Settings(), patience=5.0, test_clock=clock)


def fake_blobs() -> BlobStore:
    """Return a blob store on a new fakeredis."""
    return blob_store(Settings(), fake_ledger().calls)
