"""Records messages that no worker could read, without making the worker wait for the ledger."""

from __future__ import annotations

import logging
import reprlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from mulligan.tasks.ports.errors import StoreUnavailable
from mulligan.workers.ledger.stores.refused_submissions import RefusedSubmissions

log = logging.getLogger(__name__)

#: Records that wait for the ledger. Of more at once, the oldest are only in the log.
_WAITING = 1000
#: Bytes kept of a message.
_KEPT = 200


class RefusedMessages:
    """The messages that a worker refused."""

    def __init__(self, store: Callable[[], RefusedSubmissions]) -> None:
        self._store = store
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_WAITING)
        self._lock = threading.Lock()
        self._writing = False

    def note(self, queue: str, reason: str, message: Any) -> None:
        """Log one line that quotes nothing of the message, and keep how the message begins."""
        size, begins = _content(message)
        log.error(
            "A message on the queue %.200s is refused: %s; %s bytes", queue, reason, f"{size:,}"
        )
        record = {"queue": queue, "reason": reason, "size": size, "begins": begins}
        with self._lock:
            self._waiting.append(record)
            start, self._writing = not self._writing, True
        if start:
            # In a thread, because the worker does nothing else while this waits for the ledger.
            threading.Thread(target=self._write, name="refused-messages", daemon=True).start()

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._writing = False
                    return
                record = self._waiting.popleft()
            try:
                self._store().note_message(**record)
            except StoreUnavailable as error:
                log.error("A refused message is only in this log: %s", error)  # noqa: TRY400 - not a bug, so no traceback
            except Exception:  # without this thread, no later one would be recorded
                log.exception("A refused message is only in this log.")


def _content(message: Any) -> tuple[int, str]:
    """Return the size of a message and how it begins, as a text that anything can show."""
    text = getattr(message, "body", message)
    if isinstance(text, memoryview):
        text = text.tobytes()
    if isinstance(text, dict):
        text = text.get("body")
    if not isinstance(text, str | bytes):
        text = reprlib.repr(text)  # it may be nested as deep as a stack
    begins = text[:_KEPT].decode(errors="replace") if isinstance(text, bytes) else text[:_KEPT]
    return len(text), begins.encode("ascii", "backslashreplace").decode()
