"""Read a program's output without a thread, a deadlock or unbounded memory."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import IO

from mulligan.tasks.jobs.verify import is_time_limit

log = logging.getLogger(__name__)

#: Gets the output of a program as it arrives.
OutputListener = Callable[[bytes], None]

_CHUNK = 65_536
#: How often to check whether the program ended while a descendant keeps its output open.
_POLL_SECONDS = 0.05
#: The same once all output is closed: the program then ends within microseconds.
_LAST_POLL_SECONDS = 0.002
#: How long to read what is left in the pipes after the program has ended.
_DRAIN_SECONDS = 1.0


class CappedOutput:
    """All bytes of a short stream, or the beginning and the end of a long one.

    The listener gets all of them. One that raises an error is not called again: the output is kept,
    and the program goes on.
    """

    def __init__(self, limit: int, listener: OutputListener | None = None) -> None:
        self._half = max(1, limit // 2)
        self._listener = listener
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
        self._keep(data)
        if data and self._listener is not None:
            self._tell(self._listener, data)

    def _tell(self, listener: OutputListener, data: bytes) -> None:
        try:
            listener(data)
        except Exception as error:
            if is_time_limit(error):  # of the worker, and not about the listener
                raise
            self._listener = None
            log.exception("A program's output is no longer passed on while it runs.")

    def _keep(self, data: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        surplus = len(self._tail) - self._half
        if surplus > 0:
            del self._tail[:surplus]
            self._left_out += surplus

    @property
    def text(self) -> str:
        """The decoded text, with a note where bytes are left out."""
        note = f"\n[… {self._left_out} bytes left out …]\n".encode() if self._left_out else b""
        return bytes(self._head + note + self._tail).decode("utf-8", "replace")


def pump(
    selector: selectors.BaseSelector,
    streams: Mapping[int, CappedOutput],
    stdin: IO[bytes],
    source: OpenInput,
    deadline: float,
    has_exited: Callable[[], bool],
) -> bool:
    """Feed stdin and read all streams until the program ends; return False at the deadline."""
    for fd in streams:
        selector.register(fd, selectors.EVENT_READ)
    pending = _Input(stdin, source, selector)
    while not has_exited():
        remaining = deadline - monotonic()
        if remaining <= 0:
            return False
        pause = _POLL_SECONDS if selector.get_map() else _LAST_POLL_SECONDS
        _step(selector, streams, pending, min(remaining, pause))
    pending.close()
    _drain(selector, streams, pending)
    return True


def _step(
    selector: selectors.BaseSelector,
    streams: Mapping[int, CappedOutput],
    pending: _Input,
    timeout: float,
) -> bool:
    """Do one round of input and output; return False if there was none."""
    pending.refill()
    ready = selector.select(timeout)
    for key, _ in ready:
        if key.fd in streams:
            chunk = os.read(key.fd, _CHUNK)
            streams[key.fd].add(chunk)
            if not chunk:
                selector.unregister(key.fd)
        else:
            pending.feed()
    return bool(ready)


def _drain(
    selector: selectors.BaseSelector, streams: Mapping[int, CappedOutput], pending: _Input
) -> None:
    """Read what is left in the pipes; a descendant that keeps writing cannot delay us."""
    until = monotonic() + _DRAIN_SECONDS
    while selector.get_map() and monotonic() < until:
        if not _step(selector, streams, pending, 0):
            return


class OpenInput:
    """What a program reads from stdin. Any thread may add to it until it is closed."""

    def __init__(self, data: bytes = b"", *, closed: bool = False) -> None:
        self._parts = [data] if data else []
        self._closed = closed
        self._lock = threading.Lock()

    def write(self, data: bytes) -> bool:
        """Add data; return False if it is closed."""
        with self._lock:
            if not self._closed:
                self._parts.append(data)
            return not self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def take(self) -> tuple[bytes, bool]:
        """Return what was added since the last time, and whether nothing more will be."""
        with self._lock:
            data, self._parts = b"".join(self._parts), []
            return data, self._closed


class _Input:
    """The rest of the program's stdin."""

    def __init__(
        self, stream: IO[bytes], source: OpenInput, selector: selectors.BaseSelector
    ) -> None:
        self._stream, self._source, self._selector = stream, source, selector
        self._data = memoryview(b"")
        self._is_last = False
        os.set_blocking(stream.fileno(), False)
        self.refill()

    def refill(self) -> None:
        """Go on with what was added meanwhile."""
        if self._stream.closed or self._is_last:
            return
        added, self._is_last = self._source.take()
        if added:
            if not self._data:
                self._selector.register(self._stream, selectors.EVENT_WRITE)
            self._data = memoryview(bytes(self._data) + added)
        elif self._is_last and not self._data:
            self.close()

    def feed(self) -> None:
        """Write as much as fits; a program that does not read its input is not an error."""
        try:
            written = os.write(self._stream.fileno(), self._data[:_CHUNK])
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.close()
            return
        self._data = self._data[written:]
        if not self._data and self._is_last:
            self.close()
        elif not self._data:
            self._selector.unregister(self._stream)

    def close(self) -> None:
        if self._stream.closed:
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._stream)
        with contextlib.suppress(BrokenPipeError):
            self._stream.close()
