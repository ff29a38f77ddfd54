"""`mulligan doctor`: what is wrong, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from mulligan.console.cli.backend import connect
from mulligan.console.cli.commands.up import without_password
from mulligan.console.cli.doctor_checks import (
    Check,
    check_embedded,
    check_host,
    check_ledger,
    check_parked,
    check_submissions,
    check_tokens,
    check_workers,
    fail,
    ok,
)
from mulligan.console.cli.error_report import advice
from mulligan.console.cli.exit_codes import ExitCode, NoBroker
from mulligan.console.cli.open_ledgers import locate_ledger
from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.console.cli.repository_checks import check_kept_work, check_repositories
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable
from mulligan.workers.celery.broker.queue_depth import BROKER_ERRORS
from mulligan.workers.ledger.connection.refusals import SAID, refusal_of
from mulligan.workers.local.home import is_up
from mulligan.workers.settings.model import Settings, load_settings

_FIX = "correct it in mulligan.toml or in the environment"
_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(json: Json = False) -> None:
    """Check this host, the broker, the ledger and the workers."""
    checks = list(_examine())
    failed = any(check.status == "fail" for check in checks)
    if json:
        screen.emit({"ok": not failed, "checks": [check.as_dict() for check in checks]})
    else:
        _print(checks)
    raise typer.Exit(int(ExitCode.SOME_FAILED if failed else ExitCode.OK))


def _print(checks: list[Check]) -> None:
    console = screen.out()
    for check in checks:
        console.print(f"{check.status:<5}", style=_STYLES[check.status], end="")
        console.print(f"{check.name:<14} {check.said}", soft_wrap=True)
        if check.fix:
            console.print(f"{'':<19} fix: {check.fix}", soft_wrap=True)


def _examine() -> Iterator[Check]:
    try:
        settings = load_settings()
    except BadInput as error:
        for problem in error.problems:
            yield fail("settings", str(problem), _FIX)
        return
    yield from check_host(settings)
    yield from check_repositories(settings)
    yield from _examine_fleet(settings)


def _examine_fleet(settings: Settings) -> Iterator[Check]:
    """Check the broker, the ledger and the workers, if there are any."""
    expected = settings.broker_url is not None or is_up(settings.home)
    if settings.ledger is None:
        silent = check_embedded(settings)
        if silent is not None:
            yield silent
            return
    try:
        with locate_ledger(settings) as found:
            backend = connect(found)
            backend.ledger.now()
            refused = backend.ledger.write_problem()
            if refused is not None:
                yield fail("ledger", str(refused), advice(refused))
            else:
                yield ok("ledger", without_password(found.ledger or ""))
            yield from check_ledger(backend.ledger, found, expected=expected)
            yield from check_tokens(backend.ledger)
            yield from check_parked(backend.services)
            used = {each.config.repo for each in backend.ledger.loops() if each.config.repo}
            yield from check_kept_work(found, used)
            with backend.app.connection_for_read() as connection:
                connection.ensure_connection(max_retries=1, timeout=3)
            yield ok("broker", without_password(found.broker_url or ""))
            yield from check_submissions(backend.ledger, backend.app)
            yield from check_workers(backend, found, expected=expected)
    except BadInput as error:
        for problem in error.problems:
            yield fail("settings", str(problem), _FIX)
    except NoBroker:
        yield ok("broker", "not configured; `mulligan run` and `mulligan up` start their own")
    except LedgerUnavailable as error:
        yield fail("ledger", str(error), advice(error))
    except BROKER_ERRORS as error:
        yield _broker_problem(error)


def _broker_problem(error: BaseException) -> Check:
    """Say what is wrong with the broker; Celery wraps what its client raised."""
    for each in (error, error.__cause__):
        refusal = refusal_of(each) if isinstance(each, Exception) else None
        if refusal in SAID:
            return fail("broker", SAID[refusal], "see the runbook, section Ledger refuses")
    fix = "start it, or correct MULLIGAN_BROKER_URL"
    return fail("broker", f"cannot be reached: {error}", fix)
