"""Opening a ledger: how long a Redis that hangs may keep a caller waiting."""

from __future__ import annotations

import pytest
import redis

from mulligan.workers.ledger import open_ledger as module
from mulligan.workers.ledger.connection.calls import connect
from mulligan.workers.settings.model import Settings


@pytest.mark.parametrize(("patience", "timeout"), [(0.0, 3.0), (5.0, 5.0), (600.0, 30.0)])
def test_a_caller_with_little_patience_gives_up_soon_on_a_redis_that_hangs(
    patience: float, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def note_timeout(url: str, *, timeout: float) -> redis.Redis:
        given.append(timeout)
        return connect(url)

    monkeypatch.setattr(module, "connect", note_timeout)
    module.open_ledger(Settings(ledger_url="redis://127.0.0.1:1/0"), patience=patience)
    assert given == [timeout]
