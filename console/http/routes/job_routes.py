"""Jobs over HTTP: submit, list, show, cancel."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Query, Response
from pydantic import BaseModel, Field

from mulligan.console.http.access import Caller, Producer, Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import NOT_JSON, HttpError, errors, invalid, not_found
from mulligan.console.http.models.job_models import JobDocument, JobSummary, document, summary
from mulligan.console.jobfiles.model_schema import inline_schema
from mulligan.policies.jobs.job import Job, JobState
from mulligan.tasks.jobs.read_job import read_jobs
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.ledger.job_pages import JobFilter

#: Anything else could address another of the ledger's keys.
JOB_ID = re.compile(r"^p\d\d-[0-9a-z]{1,64}$", re.ASCII)
#: The most jobs that one request may submit.
MAX_JOBS = 1000
#: The most jobs that one request may read by their ids.
MAX_IDS = 100
Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=480,
        description="The idempotency key of the job; for several jobs: KEY-0, KEY-1…",
    ),
]
Ids = Annotated[
    str | None,
    Query(
        max_length=100 * MAX_IDS,
        description="Up to 100 ids, separated by commas. The jobs come in this order; unknown ids"
        " are left out. Cannot be combined with a filter or a cursor.",
    ),
]


class AcceptedJob(BaseModel):
    id: str
    #: seen: the same job was submitted before with this key.
    status: Literal["accepted", "seen"]


class SubmitResponse(BaseModel):
    jobs: list[AcceptedJob]


class JobList(BaseModel):
    jobs: list[JobSummary]
    #: Send it to get the next page; null on the last page. Even a short page may have one.
    cursor: str | None


class CancelResponse(BaseModel):
    id: str
    state: str


_JOB = {
    **inline_schema(Job),
    "description": "A job as in a job file (see docs/job-files.md), without local files",
}
_JOBS = {"type": "array", "minItems": 1, "maxItems": MAX_JOBS, "items": _JOB}
_BODY = {
    "anyOf": [_JOB, _JOBS, {"type": "object", "required": ["jobs"], "properties": {"jobs": _JOBS}}]
}
_EXAMPLE = {
    "task_type": "extract_person",
    "prompt": "Extract the person: Alice is 31.",
    "runner": "default",
    "verifiers": ["json.object"],
}
JobsBody = Annotated[Any, Body(json_schema_extra=_BODY, examples=[_EXAMPLE])]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["jobs"])

    @router.post("/api/jobs", status_code=202, responses=errors(409))
    def submit(
        body: JobsBody, caller: Producer, response: Response, key: Key = None
    ) -> SubmitResponse:
        """Submit a job, a list of jobs, or {"jobs": […]}. One invalid job refuses them all.

        A key that belongs to another job refuses only the job that uses it.
        """
        raws, is_list = _jobs_of(body)
        keyed = [with_key(raw, key, i if is_list else None) for i, raw in enumerate(raws)]
        try:
            read = read_jobs(keyed, context.services.intake.problems, single=not is_list)
            jobs = [_owned(context, job, caller, i) for i, job in enumerate(read)]
            accepted = _accept(context, jobs, caller)
        except BadInput as error:
            context.ledger.refused_submissions.note(
                error.problems,
                id=token_hex(8),
                origin="http",
                raw=raws[0],
                by=caller.name,
                tenant=caller.tenant,
            )
            raise
        if not is_list:
            response.headers["Location"] = f"/api/jobs/{accepted[0].id}"
        return SubmitResponse(jobs=accepted)

    _add_reading(router, context)

    @router.post("/api/jobs/{job_id}/cancel", responses=errors(404, 409))
    def cancel(job_id: str, caller: Reader) -> CancelResponse:
        """Cancel a job that has not ended. The result of a running attempt is discarded."""
        view = visible_job(context, caller, job_id)
        state = context.ledger.cancel(view.id, detail=f"by {caller.name}, over HTTP")
        if state == "gone":
            raise not_found(f"job {job_id!r}")
        if state != "cancelled":
            raise HttpError(409, "ended", f"the job has already ended: {state}")
        return CancelResponse(id=view.id, state=state)

    return router


def _add_reading(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/api/jobs")
    def list_jobs(
        caller: Reader,
        state: JobState | None = None,
        task_type: Annotated[str | None, Query(max_length=200)] = None,
        label: Annotated[list[str] | None, Query(max_length=20)] = None,
        since: Moment | None = None,
        until: Moment | None = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        cursor: Annotated[str | None, Query(max_length=100)] = None,
        ids: Ids = None,
    ) -> JobList:
        """List jobs, newest first; with a state, by when they entered it; or the jobs by id.

        A producer sees what it submitted.
        """
        if ids is not None:
            if any(each is not None for each in (state, task_type, label, since, until, cursor)):
                raise invalid("ids: cannot be combined with a filter or a cursor")
            return _by_ids(context, caller, ids.split(","))
        chosen = JobFilter(
            state=state,
            task_type=task_type,
            labels=parse_labels(label or ()),
            tenant=caller.tenant,
            owner=caller.owner,
            since=since,
            until=until,
        )
        page = context.ledger.page_jobs(chosen, limit=limit, cursor=cursor)
        rows = [summary(row, texts=caller.texts) for row in page.jobs]
        return JobList(jobs=rows, cursor=page.cursor)

    @router.get("/api/jobs/{job_id}", responses=errors(404))
    def show(job_id: str, caller: Reader) -> JobDocument:
        """Return a job with all its attempts."""
        return document(visible_job(context, caller, job_id), texts=caller.texts)


def visible_job(context: ConsoleContext, caller: Caller, job_id: str) -> JobView:
    """Return the job, or raise 404 if it does not exist or the caller may not see it."""
    view = context.ledger.job(job_id) if JOB_ID.match(job_id) else None
    if view is None or not (caller.sees(view.tenant) and caller.owns(view.owner)):
        raise not_found(f"job {job_id!r}")
    return view


def _by_ids(context: ConsoleContext, caller: Caller, ids: Sequence[str]) -> JobList:
    """Return the jobs with these ids, without those that do not exist for this caller."""
    if len(ids) > MAX_IDS:
        raise invalid(f"ids: up to {MAX_IDS} at a time, not {len(ids):,}")
    valid = [job_id for job_id in ids if JOB_ID.match(job_id)]
    rows = context.ledger.find_jobs(valid, tenant=caller.tenant, owner=caller.owner)
    return JobList(jobs=[summary(row, texts=caller.texts) for row in rows], cursor=None)


# -- submitting ------------------------------------------------------------------------------------


def _jobs_of(body: Any) -> tuple[list[Any], bool]:
    """Return the jobs of a body, and whether they came as a list."""
    if isinstance(body, bytes):
        raise invalid(NOT_JSON)
    try:
        json.dumps(body)
    except (ValueError, RecursionError):  # extreme nesting
        raise invalid("body: has a value that cannot be stored as JSON") from None
    jobs = body
    if isinstance(body, dict) and "jobs" in body:
        if set(body) != {"jobs"} or not isinstance(body["jobs"], list):
            raise invalid("jobs: must be a list, without other fields beside it")
        jobs = body["jobs"]
    if not isinstance(jobs, list):
        return [jobs], False
    if not 1 <= len(jobs) <= MAX_JOBS:
        raise invalid(f"jobs: 1 to {MAX_JOBS:,} at a time, not {len(jobs):,}")
    return jobs, True


def with_key(raw: Any, key: str | None, index: int | None) -> Any:
    """Return a job with the key of the request's header, which its own must not contradict."""
    if key is None or not isinstance(raw, dict):
        return raw
    job_key = key if index is None else f"{key}-{index}"
    if raw.get("idempotency_key") not in (None, job_key):
        raise invalid("idempotency_key: differs from the Idempotency-Key header; send one of them")
    return {**raw, "idempotency_key": job_key}


def _owned(context: ConsoleContext, job: Job, caller: Caller, index: int) -> Job:
    """Return the job, labelled with the token's tenant if it has one."""
    if caller.tenant is None:
        return job
    name = context.settings.tenant_label
    if job.labels.get(name, caller.tenant) != caller.tenant:
        raise HttpError(
            403, "other_tenant", f"jobs[{index}].labels.{name}: this token is for {caller.tenant}"
        )
    return job.model_copy(update={"labels": {**job.labels, name: caller.tenant}})


def _accept(context: ConsoleContext, jobs: Sequence[Job], caller: Caller) -> list[AcceptedJob]:
    accepted = submit_jobs(context.services.intake, jobs, owner=caller.owner)
    return [AcceptedJob(id=answer.id, status=answer.status) for answer in accepted]


def parse_labels(texts: Sequence[str]) -> Mapping[str, str]:
    """Parse labels written as NAME:VALUE, or raise 422."""
    labels = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name:
            raise invalid(f"label: {text!r} is not NAME:VALUE")
        labels[name] = value
    return labels
