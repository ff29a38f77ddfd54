"""The pipe by which a launcher knows that its worker lives and still wants the program.

The kernel closes it when the worker dies. A worker that is frozen keeps it open, while its lease is
lost and another worker begins the same work. So the worker also writes to it, about once a second,
and the launcher ends the program when nothing comes. One thread writes for all programs of a
process: what a process does with a program's output may take long, but does not stop it. Only a
process that does not run at all falls silent.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

#: Seconds between two signs of life.
_INTERVAL = 1.0
#: Signs of life within the time after which the launcher ends the program.
_PER_HEARTBEAT = 4


class LifePipe:
    """This process's end of the pipe to one launcher, and until it is started, the other one."""

    def __init__(self, heartbeat_seconds: float | None = None) -> None:
        """Begin to write to it; with None, it is only kept open."""
        self.launchers_end, self._own_end = os.pipe()
        self._closing = threading.Lock()
        self.interval = _INTERVAL
        if heartbeat_seconds is not None:
            self.interval = min(_INTERVAL, heartbeat_seconds / _PER_HEARTBEAT)
            os.set_blocking(self._own_end, False)
            self._keep_alive()

    def _keep_alive(self) -> None:
        try:
            _threads.setdefault(os.getpid(), _LifeThread()).add(self)
        except RuntimeError:  # no thread is left
            self.close_launchers_end()
            self.close()
            raise

    def close_launchers_end(self) -> None:
        os.close(self.launchers_end)

    def beat(self) -> None:
        """Write one byte. A full pipe has enough of them, and a launcher may have ended."""
        with self._closing, contextlib.suppress(BlockingIOError, BrokenPipeError):
            if self._own_end >= 0:
                os.write(self._own_end, b".")

    def close(self) -> None:
        """Tell the launcher to end the program. If this process dies, the kernel does it.

        Any thread may call it, any number of times.
        """
        with self._closing:
            own, self._own_end = self._own_end, -1
        if own >= 0:
            os.close(own)

    @property
    def closed(self) -> bool:
        return self._own_end < 0


class _LifeThread:
    """Writes to all open pipes of this process, in a thread that ends with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipes: set[LifePipe] = set()
        self._running = False

    def add(self, pipe: LifePipe) -> None:
        with self._lock:
            self._pipes.add(pipe)
            if not self._running:
                threading.Thread(target=self._run, name="sandbox life", daemon=True).start()
                self._running = True

    def _run(self) -> None:
        while pipes := self._open():
            for pipe in pipes:
                pipe.beat()
            time.sleep(min(pipe.interval for pipe in pipes))

    def _open(self) -> set[LifePipe]:
        with self._lock:
            self._pipes = {pipe for pipe in self._pipes if not pipe.closed}
            self._running = bool(self._pipes)
            return set(self._pipes)


#: By process: a fork has no thread, and may have copied a lock that nobody will release.
_threads: dict[int, _LifeThread] = {}
