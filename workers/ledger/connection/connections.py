"""A few connections that all threads of a process share.

redis-py's own pool counts, locks and checks the process at each use, which costs as much as a round
trip, and refuses the hundred-and-first connection. Here a thread takes a client with a connection
of its own for one round trip, and waits if all are taken.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

import redis

#: Connections for round trips: more would not be faster, because Redis answers one after another.
SHARED = 16


class Connections:
    """Clients with one connection each, opened when needed."""

    def __init__(self, client: redis.Redis, *, limit: int | None = SHARED) -> None:
        """``limit``: the most connections; None for calls that block, which must not wait."""
        self._client: Any = client
        self._limit = limit
        #: Each with the generation in which it was connected.
        self._idle: SimpleQueue[tuple[Any, int]] = SimpleQueue()
        self._lock = threading.Lock()
        self._opened = 0
        self._generation = 0

    @contextmanager
    def taken(self) -> Iterator[Any]:
        """Take a client for one round trip."""
        client, generation = self._take()
        if generation != self._generation:
            generation = self._generation
            if client.connection is not None:
                client.connection.disconnect()  # its next command connects
        try:
            yield client
        finally:
            self._idle.put((client, generation))

    def reconnect(self) -> None:
        """Let each connection be opened anew before its next use: after a failover, the address
        may lead to another server, while connections stay with the old one."""
        self._generation += 1
        # Pipelines take connections of the pool.
        self._client.connection_pool.disconnect(inuse_connections=False)

    def _take(self) -> tuple[Any, int]:
        try:
            return self._idle.get_nowait()
        except Empty:
            pass
        with self._lock:
            may_open = self._limit is None or self._opened < self._limit
            self._opened += may_open
        if not may_open:
            return self._idle.get()
        try:
            return self._client.client(), self._generation
        except BaseException:
            with self._lock:
                self._opened -= 1
            raise
