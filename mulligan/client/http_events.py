"""Events of a console over one connection, which is reopened where it broke."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import httpx2

from mulligan.client.http_requests import PAUSES, ConsoleConnection
from mulligan.tasks.ports.ledger import Event
from mulligan.workers.backends.follow import BLOCK


class ConsoleEvents:
    """Events over one connection, which is reopened where it broke.

    A thread reads them, so that ``take`` never blocks for long.
    """

    def __init__(self, console: ConsoleConnection, path: str, *, after: str | None = None) -> None:
        self._console = console
        self._path = path
        self._after = after
        #: None: some events may have been missed.
        self._found: SimpleQueue[Event | Exception | None] = SimpleQueue()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._response = console.listen(path, after, console.wait)
        threading.Thread(target=self._read, name="mulligan-events", daemon=True).start()

    def take(self) -> Sequence[Event] | None:
        """Wait briefly and return new events; None if some may have been missed."""
        events: list[Event] = []
        missed = False
        try:
            item = self._found.get(timeout=BLOCK)
            while True:
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    missed = True
                else:
                    events.append(item)
                item = self._found.get_nowait()
        except Empty:
            return None if missed else events

    def close(self) -> None:
        """End the connection, even while it is being read."""
        with self._lock:
            self._closed.set()
            stream = self._response.extensions.get("network_stream")
        connection = stream.get_extra_info("socket") if stream is not None else None
        if connection is not None:
            with suppress(OSError):  # it has already ended
                connection.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        try:
            while not self._closed.is_set():
                self._pass_on()
                if self._closed.wait(PAUSES[0]):
                    return
                response = self._console.listen(self._path, self._after, self._closed.wait)
                with self._lock:
                    self._response = response
                if self._after is None:
                    self._found.put(None)
        except Exception as error:  # ``take`` raises it
            self._found.put(error)
        finally:
            self._response.close()

    def _pass_on(self) -> None:
        """Queue the events until the connection breaks or ends."""
        try:
            for item in httpx2.EventSource(self._response):
                self._after = item.id or self._after
                if item.data:
                    data = json.loads(item.data)
                    event = Event(id=item.id, type=data["type"], job_id=data["job"], data=data)
                    self._found.put(event)
        except (httpx2.TransportError, httpx2.StreamError):
            pass  # it is reopened
        finally:
            self._response.close()
