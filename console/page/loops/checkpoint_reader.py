"""Read checkpoints for pages, which must not wait long for a repository elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from mulligan.policies.loops.checkpoints import Checkpoint
from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.rollback import read_checkpoints
from mulligan.tasks.ports.errors import MulliganError, RepositoryUnavailable

_LOG = logging.getLogger("mulligan.console")

#: Seconds that a page waits for the first answer of a repository, and for a newer one.
_FIRST = 3.0
_NEWER = 0.5
#: Seconds after which it is asked again although the loop has not changed.
_FRESH = 20.0
#: Repositories that are asked at once, and loops that are remembered.
_AT_ONCE = 4
_MOST = 100


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """What a page knows of the checkpoints of a loop."""

    #: The newest first; None if they are not known.
    found: Sequence[Checkpoint] | None = None
    #: Why they are not known, or why they may be old.
    problem: MulliganError | None = None


@dataclass(frozen=True, kw_only=True)
class _Read:
    future: Future[CheckpointView]
    #: Changes with the loop.
    stamp: tuple[object, ...]
    began_at: float
    before: CheckpointView

    def result(self) -> CheckpointView:
        patience = _FIRST if self.before.found is None else _NEWER
        with suppress(TimeoutError):
            return self.future.result(patience)
        return self.before


class CheckpointReader:
    """Remembers what it read last, and reads again in threads of its own."""

    def __init__(self, context: LoopContext) -> None:
        self._context = context
        self._reads: OrderedDict[str, _Read] = OrderedDict()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(_AT_ONCE)

    def read(self, snapshot: LoopSnapshot) -> CheckpointView:
        """Return the checkpoints of a loop, or what was known of them a moment ago."""
        loop, now = snapshot.loop, time.monotonic()
        stamp = (loop.version, loop.dirty, loop.rollback)
        with self._lock:
            known = self._reads.get(loop.uid)
            if known is None or (
                known.future.done() and (known.stamp != stamp or now - known.began_at > _FRESH)
            ):
                before = CheckpointView() if known is None else known.result()
                known = _Read(future=Future(), stamp=stamp, began_at=now, before=before)
                self._reads[loop.uid] = known
                self._reads.move_to_end(loop.uid)
                while len(self._reads) > _MOST:
                    self._reads.popitem(last=False)
                self._start(snapshot, known)
        return known.result()

    def _start(self, snapshot: LoopSnapshot, read: _Read) -> None:
        def work() -> None:
            with self._free:
                try:
                    found = CheckpointView(found=read_checkpoints(self._context, snapshot))
                except MulliganError as error:
                    found = CheckpointView(found=read.before.found, problem=error)
                except Exception:
                    _LOG.exception("cannot read the checkpoints of %s", snapshot.loop.name)
                    found = CheckpointView(problem=RepositoryUnavailable("internal error"))
            read.future.set_result(found)

        # A daemon: a console that stops does not wait for git.
        threading.Thread(target=work, name="checkpoints", daemon=True).start()
