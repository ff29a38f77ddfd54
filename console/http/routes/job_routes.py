"""Jobs over HTTP: submit, list, look at, cancel."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Header, Query, Response
from pydantic import BaseModel, Field

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import NOT_JSON, HttpError, errors, invalid, not_found
from mulligan.console.http.models.job_models import JobDocument, JobSummary, document, summary
from mulligan.console.jobfiles.model_schema import inline_schema
from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.read_job import read_jobs
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.ledger.job_pages import JobFilter

#: What is no id must not become another of the ledger's keys.
_ID = re.compile(r"^p\d\d-[0-9a-z]{1,64}$", re.ASCII)
#: Jobs of one request.
MANY = 1000
#: Jobs that one request may ask for by their ids.
NAMED = 100
State = Literal["queued", "running", "waiting", "succeeded", "escalated", "cancelled"]
Producer = Annotated[Caller, Depends(needs("producer"))]
AnyCaller = Annotated[Caller, Depends(needs("producer", "ops"))]
Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=480,
        description="The idempotency key of the job; of many: KEY-0, KEY-1…",
    ),
]


Ids = Annotated[
    str | None,
    Query(
        max_length=100 * NAMED,
        description="The jobs with these ids, by commas, up to 100, in this order and without"
        " those that there are not. Not together with a filter or a cursor.",
    ),
]


class AcceptedJob(BaseModel):
    id: str
    #: seen: the same job came before under this key.
    status: Literal["accepted", "seen"]


class SubmitResponse(BaseModel):
    jobs: list[AcceptedJob]


class JobList(BaseModel):
    jobs: list[JobSummary]
    #: Give it back for the next page; null: there is none. A short page may have one.
    cursor: str | None


class CancelResponse(BaseModel):
    id: str
    state: str


_JOB = {
    **inline_schema(Job),
    "description": "A job as in a job file (see docs/job-files.md), without files of this host",
}
_MANY = {"type": "array", "minItems": 1, "maxItems": MANY, "items": _JOB}
_BODY = {
    "anyOf": [_JOB, _MANY, {"type": "object", "required": ["jobs"], "properties": {"jobs": _MANY}}]
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
        """Hand in a job, a list of them, or {"jobs": […]}. One bad job refuses them all.

        A key that is another job's refuses that job only: the others are accepted all the same.
        """
        raws, many = _listed(body)
        keyed = [_keyed(raw, key, i if many else None) for i, raw in enumerate(raws)]
        check = context.services.intake.problems
        read = read_jobs(keyed, check, single=not many)
        jobs = [_owned(context, job, caller, i) for i, job in enumerate(read)]
        taken = _accept(context, jobs)
        if not many:
            response.headers["Location"] = f"/api/jobs/{taken[0].id}"
        return SubmitResponse(jobs=taken)

    @router.get("/api/jobs")
    def list_jobs(
        caller: AnyCaller,
        state: State | None = None,
        task_type: Annotated[str | None, Query(max_length=200)] = None,
        label: Annotated[list[str] | None, Query(max_length=20)] = None,
        since: Moment | None = None,
        until: Moment | None = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        cursor: Annotated[str | None, Query(max_length=100)] = None,
        ids: Ids = None,
    ) -> JobList:
        """Jobs, newest first; of one state, those first that came into it last; or named ones."""
        if ids is not None:
            filters = (state, task_type, label, since, until, cursor)
            return _named(context, caller, ids, alone=all(each is None for each in filters))
        wanted = JobFilter(
            state=state,
            task_type=task_type,
            labels=_labels(label or ()),
            tenant=caller.tenant,
            since=since,
            until=until,
        )
        return _page(context, caller, wanted, limit=limit, cursor=cursor)

    @router.get("/api/jobs/{job_id}", responses=errors(404))
    def show(job_id: str, caller: AnyCaller) -> JobDocument:
        """A job with every attempt."""
        return document(visible_job(context, caller, job_id), texts=caller.texts)

    @router.post("/api/jobs/{job_id}/cancel", responses=errors(404, 409))
    def cancel(job_id: str, caller: AnyCaller) -> CancelResponse:
        """Cancel a job that has not ended; a running attempt goes nowhere."""
        view = visible_job(context, caller, job_id)
        state = context.ledger.cancel(view.id, detail=f"by {caller.name}, over HTTP")
        if state == "gone":
            raise not_found(f"job {job_id}")
        if state != "cancelled":
            raise HttpError(409, "ended", f"the job has already ended: {state}")
        return CancelResponse(id=view.id, state=state)

    return router


def _page(
    context: ConsoleContext, caller: Caller, wanted: JobFilter, *, limit: int, cursor: str | None
) -> JobList:
    page = context.ledger.page_jobs(wanted, limit=limit, cursor=cursor)
    rows = [summary(row, texts=caller.texts) for row in page.jobs]
    return JobList(jobs=rows, cursor=page.cursor)


def visible_job(context: ConsoleContext, caller: Caller, job_id: str) -> JobView:
    """The job, if there is one and it is this caller's to see; else 404."""
    view = context.ledger.job(job_id) if _ID.match(job_id) else None
    if view is None or not caller.sees(view.tenant):
        raise not_found(f"job {job_id}")
    return view


