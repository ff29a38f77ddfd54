"""Sessions on the edit queue: a worker's turn, and the hints that bring it. No task waits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mulligan.policies.jobs.job import TERMINAL
from mulligan.workers.celery.queue_depth import SENT_HEADER
from mulligan.workers.celery.queues import edit_queue

if TYPE_CHECKING:
    from celery import Celery

    from mulligan.workers.services import Services

#: A hint that nobody took within so many seconds is worth nothing: another was sent since.
_EXPIRES = 10.0


def work_on_session(services: Services, session_id: str) -> str:
    """Advance a session as far as possible and return its phase."""
    # Imported here: the other pools never need libcst, tomlkit and the like.
    from mulligan.workers.edits.sessions.engine import build_edit_engine, take_steps

    inline = services.settings.allow_inline
    engine = build_edit_engine(services.settings, services.ledger, services.intake, commands=inline)
    return take_steps(engine, session_id)


def send_session_hints(services: Services, app: Celery) -> int:
    """Send a hint for every session with a next step. Return the number sent."""
    from mulligan.workers.edits.sessions.session_store import SessionStore, hints

    settings, ledger = services.settings, services.ledger
    sessions = SessionStore(
        ledger.calls, prefix=settings.key_prefix, retention=settings.cycle_retention
    )

    def have_ended(job_ids: Sequence[str]) -> bool:
        return all(state in TERMINAL for state in ledger.job_states(job_ids).values())

    found = hints(sessions, have_ended)
    for session in found:
        app.send_task(
            "mulligan.edit",
            args=(session.id,),
            queue=edit_queue(session.host),
            expires=_EXPIRES,
            retry=False,
            headers={SENT_HEADER: time.time()},
        )
    return len(found)
