"""Exit codes, and the one place where an error becomes a message and a code.

====  ==========================================================
0     all succeeded
1     some did not
2     bad input or usage
3     no broker, or the ledger cannot be reached
130   Ctrl-C
====  ==========================================================
"""

from __future__ import annotations

import os
import signal
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from typer import Exit
from typer.core import TyperGroup

from mulligan.console.cli.output import screen

if TYPE_CHECKING:
    from mulligan.tasks.ports.errors import LedgerUnavailable


class ExitCode(IntEnum):
    OK = 0
    SOME_FAILED = 1
    BAD_INPUT = 2
    NO_BROKER = 3
    INTERRUPTED = 130


class NoBroker(Exception):
    """There is nothing to talk to. The message says what to start or to set."""


class ErrorReportingGroup(TyperGroup):
    """The root command: whatever a command raises ends here, and no traceback gets past it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Exit, Abort and usage errors are typer's own to finish.
            if hasattr(error, "exit_code") or type(error).__name__ == "Abort" or _debugging():
                raise
            raise Exit(int(report(error))) from None


def _debugging() -> bool:
    return os.environ.get("MULLIGAN_DEBUG", "") not in ("", "0")


def report(error: Exception) -> ExitCode:
    """Say what is wrong, one line per problem; the exit code for it."""
    # Imported here: `mulligan --help` must not pay for what only an error needs.
    from mulligan.tasks.ports import errors

    match error:
        case errors.BadInput():
            screen.complain(*error.problems)
            return ExitCode.BAD_INPUT
        case NoBroker():
            screen.complain(str(error))
            return ExitCode.NO_BROKER
        case errors.LedgerUnavailable():
            screen.complain(f"{error}; {advice(error)}")
            return ExitCode.NO_BROKER
        case errors.RunnerError():
            screen.complain(str(error))
            return ExitCode.BAD_INPUT
        case errors.MulliganError():
            screen.complain(str(error))
            return ExitCode.SOME_FAILED
        case BrokenPipeError():
            # The reader went away, as `head` does. Nothing is left to tell anybody.
            screen.hush()
            return ExitCode.SOME_FAILED
        case OSError() if not _of_broker(error):
            screen.complain(_about_file(error))
            return ExitCode.SOME_FAILED
        case _ if _of_broker(error):
            screen.complain(f"the broker is away: {error}; is it running, is its URL right?")
            return ExitCode.NO_BROKER
    screen.complain(
        f"a bug in mulligan: {type(error).__name__}: {' '.join(str(error).split())}",
        "run it again with MULLIGAN_DEBUG=1 to see where",
    )
    return ExitCode.SOME_FAILED


def advice(error: LedgerUnavailable) -> str:
    """What to do about a ledger that is away or says no."""
    from mulligan.tasks.ports.errors import LedgerRefused

    return _about_refusal(str(error)) if isinstance(error, LedgerRefused) else _about_ledger()


def _about_refusal(said: str) -> str:
    """What to do about a Redis that answers and says no."""
    if "OOM" in said:
        return "Redis has no memory left: raise its maxmemory, and see the runbook, Redis is away"
    if "MISCONF" in said:
        return "Redis cannot write: make room on its disk, and see the runbook, Redis is away"
    return "its log and the runbook (Redis is away) say more"


def _about_ledger() -> str:
    """What to look at when the ledger is away: the setting in force, or the embedded Redis."""
    from mulligan.console.cli.commands.config import origins
    from mulligan.tasks.ports.errors import BadInput
    from mulligan.workers.settings.model import config_path, load_settings

    try:
        settings, path = load_settings(), config_path()
    except (BadInput, OSError):  # whoever got this far had settings of its own
        return "is Redis running?"
    for name in ("ledger_url", "broker_url"):
        if getattr(settings, name) is not None:
            (origin,) = origins(name, path)
            told = origin if origin.upper().startswith("MULLIGAN_") else f"{name} in {origin}"
            return f"is Redis running, and is {told} right?"
    return (
        f"it is the embedded Redis of {settings.home}: {settings.home / 'redis.log'} says more,"
        " and the same command starts it again"
    )


def _of_broker(error: Exception) -> bool:
    """Whether kombu or redis-py says that a server is away, without importing either."""
    return type(error).__module__.partition(".")[0] in ("kombu", "redis", "amqp")


def _about_file(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def stop_on_signals() -> None:
    """Let SIGTERM take the same way out as Ctrl-C: everything that was started is stopped.

    SIGINT too: a shell starts background jobs with it ignored, and `kill -INT` must still work.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
