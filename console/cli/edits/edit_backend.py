"""Where `mulligan edits` works: an engine over the ledger, with somebody to run a suite's jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from mulligan.console.cli.backend import reach
from mulligan.console.cli.exit_codes import NoBroker
from mulligan.console.cli.home import embedded_redis, is_up
from mulligan.console.cli.open_ledgers import located
from mulligan.console.cli.output import screen
from mulligan.policies.edits.session import EditSession
from mulligan.policies.edits.suite import Suite
from mulligan.tasks.jobs.submit import Intake
from mulligan.workers.edits.sessions.engine import EditEngine, build_edit_engine
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.local_stack import local_stack
from mulligan.workers.settings.model import Settings, load_settings


@dataclass(frozen=True, kw_only=True)
class EditBackend:
    """What one command works at."""

    settings: Settings
    engine: EditEngine
    #: To be called now and then while something is waited for.
    watch: Callable[[], None] = lambda: None


def has_jobs(suite: Suite | None) -> bool:
    return suite is not None and any(task.job is not None for task in suite.tasks)


@contextmanager
def looking(settings: Settings) -> Iterator[EditBackend]:
    """The sessions there are; nothing can be measured. NoBroker if nothing was ever run here."""
    with located(settings) as found:
        yield _desk(found, open_ledger(found, patience=found.submit_patience), None)


@contextmanager
def working(
    settings: Settings, suite: Suite | None, *, queued: bool = False
) -> Iterator[EditBackend]:
    """An engine that can measure this suite: by the workers there are, or by its own. ``queued``:
    others will do the work, and what they refuse is refused at once.
    """
    with ExitStack() as leaving:
        up = is_up(settings.home)
        own = settings.ledger is None and not up
        if own and queued:
            raise NoBroker(
                "there is no edit worker: start it with `mulligan up`, set MULLIGAN_BROKER_URL,"
                " or leave out --queue"
            )
        if settings.ledger is None:
            redis = leaving.enter_context(embedded_redis(settings.home))
            # What a person runs here may define its own runners; workers of `up` decide themselves.
            inline = {"allow_inline": True} if own else {}
            settings = load_settings(broker_url=redis.url, **inline)
        ledger = open_ledger(settings, patience=settings.submit_patience)
        intake = None
        if has_jobs(suite):
            intake = _own_workers(settings, ledger, leaving) if own else _their_workers(settings)
        commands = settings.allow_inline or not queued
        yield _desk(settings, ledger, intake, commands=commands)


def corrected(backend: EditBackend, session: EditSession) -> EditSession:
    """Ask the author of a finished session's plan again, if something of it failed."""
    if session.author is None or not session.finished or session.correction is not None:
        return session
    engine = replace(backend.engine, intake=_their_workers(backend.settings))
    asked = engine.correct(session)
    if asked.correction is not None:
        screen.note(f"job {session.author} wrote the plan: job {asked.correction} corrects it")
    return asked


def _own_workers(settings: Settings, ledger: RedisLedger, leaving: ExitStack) -> Intake:
    return leaving.enter_context(local_stack(settings, ledger)).intake


def _their_workers(settings: Settings) -> Intake:
    return reach(settings).services.intake


def _desk(
    settings: Settings, ledger: RedisLedger, intake: Intake | None, *, commands: bool = True
) -> EditBackend:
    engine = build_edit_engine(settings, ledger, intake, commands=commands)
    return EditBackend(settings=settings, engine=engine)
