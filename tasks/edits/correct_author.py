"""Let the model that wrote a plan correct what failed of it."""

from __future__ import annotations

from mulligan.policies.edits.feedback import correction_of
from mulligan.policies.edits.session import EditSession
from mulligan.tasks.jobs.submit import Intake, submit_jobs
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import JobView


def correct_author(intake: Intake, session: EditSession) -> str | None:
    """Submit the author's job again, with a corrected prompt; the new job. None: the plan has no
    author, something of it still waits, or nothing failed. Asking twice is one job. BadInput if the
    author's job is not kept any more, or may not be submitted."""
    if session.author is None or not session.finished:
        return None
    view = intake.ledger.job(session.author)
    if view is None:
        raise BadInput.at("author", f"there is no job {session.author} any more")
    job = correction_of(view.job, view.id, _answer(view), session)
    if job is None:
        return None
    (accepted,) = submit_jobs(intake, [job])
    return accepted.id


def _answer(view: JobView) -> str | None:
    """The answer that the plan was: the best attempt's."""
    chosen = (a.output for a in view.attempts if a.plan.number == view.best_attempt)
    output = next(chosen, None)
    return None if output is None else output.text
