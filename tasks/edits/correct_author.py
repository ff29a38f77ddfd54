"""Let the model that wrote a plan correct its failed edits."""

from __future__ import annotations

from mulligan.policies.edits.feedback import correction_of
from mulligan.policies.edits.session import EditSession
from mulligan.tasks.jobs.submit import Intake, submit_jobs
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import JobView


def correct_author(intake: Intake, session: EditSession) -> str | None:
    """Submit the author's job again with a corrected prompt, and return the new job's id. Return
    None if the plan has no author, an edit still waits, or nothing failed. A repeated call finds
    the same job. Raises BadInput if the author's job has expired or may not be submitted."""
    if session.author is None or not session.finished:
        return None
    view = intake.ledger.job(session.author)
    if view is None:
        raise BadInput.at("author", f"job {session.author} no longer exists")
    if view.unreadable is not None:
        raise BadInput.at("author", f"job {view.id} cannot be read: {view.unreadable}")
    job = correction_of(view.job, view.id, _answer(view), session)
    if job is None:
        return None
    (accepted,) = submit_jobs(intake, [job], owner=view.owner)
    return accepted.id


def _answer(view: JobView) -> str | None:
    """Return the answer that contained the plan: the best attempt's."""
    chosen = (a.output for a in view.attempts if a.plan.number == view.best_attempt)
    output = next(chosen, None)
    return None if output is None else output.text
