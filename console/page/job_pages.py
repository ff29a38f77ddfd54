"""The pages of jobs: the list, and each job's story."""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mulligan.console.http.access import Caller, Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, invalid
from mulligan.console.http.routes.job_routes import parse_labels, visible_job
from mulligan.console.page import job_story_page
from mulligan.console.page.job_address import address_of
from mulligan.console.page.render import Text, address, page
from mulligan.console.reports.providers import awaited_provider
from mulligan.policies.jobs.job import TERMINAL, JobState
from mulligan.tasks.jobs.job_story import tell_story
from mulligan.workers.ledger.job_pages import JobFilter

STATES = get_args(JobState)
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
        if target := address_of(context, caller, name.strip()):
            return RedirectResponse(target, 303)
        job_filter = _job_filter(caller, name, state, task_type, label)
        found = context.ledger.page_jobs(job_filter, limit=_ROWS, cursor=cursor or None)
        chosen = {"name": name, "state": state, "task_type": task_type, "label": label}
        return page(
            request,
            "jobs.html",
            caller=caller,
            chosen=chosen,
            cursor=cursor,
            filtered=any(chosen.values()),
            first=address("/jobs", **chosen),
            following=address("/jobs", **chosen, cursor=found.cursor) if found.cursor else "",
            jobs=found.jobs,
            now=context.ledger.now(),
            states=STATES,
        )

    _add_story(router, context)


def _job_filter(caller: Caller, name: str, state: str, task_type: str, label: str) -> JobFilter:
    if state and state not in STATES:
        raise invalid(f"state: {state!r} is none of {', '.join(STATES)}")
    return JobFilter(
        name=name.strip() or None,
        state=state or None,
        task_type=task_type.strip() or None,
        labels=parse_labels([label.strip()] if label.strip() else []),
        tenant=caller.tenant,
        owner=caller.owner,
    )


def _add_story(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/jobs/{job_id}")
    def job(request: Request, caller: Reader, job_id: str) -> Response:
        target = address_of(context, caller, job_id)
        if target is not None and target != f"/jobs/{job_id}":
            return RedirectResponse(target, 307)
        # Taken before the job is read: an event in between is sent again, never missed.
        after = f"{int(context.ledger.now() * 1000)}"
        view = visible_job(context, caller, job_id)
        provider = awaited_provider(context.ledger, view, caller.tenant)
        story = tell_story(view, texts=caller.texts, provider=provider, now=context.ledger.now())
        return page(
            request,
            "job.html",
            caller=caller,
            after=after,
            cancellable=view.state not in TERMINAL,
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
