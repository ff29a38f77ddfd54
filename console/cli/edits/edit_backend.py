"""The backend of `mulligan edits`: an engine on the ledger, and workers for a suite's jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from mulligan.console.cli.backend import connect
from mulligan.console.cli.exit_codes import NoBroker
from mulligan.console.cli.open_ledgers import locate_ledger
from mulligan.console.cli.output import screen
from mulligan.policies.edits.session import EditSession
from mulligan.policies.edits.suite import Suite
from mulligan.tasks.jobs.submit import Intake
from mulligan.workers.backends.placement import Placement, place_jobs
from mulligan.workers.edits.sessions.engine import EditEngine, build_edit_engine
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.local_stack import local_stack
from mulligan.workers.settings.model import Settings


@dataclass(frozen=True, kw_only=True)
class EditBackend:
    """The engine of one command and its ledger."""

    settings: Settings
    ledger: RedisLedger
    engine: EditEngine


def has_jobs(suite: Suite | None) -> bool:
    return suite is not None and any(task.job is not None for task in suite.tasks)


@contextmanager
def open_sessions(settings: Settings) -> Iterator[EditBackend]:
    """Open the stored sessions; jobs cannot be measured. Raises NoBroker if there is no ledger."""
    with locate_ledger(settings) as found:
        yield _build(found, open_ledger(found, patience=found.submit_patience), None)


@contextmanager
def open_edit_backend(
    settings: Settings, suite: Suite | None, *, queued: bool = False
) -> Iterator[EditBackend]:
    """Open an engine that can measure this suite, with running workers or with its own. ``queued``:
    an edit worker will run the session, so refuse now what it would refuse."""
    placement = _place(settings, suite)
    if placement.workers == "own" and queued:
        raise NoBroker(
            "there is no edit worker: start it with `mulligan up`, set MULLIGAN_BROKER_URL,"
            " or leave out --queue"
        )
    with ExitStack() as resources:
        settings = resources.enter_context(placement.opened(settings))
        ledger = open_ledger(settings, patience=settings.submit_patience)
        intake = None
        if has_jobs(suite) and placement.workers == "own":
            intake = resources.enter_context(local_stack(settings, ledger)).intake
        elif has_jobs(suite):
            intake = connect(settings).services.intake
        commands = settings.allow_inline or not queued
        yield _build(settings, ledger, intake, commands=commands)


def _place(settings: Settings, suite: Suite | None) -> Placement:
    """Decide where jobs run. Without jobs, a configured ledger is enough."""
    if settings.ledger is not None and not has_jobs(suite):
        return Placement(workers="fleet")
    return place_jobs(settings, private=False)


def ask_for_correction(backend: EditBackend, session: EditSession) -> EditSession:
    """Let the author of a finished session's plan correct what failed."""
    if session.author is None or not session.finished or session.correction is not None:
        return session
    engine = replace(backend.engine, intake=connect(backend.settings).services.intake)
    asked = engine.correct(session)
    if asked.correction is not None:
        screen.note(f"job {session.author} wrote the plan: job {asked.correction} corrects it")
    return asked


def _build(
    settings: Settings, ledger: RedisLedger, intake: Intake | None, *, commands: bool = True
) -> EditBackend:
    engine = build_edit_engine(settings, ledger, intake, commands=commands)
    return EditBackend(settings=settings, ledger=ledger, engine=engine)
