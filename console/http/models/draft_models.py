"""Drafts of loops, as the API returns them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from mulligan.tasks.loops.draft import DraftView


class AskedDraft(BaseModel):
    """The job that drafts a loop."""

    job_id: str
    #: The name of the loop.
    loop: str


class DraftProblems(BaseModel):
    """What was wrong with one attempt at a draft."""

    attempt: int
    score: float | None
    #: Null without the right to read texts.
    problems: list[str] | None


class DraftDetail(BaseModel):
    """A draft: its job's state, what was wrong with each attempt, and the spec when it passed."""

    job_id: str
    state: str
    #: Why its job ended or waits, if that is known.
    reason: str | None
    #: The name of the loop, and whether it was created from this draft.
    loop: str
    created: bool
    auto_start: bool
    attempts: list[DraftProblems]
    #: The items of the loop; null before a draft has passed, and without the right to read texts.
    items: list[dict[str, Any]] | None
    #: Why the loop was not created by itself.
    problem: str | None


def draft_detail(view: DraftView, *, texts: bool) -> DraftDetail:
    found = view.document.items if view.document is not None and texts else None
    return DraftDetail(
        job_id=view.job.id,
        state=view.job.state,
        reason=view.job.reason,
        loop=view.rules.loop.name,
        created=view.is_created,
        auto_start=view.rules.auto_start,
        attempts=[
            DraftProblems(
                attempt=each.number,
                score=each.score,
                problems=list(each.problems) if texts else None,
            )
            for each in view.attempts
        ],
        items=None
        if found is None
        else [each.model_dump(mode="json", exclude_unset=True) for each in found],
        problem=view.problem or None,
    )
