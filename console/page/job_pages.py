"""Jobs: a list in pages, and each one's story."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, invalid
from mulligan.console.http.routes.job_routes import visible_job
from mulligan.console.page import job_story_page
from mulligan.console.page.job_address import address_of
from mulligan.console.page.render import page
from mulligan.tasks.jobs.job_story import tell_story
from mulligan.workers.ledger.job_pages import JobFilter

Reader = Annotated[Caller, Depends(needs("producer", "ops"))]
Text = Annotated[str, Query(max_length=200)]
STATES = ("queued", "running", "waiting", "succeeded", "escalated", "cancelled")
_ROWS = 50


def add(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/jobs")
    def jobs(
        request: Request,
        caller: Reader,
        name: Text = "",
        state: Text = "",
        task_type: Text = "",
        label: Text = "",
        cursor: Annotated[str, Query(max_length=100)] = "",
    ) -> Response:
        if address := address_of(context, caller, name.strip()):
            return RedirectResponse(address, 303)
        wanted = _wanted(caller, name, state, task_type, label)
        found = context.ledger.page_jobs(wanted, limit=_ROWS, cursor=cursor or None)
        chosen = {"name": name, "state": state, "task_type": task_type, "label": label}
        kept = {name: value for name, value in chosen.items() if value}
        return page(
            request,
            "jobs.html",
            caller=caller,
            chosen=chosen,
            cursor=cursor,
            filtered=bool(kept),
            first="/jobs?" + urlencode(kept),
            following="/jobs?" + urlencode({**kept, "cursor": found.cursor})
            if found.cursor
            else "",
            jobs=found.jobs,
            now=context.ledger.now(),
            states=STATES,
        )

    _add_story(router, context)


def _wanted(caller: Caller, begins: str, state: str, task_type: str, label: str) -> JobFilter:
    if state and state not in STATES:
        raise invalid(f"state: {state!r} is none of {', '.join(STATES)}")
    name, colon, value = label.strip().partition(":")
    if label.strip() and not (name and colon):
        raise invalid(f"label: {label!r} is not NAME:VALUE")
    return JobFilter(
        name=begins.strip() or None,
        state=state or None,
        task_type=task_type.strip() or None,
        labels={name: value} if label.strip() else {},
        tenant=caller.tenant,
    )


def _add_story(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/jobs/{job_id}")
    def job(request: Request, caller: Reader, job_id: str) -> Response:
        address = address_of(context, caller, job_id)
        if address is not None and address != f"/jobs/{job_id}":
            return RedirectResponse(address, 307)
        # Before it is read: what happens meanwhile is told again, and never missed.
        after = f"{int(context.ledger.now() * 1000)}"
        view = visible_job(context, caller, job_id)
        story = tell_story(view, texts=caller.texts)
        return page(
            request,
            "job.html",
            caller=caller,
            after=after,
            cancellable=job_story_page.may_cancel(view),
            sections=job_story_page.attempt_sections(view, story),
            story=story,
            escalation=job_story_page.open_escalation(context.ledger, view),
            job=view,
            job_file=job_story_page.job_file(view.job) if caller.texts else None,
            texts=caller.texts,
        )

    @router.get("/jobs/{job_id}/job.yaml")
    def job_yaml(caller: Reader, job_id: str) -> Response:
        view = visible_job(context, caller, job_id)
        if not caller.texts:
            raise HttpError(403, "forbidden", "this token may not read prompts")
        return Response(job_story_page.job_file(view.job), media_type="application/yaml")
