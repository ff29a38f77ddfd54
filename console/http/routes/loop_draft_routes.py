"""Drafts of loops over HTTP: ask for one, read it, create its loop."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from fastapi import Path as InPath
from pydantic import BaseModel, ConfigDict

from mulligan.console.http.access import Caller, Producer, Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import errors
from mulligan.console.http.loop_body import DraftBody, read_draft_body
from mulligan.console.http.models.draft_models import AskedDraft, DraftDetail, draft_detail
from mulligan.console.http.models.loop_models import CreatedLoop, created
from mulligan.console.http.routes.job_routes import visible_job
from mulligan.console.http.routes.loop_routes import Changes, Key, loop_tenant, visible_loop
from mulligan.console.jobfiles.model_schema import inline_schema
from mulligan.policies.jobs.job import RunnerSpec
from mulligan.tasks.loops import draft
from mulligan.tasks.loops.view import why_of

DraftId = Annotated[
    str, InPath(min_length=1, max_length=200, description="The id of the job that drafts a loop")
]
_EXAMPLE = {
    "goal": "Parse durations such as 20s and 10m.",
    "loop": {"name": "durations", "repo": "project", "runner": "coder"},
}


class DraftStart(BaseModel):
    """How the loop of a draft is created."""

    model_config = ConfigDict(extra="forbid")

    #: Start it at once.
    start: bool = False


_CREATED = DraftStart()


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["loops"])
    loops = context.services.loops

    @router.post("/api/loops/drafts", status_code=202, responses=errors(409))
    def ask(
        body: Annotated[Any, Body(json_schema_extra=inline_schema(DraftBody), examples=[_EXAMPLE])],
        caller: Producer,
        response: Response,
        key: Key = None,
    ) -> AskedDraft:
        """Let a model write the items of a loop for a goal. Returns the job that does it."""
        asked = read_draft_body(body)
        accepted = draft.request_draft(
            loops,
            _request(context, asked),
            tenant=loop_tenant(caller, asked.tenant),
            owner=caller.owner or "",
            key=key,
        )
        response.headers["Location"] = f"/api/loops/drafts/{accepted.id}"
        return AskedDraft(job_id=accepted.id, loop=asked.loop.name)

    @router.get("/api/loops/drafts/{job_id}", responses=errors(404))
    def show(job_id: DraftId, caller: Reader) -> DraftDetail:
        """Show a draft: what was wrong with each attempt, and the items when one has passed."""
        return draft_detail(_visible(context, caller, job_id), texts=caller.texts)

    @router.post(
        "/api/loops/drafts/{job_id}/create",
        status_code=201,
        responses={
            200: {"model": CreatedLoop, "description": "It exists already"},
            **errors(404, 409),
        },
    )
    def create(
        job_id: DraftId,
        caller: Producer,
        changes: Changes,
        response: Response,
        body: DraftStart = _CREATED,
    ) -> CreatedLoop:
        """Create the loop of a draft that has passed, and start it if that is asked for."""
        found = _visible(context, caller, job_id)
        made = draft.create_drafted(loops, found, changes, start=body.start)
        seen = made.status == "seen"
        response.status_code = 200 if seen else 201
        view = visible_loop(context, caller, found.rules.loop.name)
        return created(view, why_of(loops, view), texts=caller.texts, seen=seen)

    return router


def _request(context: ConsoleContext, asked: DraftBody) -> draft.DraftRequest:
    drafter = context.settings.loop_drafter
    default = RunnerSpec(profile=drafter) if drafter else None
    return draft.DraftRequest(
        goal=asked.goal,
        loop=asked.loop,
        runner=asked.runner or default,
        programs=asked.programs,
        max_attempts=asked.max_attempts,
        budget=asked.budget,
        auto_start=asked.auto_start,
    )


def _visible(context: ConsoleContext, caller: Caller, job_id: str) -> draft.DraftView:
    visible_job(context, caller, job_id)
    return draft.read_draft(context.services.loops, job_id)