def _named(context: ConsoleContext, caller: Caller, ids: str, *, alone: bool) -> JobList:
    """Summaries of jobs by their ids; what there is not, or is another's to see, is left out."""
    wanted = ids.split(",")
    if not alone:
        raise invalid("ids: alone; leave out the filters and the cursor")
    if len(wanted) > NAMED:
        raise invalid(f"ids: up to {NAMED} at a time, not {len(wanted):,}")
    valid = [job_id for job_id in wanted if _ID.match(job_id)]
    rows = context.ledger.find_jobs(valid, tenant=caller.tenant)
    return JobList(jobs=[summary(row, texts=caller.texts) for row in rows], cursor=None)


# -- submitting ------------------------------------------------------------------------------------


def _listed(body: Any) -> tuple[list[Any], bool]:
    """The jobs of a body, and whether they came as a list."""
    if isinstance(body, bytes):
        raise invalid(NOT_JSON)
    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):  # a NaN, half a surrogate pair, nesting without end
        raise invalid("body: has a value that cannot be kept as JSON") from None
    many = body
    if isinstance(body, dict) and "jobs" in body:
        if set(body) != {"jobs"} or not isinstance(body["jobs"], list):
            raise invalid("jobs: a list, and nothing beside it")
        many = body["jobs"]
    if not isinstance(many, list):
        return [many], False
    if not 1 <= len(many) <= MANY:
        raise invalid(f"jobs: 1 to {MANY:,} at a time, not {len(many):,}")
    return many, True


def _keyed(raw: Any, key: str | None, index: int | None) -> Any:
    if key is None or not isinstance(raw, dict):
        return raw
    wanted = key if index is None else f"{key}-{index}"
    given = raw.get("idempotency_key")
    if given not in (None, wanted):
        raise invalid("idempotency_key: differs from the Idempotency-Key header; give one of them")
    return {**raw, "idempotency_key": wanted}


def _owned(context: ConsoleContext, job: Job, caller: Caller, index: int) -> Job:
    """The job of a tenant's token is that tenant's."""
    if caller.tenant is None:
        return job
    name = context.settings.tenant_label
    if job.labels.get(name, caller.tenant) != caller.tenant:
        raise HttpError(
            403, "other_tenant", f"jobs[{index}].labels.{name}: this token is for {caller.tenant}"
        )
    return job.model_copy(update={"labels": {**job.labels, name: caller.tenant}})


def _accept(context: ConsoleContext, jobs: Sequence[Job]) -> list[AcceptedJob]:
    try:
        accepted = submit_jobs(context.services.intake, jobs)
    except BadInput as error:
        if error.has("key_in_use"):
            message = "an idempotency key is another job's"
            raise HttpError(409, "key_in_use", message, details=error.problems) from None
        raise
    return [AcceptedJob(id=answer.id, status=answer.status) for answer in accepted]


def _labels(given: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name:
            raise invalid(f"label: {text!r} is not NAME:VALUE")
        found[name] = value
    return found
