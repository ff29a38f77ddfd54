"""Run what may explode in a warm child process, with limits of time and memory.

Native code that holds the interpreter's lock stops every thread of its process, and a crash in it
ends them all: only another process can be stopped in time. A child is a new interpreter without
this process's environment, sockets and modules. It dies with this process.
"""

from __future__ import annotations

import atexit
import os
import pickle
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from mulligan.tasks.ports.errors import ProcessesBusy, TooCostly, VerifierError
from mulligan.workers.killable.child_process import Call, ChildProcess

R = TypeVar("R")

#: Children of one process; more would only share its processors.
_CHILDREN = max(2, os.cpu_count() or 2)
MEMORY_BYTES = 512 << 20


def call_killable(
    function: Callable[..., R],
    *arguments: object,
    seconds: float,
    memory_bytes: int = MEMORY_BYTES,
    what: str = "this",
    wait_seconds: float = 60.0,
) -> R:
    """Return ``function(*arguments)``, run in a child process.

    The function must be defined at the top of a module, and its arguments and its result must be
    values: plain ones, models, dataclasses. Errors of mulligan are raised here as they are, others
    as VerifierError. Raises TooCostly, whose message begins with ``what``, if it takes longer or
    needs more memory, or if it ends the process, and ProcessesBusy if no child is free within
    ``wait_seconds``. Neither that nor the time to import its module counts as its time.
    """
    name = function.__qualname__
    if "<" in name or function.__module__ == "__main__":
        raise ValueError(f"{function.__module__}.{name} cannot be found by another process")
    try:
        sent = pickle.dumps(arguments, protocol=5)
    except RecursionError:
        raise TooCostly(f"{what} is nested too deeply") from None
    call = Call(function.__module__, name, sent, seconds, memory_bytes, what)
    result: R = _own_pool().run(call, wait_seconds)
    return result


class _Pool:
    """The children of this process."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._free = threading.BoundedSemaphore(_CHILDREN)
        self._idle: list[ChildProcess] = []
        self._wanted: queue.SimpleQueue[Future[ChildProcess]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._starter: threading.Thread | None = None

    def run(self, call: Call, wait_seconds: float) -> Any:
        if not self._free.acquire(timeout=wait_seconds):
            raise ProcessesBusy(
                f"{call.what} has to wait: all {_CHILDREN} processes for costly work were busy for"
                f" {wait_seconds:g} s"
            )
        try:
            child = self._take()
            try:
                return child.run(call)
            finally:
                self._give_back(child)
        finally:
            self._free.release()

    def _take(self) -> ChildProcess:
        """Return the child that was used last, or a new one."""
        while self._idle:
            try:
                child = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if child.alive():
                return child
            child.kill()
        return self._start()

    def _give_back(self, child: ChildProcess) -> None:
        if child.usable:
            self._idle.append(child)
        else:
            child.kill()

    def _start(self) -> ChildProcess:
        """Start a child in a thread that lives as long as this process.

        The kernel ends a child with the thread that has started it, and callers' threads end.
        """
        with self._lock:
            if self._starter is None:
                self._starter = threading.Thread(
                    target=self._start_children, name="killable-starter", daemon=True
                )
                self._starter.start()
        wanted: Future[ChildProcess] = Future()
        self._wanted.put(wanted)
        try:
            return wanted.result()
        except OSError as error:
            raise VerifierError(f"no process for costly work can be started: {error}") from error

    def _start_children(self) -> None:
        while True:
            wanted = self._wanted.get()
            try:
                wanted.set_result(ChildProcess())
            except BaseException as error:  # the caller raises it
                wanted.set_exception(error)

    def close(self) -> None:
        """End the idle children."""
        while self._idle:
            self._idle.pop().kill()

    def forget(self) -> None:
        """Let go of the children of the process from which this one was forked."""
        for child in self._idle:
            child.forget()
        # A thread that does not exist here may have held the old locks.
        self._reset()


_pool: _Pool | None = None
_pool_lock = threading.Lock()


def _own_pool() -> _Pool:
    """Return the pool of this process."""
    global _pool
    if _pool is not None:
        return _pool
    with _pool_lock:
        if _pool is None:
            _pool = _Pool()
            os.register_at_fork(after_in_child=_pool.forget)
            atexit.register(_pool.close)
        return _pool
