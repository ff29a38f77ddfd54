"""Submit: validate a job with every error named, then write it before anything else happens."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mulligan.policies.cycles.delayed import reformulation_problem
from mulligan.policies.failures.failure import GIVEN_SCORE
from mulligan.policies.jobs.job import Job, Workspace
from mulligan.tasks.jobs.validation_errors import explain, without_echoes
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import (
    Accepted,
    JobLedger,
    KeyConflict,
    Ledger,
    Publication,
    Submission,
)

__all__ = ["Intake", "JobRules", "explain", "problems", "read_job", "submit_jobs"]

#: Jobs per round trip.
_BATCH = 100


@dataclass(frozen=True, kw_only=True)
class JobRules:
    """What a well-formed job must fulfil to be accepted."""

    #: Every problem of a job's runner, verifiers and workspace, without contacting anything.
    check: Callable[[Job], list[str]]
    prompt_cap: int
    exempt_task_types: Container[str]


@dataclass(frozen=True, kw_only=True)
class Intake(JobRules):
    """Takes jobs that fulfil the rules into the ledger."""

    ledger: Ledger
    publish: Callable[[Sequence[Publication]], None]
    #: Turn a workspace's path or profile into a stored snapshot.
    snapshot: Callable[[Workspace], Workspace]
    #: Write out what a job only names: the JSON Schema of a model.
    complete: Callable[[Job], Job] = lambda job: job
    new_id: Callable[[Job], str]


def read_job(raw: Any) -> Job:
    """A job from plain data, or BadInput with one line per error."""
    if not isinstance(raw, Mapping):
        raise BadInput(f"a job is a mapping with task_type, prompt, runner…, not {_a(raw)}")
    try:
        return Job.model_validate(raw)
    except ValidationError as error:
        wrong = without_echoes(error.errors(include_url=False))
        raise BadInput(*(explain(item) for item in wrong)) from None


def problems(rules: JobRules, job: Job) -> list[str]:
    """Everything that keeps a well-formed job from being accepted."""
    found = []
    if job.prompt_size > rules.prompt_cap:
        found.append(
            f"prompt: {job.prompt_size:,} bytes are over the cap of {rules.prompt_cap:,}"
            " (prompt_cap in mulligan.toml)"
        )
    if job.policy.max_attempts < 2 and job.task_type not in rules.exempt_task_types:
        found.append(
            "policy.max_attempts: must be 2 or more, because a score below 70 is always retried"
            " once; or add the task type to exempt_task_types"
        )
    return found + _elsewhere_problems(job) + rules.check(job)


def _elsewhere_problems(job: Job) -> list[str]:
    """What a score that is given elsewhere, and a delayed verification in other words, rule out."""
    found = []
    given = [spec.id for spec in job.verifiers].count(GIVEN_SCORE)
    if given and (job.subject is None or len(job.verifiers) > 1):
        found.append(
            "verifiers: external.score is for work done elsewhere (runner external, subject), and"
            " stands alone"
        )
    if given and job.delayed_verification.mode == "recheck":
        found.append(
            "delayed_verification.mode: nothing here can check the answer again: use reformulate"
        )
    problem = reformulation_problem(job)
    return [*found, problem] if problem else found


def submit_jobs(intake: Intake, jobs: Sequence[Job]) -> list[Accepted]:
    """Accept the jobs: nothing is stored while any of them has a problem.

    So it is with an idempotency key that belongs to another job, unless that one comes between
    our look and our writing: then this one job is refused.
    """
    answers = store_jobs(intake, jobs)
    taken = [i for i, answer in enumerate(answers) if isinstance(answer, KeyConflict)]
    if taken:
        raise BadInput(*key_problems(jobs, taken))
    return [answer for answer in answers if isinstance(answer, Accepted)]


def store_jobs(
    intake: Intake, jobs: Sequence[Job], *, stored: Callable[[int], None] = lambda _: None
) -> list[Accepted | KeyConflict]:
    """As submit_jobs, with the answer for each; ``stored`` is told how many more are written."""
    found = [
        _placed(len(jobs), i, line) for i, job in enumerate(jobs) for line in problems(intake, job)
    ]
    if found:
        raise BadInput(*found)
    jobs = [intake.complete(job) for job in jobs]
    submissions = [Submission(id=intake.new_id(job), job=_packed(intake, job)) for job in jobs]
    taken = _taken(intake.ledger, submissions)
    if taken:
        raise BadInput(*key_problems(jobs, taken))
    answers: list[Accepted | KeyConflict] = []
    for start in range(0, len(submissions), _BATCH):
        some = intake.ledger.accept(submissions[start : start + _BATCH])
        intake.publish([a.publication for a in some if isinstance(a, Accepted) and a.publication])
        answers += some
        stored(len(some))
    return answers


def _taken(ledger: JobLedger, submissions: Sequence[Submission]) -> list[int]:
    """The places of those whose key is another job's. One alone is refused when it is written."""
    keyed = [each for each in submissions if each.job.idempotency_key is not None]
    if not keyed or len(submissions) == 1:
        return []
    others = ledger.conflicts(keyed)
    first: dict[str, Job] = {}
    return [
        place
        for place, each in enumerate(submissions)
        if each.id in others or first.setdefault(each.id, each.job) != each.job
    ]


def key_problems(jobs: Sequence[Job], places: Sequence[int]) -> list[str]:
    """What to say of the jobs at these places, whose keys are other jobs'."""
    return [
        _placed(len(jobs), i, f"idempotency_key: {key!r} was used for another job")
        for i, key in ((i, jobs[i].idempotency_key) for i in places)
    ]


def _packed(intake: Intake, job: Job) -> Job:
    if job.workspace is None or job.workspace.snapshot is not None:
        return job
    return job.model_copy(update={"workspace": intake.snapshot(job.workspace)})


def _placed(count: int, index: int, line: str) -> str:
    return line if count == 1 else f"jobs[{index}].{line}"


def _a(value: Any) -> str:
    return {"list": "a list", "str": "text", "NoneType": "nothing"}.get(
        type(value).__name__, f"a {type(value).__name__}"
    )
