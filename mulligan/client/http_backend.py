"""A fleet behind a console: jobs are submitted and followed over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote
from uuid import uuid4
from weakref import WeakSet

from mulligan.client.backends import SubmitResult
from mulligan.client.build_jobs import JobDraft, contract_by_reference
from mulligan.client.http_events import ConsoleEvents
from mulligan.client.http_requests import TOKEN_VARIABLE, ConsoleConnection
from mulligan.client.http_rows import view_of
from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import Problem
from mulligan.tasks.ports.errors import BadInput, MulliganError
from mulligan.tasks.ports.ledger import Accepted, JobView
from mulligan.workers.backends.follow import EventFeed
from mulligan.workers.contract_models import ContractModels
from mulligan.workers.settings.model import Settings, load_settings

#: Jobs, and bytes of them, per request: the console has caps.
_JOBS, _BYTES = 1000, 4_000_000
#: Replaces a job that is not sent.
_NULL = "null"
_NO_FILES = (
    "files are not sent over HTTP: name a directory of the workers with `profile:`, or give"
    " Client() the broker's URL"
)
#: Jobs that one request may ask about.
_NAMED = 100


def open_console(url: str, token: str | None, overrides: Mapping[str, Any]) -> HttpBackend:
    """Return the backend of a console, without contacting it."""
    settings = load_settings(**overrides)
    token = token or os.environ.get(TOKEN_VARIABLE) or None
    return HttpBackend(ConsoleConnection(url, token, patience=settings.submit_patience), settings)


class HttpBackend:
    """A console, whose fleet checks, stores and runs the jobs."""

    def __init__(self, console: ConsoleConnection, settings: Settings) -> None:
        self._console = console
        self._models = ContractModels(settings.model_modules)
        self._streams: WeakSet[ConsoleEvents] = WeakSet()
        self.runner: Any = settings.default_runner

    def contract(self, returns: Any) -> dict[str, Any]:
        """Return the contract; also name the model if its module is allowed, for its validators."""
        return contract_by_reference(returns, self._models)

    def check(self, drafts: Sequence[JobDraft]) -> list[Problem]:
        """Return the problems that the console can check; malformed jobs are not sent."""
        malformed = {place for place, draft in enumerate(drafts) if draft.job is None}
        found = [problem.of_job(i) for i in malformed for problem in drafts[i].read[1]]
        start = 0
        # A list with a null in it is never accepted, so asking stores nothing.
        bodies = [_keyed(draft.job) if draft.job else _NULL for draft in drafts]
        for part in _parts(bodies, spare=1) if len(drafts) > 1 else ():
            try:
                self._submit([*part, _NULL], single=False)
            except BadInput as error:
                problems = _shifted(error.problems, start)
                asked = {*range(start, start + len(part))} - malformed
                found += [each for each in problems if each.index in asked]
            except MulliganError:  # report the known problems, not that it cannot be reached
                break
            start += len(part)
        return found

    def submit(self, jobs: Sequence[Job], *, stored: Callable[[int], None]) -> SubmitResult:
        """Submit each job with a unique key, so that a repeated request creates no second job."""
        _refuse_paths(jobs)
        accepted: dict[int, Accepted] = {}
        for part in _parts([_keyed(job) for job in jobs]):
            start = len(accepted)
            try:
                answers = self._submit(part, single=len(jobs) == 1)
            except BadInput as error:
                if len(jobs) == 1:
                    raise
                problems = _shifted(error.problems, start)
                if not accepted:
                    raise BadInput(*problems) from None
                return SubmitResult(accepted=accepted, problems=problems)
            for place, answer in enumerate(answers, start):
                generated = jobs[place].idempotency_key is None  # "seen" only after a repeat
                accepted[place] = replace(answer, status="accepted") if generated else answer
            stored(len(answers))
        return SubmitResult(accepted=accepted)

    def _submit(self, bodies: Sequence[str], *, single: bool) -> list[Accepted]:
        content = bodies[0] if single else f"[{','.join(bodies)}]"
        answer = self._console.ask("POST", "/api/jobs", content)
        return [Accepted(id=taken["id"], status=taken["status"]) for taken in answer.body["jobs"]]

    def job(self, job_id: str) -> JobView | None:
        answer = self._console.ask("GET", _path(job_id), also=(404,))
        return None if answer.status == 404 else view_of(answer.body)

    def states(self, job_ids: Sequence[str]) -> dict[str, str]:
        """A hundred jobs per request: the console counts requests."""
        states: dict[str, str] = {}
        for start in range(0, len(job_ids), _NAMED):
            named = quote(",".join(job_ids[start : start + _NAMED]), safe="")
            rows = self._console.ask("GET", f"/api/jobs?ids={named}").body["jobs"]
            states |= {row["id"]: row["state"] for row in rows}
        return states

    def cancel(self, job_id: str) -> str:
        answer = self._console.ask("POST", f"{_path(job_id)}/cancel", also=(404, 409))
        if answer.status == 404:
            return "gone"
        if answer.status != 409:
            return str(answer.body["state"])
        return self.states([job_id]).get(job_id, "gone")

    def feed(self, job_id: str | None = None, *, after: str | None = None) -> EventFeed:
        path = "/api/events" if job_id is None else f"{_path(job_id)}/events"
        stream = ConsoleEvents(self._console, path, after=after)
        self._streams.add(stream)
        return stream

    def start(self) -> None:
        """The workers of a fleet run already."""

    def close(self) -> None:
        for stream in list(self._streams):
            stream.close()
        self._console.close()


def _path(job_id: str) -> str:
    return f"/api/jobs/{quote(job_id, safe='')}"


def _refuse_paths(jobs: Sequence[Job]) -> None:
    """Refuse local paths. The console finds all other problems, by its settings."""
    named = [i for i, job in enumerate(jobs) if job.workspace and job.workspace.path is not None]
    if named:
        problem = Problem.at("workspace.path", _NO_FILES, "not_allowed")
        raise BadInput(*(problem.of_job(i if len(jobs) > 1 else None) for i in named))


def _shifted(problems: Sequence[Problem], start: int) -> list[Problem]:
    """Return the problems of one request's jobs with their indices among all jobs."""
    return [problem.of_job(start + (problem.index or 0)) for problem in problems]


def _keyed(job: Job) -> str:
    key = job.idempotency_key or f"client-{uuid4().hex}"
    return job.model_copy(update={"idempotency_key": key}).model_dump_json(exclude_defaults=True)


def _parts(bodies: Sequence[str], *, spare: int = 0) -> Iterator[list[str]]:
    """Yield as few requests as the caps allow, each with room for ``spare`` more jobs."""
    part: list[str] = []
    size = 0
    for body in bodies:
        length = len(body.encode()) + 1
        if part and (len(part) == _JOBS - spare or size + length > _BYTES):
            yield part
            part, size = [], 0
        part.append(body)
        size += length
    if part:
        yield part
