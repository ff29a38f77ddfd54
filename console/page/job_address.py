"""The address of a job's page, from the id of one of its tasks in Flower."""

from __future__ import annotations

import re

from mulligan.console.http.access import Caller
from mulligan.console.http.context import ConsoleContext

#: `<job>`, `<job>-<n>`, `<job>-<n>-v<i>`, `<job>-<n>-c<loop>` and `<job>-done`.
_TASK_ID = re.compile(r"^(p\d{2,}-[0-9a-z]+)(?:-(\d{1,9})(?:-[vc]\d{1,9})?|-done)?$", re.ASCII)
#: A user task has Celery's id; its retries append a number.
_USER_TASK_ID = re.compile(
    r"^([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-(\d{1,9}))?(?:-c\d{1,9})?$", re.ASCII
)


def address_of(context: ConsoleContext, caller: Caller, text: str) -> str | None:
    """Return the address for the id of a job or of one of its tasks, or None for other texts.

    Only user tasks are looked up, because any text of Celery's form could be the id of one.
    """
    if match := _TASK_ID.match(text):
        return _address(match[1], match[2])
    if (match := _USER_TASK_ID.match(text)) is None:
        return None
    job_id = context.ledger.user_task_id(match[1])
    found = context.ledger.find_jobs([job_id], tenant=caller.tenant, owner=caller.owner)
    return _address(job_id, match[2]) if found else None


def _address(job_id: str, attempt: str | None) -> str:
    return f"/jobs/{job_id}" + (f"#attempt-{attempt}" if attempt else "")
