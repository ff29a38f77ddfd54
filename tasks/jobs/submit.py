"""Submit: check jobs, report every problem, and write them before anything else happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mulligan.policies.cycles.delayed import reformulation_problem
from mulligan.policies.failures.failure import GIVEN_SCORE
from mulligan.policies.jobs.exemption import is_exempt
from mulligan.policies.jobs.job import GIT_DIFF, GIT_MERGE, Job, Workspace
from mulligan.policies.jobs.job_limits import limit_problems
from mulligan.policies.loops.spec import workspace_problems
from mulligan.policies.problem import Problem, until_costly
from mulligan.policies.repair.retry import PASSING_SCORE, leaves_room_to_retry
from mulligan.tasks.jobs.read_job import Check
from mulligan.tasks.ports.errors import refuse
from mulligan.tasks.ports.ledger import (
    Accepted,
    BroughtAttempt,
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
    """The rules for accepting a well-formed job. Checking them contacts nothing."""

    #: Finds every problem of a job's runner, verifiers and workspace.
    check: Check
    prompt_cap: int
    exempt_task_types: Iterable[str]

    def problems(self, job: Job) -> list[Problem]:
        """Return every reason not to accept a well-formed job."""
        found = []
        if job.prompt_size > self.prompt_cap:
            message = (
                f"{job.prompt_size:,} bytes are over the cap of {self.prompt_cap:,}"
                " (prompt_cap in mulligan.toml)"
            )
            found.append(Problem.at("prompt", message, "too_long"))
        exempt = is_exempt(job.task_type, self.exempt_task_types)
        if not leaves_room_to_retry(job.policy, exempt=exempt):
            found.append(Problem.at("policy.max_attempts", TOO_FEW_ATTEMPTS))
        limits = limit_problems(job)
        places = {problem.path for problem in limits}  # one problem is enough for each
        checked = [problem for problem in self.check(job) if problem.path not in places]
        return [*found, *limits, *_external_problems(job), *checked]


TOO_FEW_ATTEMPTS = (
    f"must be 2 or more, because a score below {PASSING_SCORE:g} is always retried once; or add the"
    " task type to exempt_task_types"
)


def _external_problems(job: Job) -> list[Problem]:
    """Return the problems of a reported score and of a reformulated delayed verification."""
    found = []
    given = [spec.id for spec in job.verifiers].count(GIVEN_SCORE)
    if given and (job.subject is None or len(job.verifiers) > 1):
        message = (
            "external.score is only for external work (runner external, subject), and must be the"
            " only verifier"
        )
        found.append(Problem.at("verifiers", message, "not_allowed"))
    if given and job.delayed_verification.mode == "recheck":
        message = "nothing here can check the answer again: use reformulate"
        found.append(Problem.at("delayed_verification.mode", message, "not_allowed"))
    problem = reformulation_problem(job)
    return [*found, problem] if problem else found


@dataclass(frozen=True, kw_only=True)
class Intake(JobRules):
    """The rules, and the ports for storing the jobs that fulfil them."""

    ledger: Ledger
    publish: Callable[[Sequence[Publication]], None]
    #: Turns a workspace's path or profile into a stored snapshot.
    snapshot: Callable[[Workspace], Workspace]
    #: Adds what a job only names: the JSON Schema of a model.
    complete: Callable[[Job], Job] = lambda job: job
    #: Returns the id of a job that an owner submits.
    new_id: Callable[[Job, str | None], str]


def submit_jobs(
    intake: Intake,
    jobs: Sequence[Job],
    *,
    brought: BroughtAttempt | None = None,
    owner: str | None = None,
) -> list[Accepted]:
    """Accept the jobs. If any of them has a problem, store none.

    ``brought``: the first attempt of a single job, which is stored in the same step. ``owner``:
    the producer that submits them.

    A key already used by another job is refused, too. If that job arrives between the check and
    the write, only this one is refused.
    """
    answers = store_jobs(intake, jobs, brought=brought, owner=owner)
    taken = [i for i, answer in enumerate(answers) if isinstance(answer, KeyConflict)]
    refuse(key_problems(jobs, taken))
    return [answer for answer in answers if isinstance(answer, Accepted)]


def store_jobs(
    intake: Intake,
    jobs: Sequence[Job],
    *,
    brought: BroughtAttempt | None = None,
    owner: str | None = None,
    stored: Callable[[int], None] = lambda _: None,
) -> list[Accepted | KeyConflict]:
    """Like submit_jobs, but return each answer. ``stored`` is called with each batch's size."""
    refuse(check_all(intake, jobs))
    jobs = [intake.complete(job) for job in jobs]
    submissions = [
        Submission(
            id=intake.new_id(job, owner), job=_packed(intake, job), brought=brought, owner=owner
        )
        for job in jobs
    ]
    refuse(key_problems(jobs, _key_conflicts(intake.ledger, submissions)))
    answers: list[Accepted | KeyConflict] = []
    for start in range(0, len(submissions), _BATCH):
        batch = intake.ledger.accept(submissions[start : start + _BATCH])
        intake.publish([a.publication for a in batch if isinstance(a, Accepted) and a.publication])
        answers += batch
        stored(len(batch))
    return answers


def _key_conflicts(ledger: JobLedger, submissions: Sequence[Submission]) -> list[int]:
    """Return the indices of jobs whose key is in use. A single job is refused when written."""
    keyed = [each for each in submissions if each.job.idempotency_key is not None]
    if not keyed or len(submissions) == 1:
        return []
    in_use = ledger.conflicts(keyed)
    first: dict[str, Job] = {}
    return [
        index
        for index, each in enumerate(submissions)
        if each.id in in_use or first.setdefault(each.name, each.job) != each.job
    ]


def check_all(rules: JobRules, jobs: Sequence[Job]) -> list[Problem]:
    """Return every problem of every job, up to one that is too costly to check."""
    return until_costly(
        problem.of_job(_index(i, jobs))
        for i, job in enumerate(jobs)
        for problem in (*_loop_problems(job), *rules.problems(job))
    )


def _loop_problems(job: Job) -> list[Problem]:
    """Refuse what only the items of a loop have: a branch, and verifiers that are about it."""
    found = [
        Problem(f"{spec.id} belongs to the items of a loop", ("verifiers", index), "not_allowed")
        for index, spec in enumerate(job.verifiers)
        if spec.id in (GIT_DIFF, GIT_MERGE)
    ]
    return [*found, *workspace_problems(job.workspace)]


def key_problems(jobs: Sequence[Job], indices: Sequence[int]) -> list[Problem]:
    """Return the problems of the jobs at these indices, whose keys are in use."""
    return [
        Problem.at(
            "idempotency_key", f"{jobs[i].idempotency_key!r} was used for another job", "key_in_use"
        ).of_job(_index(i, jobs))
        for i in indices
    ]


def _index(index: int, jobs: Sequence[Job]) -> int | None:
    """Return the index for problems; a job that is submitted alone has none."""
    return index if len(jobs) > 1 else None


def _packed(intake: Intake, job: Job) -> Job:
    if job.workspace is None or job.workspace.snapshot is not None:
        return job
    return job.model_copy(update={"workspace": intake.snapshot(job.workspace)})
