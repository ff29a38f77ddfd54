"""Logs without control characters: a message may quote a job, a header or a path."""

from __future__ import annotations

import logging

from mulligan.policies.terminal_text import terminal_text

_TRACEBACKS = logging.Formatter()


class PlainRecords(logging.Filter):
    """Makes a record's texts plain before a handler formats it, so that colours stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            return True  # the handler reports the wrong arguments
        # Further lines are indented: none of them looks like another record.
        record.msg, record.args = terminal_text(text).replace("\n", "\n    "), ()
        vars(record).pop("color_message", None)  # uvicorn's second form of the same text
        if record.exc_info and not record.exc_text:
            record.exc_text = _TRACEBACKS.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = terminal_text(record.exc_text)
        return True


_PLAIN = PlainRecords()


def keep_logs_plain() -> None:
    """Let every handler that this process has now write plain records."""
    named = logging.Logger.manager.loggerDict.values()
    loggers = [logging.getLogger(), *(each for each in named if isinstance(each, logging.Logger))]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    for handler in (*handlers, logging.lastResort):
        if handler is not None:
            handler.addFilter(_PLAIN)
