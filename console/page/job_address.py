"""The address of a job's story, from what Flower calls its tasks: the way back."""

from __future__ import annotations

import re

from mulligan.console.http.access import Caller
from mulligan.console.http.context import ConsoleContext
from mulligan.workers.ledger.job_ids import own_job_id

#: `<job>`, `<job>-<n>`, `<job>-<n>-v<i>`, `<job>-<n>-c<loop>` and `<job>-done`.
_OURS = re.compile(r"^(p\d{2,}-[0-9a-z]+)(?:-(\d{1,9})(?:-[vc]\d{1,9})?|-done)?$", re.ASCII)
#: A user's own task has Celery's id, and its retries that with a number.
_OWN = re.compile(
    r"^([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:-(\d{1,9}))?(?:-c\d{1,9})?$", re.ASCII
)


def address_of(context: ConsoleContext, caller: Caller, text: str) -> str | None:
    """Where the story of a job or of one of its tasks is; None if this is the name of neither.

    That there is a job of this name is known only of users' own tasks, which have any id.
    """
    if match := _OURS.match(text):
        return _address(match[1], match[2])
    if (match := _OWN.match(text)) is None:
        return None
    own = own_job_id(match[1], partitions=context.settings.partitions)
    found = context.ledger.find_jobs([own], tenant=caller.tenant)
    return _address(own, match[2]) if found else None


def _address(job_id: str, attempt: str | None) -> str:
    return f"/jobs/{job_id}" + (f"#attempt-{attempt}" if attempt else "")
