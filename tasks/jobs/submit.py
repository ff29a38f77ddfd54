"""Submit: check jobs with every problem named, then write them before anything else happens."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from mulligan.policies.cycles.delayed import reformulation_problem
from mulligan.policies.failures.failure import GIVEN_SCORE
from mulligan.policies.jobs.job import Job, Workspace
from mulligan.policies.problem import Problem
from mulligan.policies.repair.retry import leaves_room_to_retry
from mulligan.tasks.jobs.read_job import Check
from mulligan.tasks.ports.errors import refuse
from mulligan.tasks.ports.ledger import (
    Accepted,
    JobLedger,
    KeyConflict,
    Ledger,
    Publication,
    Submission,
)

#: Jobs per round trip.
_BATCH = 100


@dataclass(frozen=True, kw_only=True)
class JobRules:
    """What a well-formed job must fulfil to be accepted. Checking contacts nothing."""

    #: Every problem of a job's runner, verifiers and workspace.
    check: Check
    prompt_cap: int
    exempt_task_types: Container[str]

    def problems(self, job: Job) -> list[Problem]:
        """Everything that keeps a well-formed job from being accepted."""
        found = []
        if job.prompt_size > self.prompt_cap:
            message = (
                f"{job.prompt_size:,} bytes are over the cap of {self.prompt_cap:,}"
                " (prompt_cap in mulligan.toml)"
            )
            found.append(Problem.at("prompt", message, "too_long"))
        exempt = job.task_type in self.exempt_task_types
        if not leaves_room_to_retry(job.policy, exempt=exempt):
            found.append(Problem.at("policy.max_attempts", TOO_FEW_ATTEMPTS))
        return [*found, *_external_problems(job), *self.check(job)]


#: What is wrong with a job of one attempt whose type is not exempt.
TOO_FEW_ATTEMPTS = (
    "must be 2 or more, because a score below 70 is always retried once; or add the task type to"
    " exempt_task_types"
)


def _external_problems(job: Job) -> list[Problem]:
    """What rules out a score from elsewhere, and a delayed verification in other words."""
    found = []
    given = [spec.id for spec in job.verifiers].count(GIVEN_SCORE)
    if given and (job.subject is None or len(job.verifiers) > 1):
        message = (
            "external.score is for work done elsewhere (runner external, subject), and stands alone"
        )
        found.append(Problem.at("verifiers", message, "not_allowed"))
    if given and job.delayed_verification.mode == "recheck":
        message = "nothing here can check the answer again: use reformulate"
        found.append(Problem.at("delayed_verification.mode", message, "not_allowed"))
    problem = reformulation_problem(job)
    return [*found, problem] if problem else found


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


def submit_jobs(intake: Intake, jobs: Sequence[Job]) -> list[Accepted]:
    """Accept the jobs: nothing is stored while any of them has a problem.

    A key already used by another job is refused, too. If that job arrives between the check and
    the write, only this one is refused.
    """
    answers = store_jobs(intake, jobs)
    taken = [i for i, answer in enumerate(answers) if isinstance(answer, KeyConflict)]
    refuse(key_problems(jobs, taken))
    return [answer for answer in answers if isinstance(answer, Accepted)]


def store_jobs(
    intake: Intake, jobs: Sequence[Job], *, stored: Callable[[int], None] = lambda _: None
) -> list[Accepted | KeyConflict]:
    """As submit_jobs, with the answer for each; ``stored`` is told how many more are written."""
    refuse(check_all(intake, jobs))
    jobs = [intake.complete(job) for job in jobs]
    submissions = [Submission(id=intake.new_id(job), job=_packed(intake, job)) for job in jobs]
    refuse(key_problems(jobs, _taken(intake.ledger, submissions)))
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


def check_all(rules: JobRules, jobs: Sequence[Job]) -> list[Problem]:
    """Every problem of every job."""
    return [
        problem.of_job(_index(i, jobs))
        for i, job in enumerate(jobs)
        for problem in rules.problems(job)
    ]


def key_problems(jobs: Sequence[Job], places: Sequence[int]) -> list[Problem]:
    """What to say of the jobs at these places, whose keys are other jobs'."""
    return [
        Problem.at(
            "idempotency_key", f"{jobs[i].idempotency_key!r} was used for another job", "key_in_use"
        ).of_job(_index(i, jobs))
        for i in places
    ]


def _index(place: int, jobs: Sequence[Job]) -> int | None:
    """A job that is submitted alone has none."""
    return place if len(jobs) > 1 else None


def _packed(intake: Intake, job: Job) -> Job:
    if job.workspace is None or job.workspace.snapshot is not None:
        return job
    return job.model_copy(update={"workspace": intake.snapshot(job.workspace)})
