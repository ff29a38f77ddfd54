"""The one place where an error becomes a message and an exit code."""

from __future__ import annotations

from mulligan.console.cli.commands.config import origins
from mulligan.console.cli.exit_codes import ExitCode, NoBroker
from mulligan.console.cli.output import screen
from mulligan.extras import explain_import
from mulligan.tasks.ports import errors
from mulligan.workers.settings.config_file import config_path
from mulligan.workers.settings.model import load_settings


def report(error: Exception) -> ExitCode:
    """Print one line per problem and return the exit code."""
    match error:
        case errors.BadInput():
            screen.complain(*map(str, error.problems))
            return ExitCode.BAD_INPUT
        case NoBroker():
            screen.complain(str(error))
            return ExitCode.NO_BROKER
        case ImportError() if (explained := explain_import(error)) is not None:
            screen.complain(explained)
            return ExitCode.BAD_INPUT
        case errors.LedgerUnavailable():
            screen.complain(f"{error}. {advice(error)}")
            return ExitCode.NO_BROKER
        case errors.RunnerError():
            screen.complain(str(error))
            return ExitCode.BAD_INPUT
        case errors.MulliganError():
            screen.complain(str(error))
            return ExitCode.SOME_FAILED
        case BrokenPipeError():
            # The reader is gone, as with `head`: nothing more can be printed.
            screen.discard_output()
            return ExitCode.CLOSED_PIPE
        case OSError() if not _of_broker(error):
            screen.complain(_about_file(error))
            return ExitCode.SOME_FAILED
        case _ if _of_broker(error):
            screen.complain(
                f"cannot reach the broker ({str(error).rstrip('.')})."
                " Is it running? Check MULLIGAN_BROKER_URL."
            )
            return ExitCode.NO_BROKER
    screen.complain(
        f"a bug in mulligan: {type(error).__name__}: {' '.join(str(error).split())}",
        "set MULLIGAN_DEBUG=1 and run it again to see where",
    )
    return ExitCode.SOME_FAILED


def advice(error: errors.LedgerUnavailable) -> str:
    """Return what to do about a ledger that cannot be reached or refuses commands."""
    if error.reason == "away":
        return _about_ledger()
    return _ABOUT.get(error.reason, "See its log and the runbook, section Redis is unreachable.")


#: What to do about a Redis that answers and does not work; the runbook says more.
_ABOUT = {
    "full": "Raise its maxmemory. See the runbook, section Ledger refuses.",
    "disk": "Free some space on its disk. See the runbook, section Ledger refuses.",
    "read_only": "Connect to the master, or end the failover."
    " See the runbook, section Ledger refuses.",
    "no_replicas": "Start its replicas. See the runbook, section Ledger refuses.",
    "loading": "Wait until it has read its files.",
    "busy": "Wait for the script, or end it with redis-cli SCRIPT KILL.",
}


def _about_ledger() -> str:
    """Return what to check if the ledger cannot be reached: the setting or the embedded server."""
    try:
        settings, path = load_settings(), config_path()
    except (errors.BadInput, OSError):  # the command was given other settings
        return "Is Redis running?"
    for name in ("ledger_url", "broker_url"):
        if getattr(settings, name) is not None:
            (origin,) = origins(name, path)
            setting = origin if origin.upper().startswith("MULLIGAN_") else f"{name} in {origin}"
            return f"Is Redis running? Check {setting}."
    return (
        f"This is the embedded server of {settings.home}: see {settings.home / 'redis.log'}."
        " The same command starts it again."
    )


def _of_broker(error: Exception) -> bool:
    """Return whether the broker's or Redis' client raised it, without importing either."""
    return type(error).__module__.partition(".")[0] in ("kombu", "redis", "amqp")


def _about_file(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
