"""Tasks that meet a store which is away or refuses: one line in the log, no traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from celery.exceptions import Ignore

from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.tasks.ports.errors import StoreUnavailable
from mulligan.workers.celery.repeated_lines import RepeatedLines

log = logging.getLogger(__name__)
Function = TypeVar("Function", bound=Callable[..., Any])


class StoreErrors:
    """Ends tasks quietly. Their messages are only hints: the sweep sends them again."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._lines = RepeatedLines(clock=clock)

    def quiet(self, function: Function) -> Function:
        """Wrap a task's function."""

        @wraps(function)
        def run(*args: Any, **more: Any) -> Any:
            try:
                return function(*args, **more)
            except StoreUnavailable as error:
                self.report(str(error))
                raise Ignore from error

        return run  # type: ignore[return-value]

    def report(self, text: str) -> None:
        """Log a reason, unless it was logged less than a minute ago."""
        if self._lines.is_news(text):
            log.error("Work is left for later: %s", text)
