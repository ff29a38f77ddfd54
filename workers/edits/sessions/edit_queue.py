"""The edit queue: advancing a session, and the hints that ask for it. No task waits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mulligan.policies.jobs.job import TERMINAL
from mulligan.workers.celery.broker.queue_depth import SENT_HEADER
from mulligan.workers.celery.broker.queues import edit_queue

if TYPE_CHECKING:
    from celery import Celery

    from mulligan.workers.services import Services

#: Seconds until an untaken hint expires. A new one is sent every second.
_HINT_SECONDS = 10.0


def advance_session(services: Services, session_id: str) -> str:
    """Advance a session as far as possible and return its phase."""
    # Imported here, because the other pools never need libcst, tomlkit and similar.
    from mulligan.workers.edits.sessions.engine import build_edit_engine, take_steps

    inline = services.settings.allow_inline
    engine = build_edit_engine(services.settings, services.ledger, services.intake, commands=inline)
    return take_steps(engine, session_id)


def send_session_hints(services: Services, app: Celery) -> int:
    """Send a hint for every session with a next step. Return the number sent."""
    from mulligan.workers.edits.sessions.session_store import find_ready, session_store

    def all_ended(job_ids: Sequence[str]) -> bool:
        return all(state in TERMINAL for state in services.ledger.job_states(job_ids).values())

    ready = find_ready(session_store(services.settings, services.ledger), all_ended)
    for session in ready:
        app.send_task(
            "mulligan.edit",
            args=(session.id,),
            queue=edit_queue(session.host),
            expires=_HINT_SECONDS,
            retry=False,
            headers={SENT_HEADER: time.time()},
        )
    return len(ready)
