"""A log without repetitions. A worker whose server is away would say so many times a second."""

from __future__ import annotations

import logging
import threading

from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock

#: Seconds between two lines with one text.
_BETWEEN = 60.0
#: It says for each try that the broker refuses, six times a second.
_CONSUMER = "celery.worker.consumer.consumer"


class RepeatedLines(logging.Filter):
    """Lets a text through when it is new, and again as a reminder after a minute."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        return self.is_news(record.getMessage())

    def is_news(self, text: str) -> bool:
        """Whether a text was not said within the last minute. Asking says it."""
        now = self._clock.monotonic()
        with self._lock:
            if now - self._said.get(text, float("-inf")) < _BETWEEN:
                return False
            self._said = {said: at for said, at in self._said.items() if now - at < _BETWEEN}
            self._said[text] = now
        return True


def drop_repeated_lines() -> None:
    """Let Celery's consumer say each reason once a minute."""
    logger = logging.getLogger(_CONSUMER)
    if not any(isinstance(each, RepeatedLines) for each in logger.filters):
        logger.addFilter(RepeatedLines())
