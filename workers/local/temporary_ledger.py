"""A ledger for one test: new, private to this process, and deleted afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from mulligan.extras import find_missing, install_command
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.ledger.connection.calls import connect
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.settings.model import Settings

_PATIENCE = 5.0


@contextmanager
def temporary_ledger(settings: Settings) -> Iterator[RedisLedger]:
    """Open a ledger on fakeredis or, where that is not installed, on an embedded Redis."""
    with _temporary_redis() as client:
        yield RedisLedger(client, settings, patience=_PATIENCE)


@contextmanager
def _temporary_redis() -> Iterator[redis.Redis]:
    if find_missing("fakeredis", "lupa") is None:
        from mulligan.workers.ledger.fake_redis import fake_client

        with fake_client() as client:
            yield client
        return
    with TemporaryDirectory(prefix="mulligan-") as folder:
        server = EmbeddedRedis(Path(folder))
        try:
            server.start()
        except BadInput as error:
            raise BadInput(f"{error}; for tests, run {install_command('testing')}") from None
        try:
            with connect(f"unix://{server.socket}") as client:
                yield client
        finally:
            server.stop()
