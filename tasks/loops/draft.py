"""Draft: let a model write the items of a loop for a goal, and create the loop from its answer.

A draft is an ordinary job: it is verified by `loop.draft`, retried with a corrected prompt, and
escalated as any other. What may be created from it was decided when it was asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import TERMINAL, Budget, Job, Output, PolicySpec, RunnerSpec
from mulligan.policies.loops.draft import (
    DRAFT_TASK,
    LOOP_DRAFT,
    DraftRules,
    draft_verifiers,
    draft_workspace,
    rules_of,
)
from mulligan.policies.loops.overview import describe_repository
from mulligan.policies.loops.spec import ItemSpec, LoopConfig, LoopDocument
from mulligan.policies.problem import Problem
from mulligan.policies.repair import wording
from mulligan.policies.repair.free_repair import extract_json
from mulligan.tasks.jobs.submit import store_jobs, submit_jobs
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.loops.change import (
    LoopConflict,
    NoSuchLoop,
    check_item,
    create_loop,
    repository_problems,
    start_new,
)
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.errors import BadInput, refuse
from mulligan.tasks.ports.ledger import Accepted, Claim, JobView, Requester, Written

log = logging.getLogger(__name__)

_AUTO = "draft"
_LONGEST_GOAL = 20_000
_ATTEMPTS = 4


class NoSuchDraft(NoSuchLoop):
    """There is no job of this id that drafts a loop."""


@dataclass(frozen=True, kw_only=True)
class DraftRequest:
    """What somebody wants a loop for, and how it is drafted."""

    goal: str
    #: The loop without its items.
    loop: LoopConfig
    #: Who writes the draft; by default the runner of the loop.
    runner: RunnerSpec | None = None
    #: Programs that the verifiers of the draft may run.
    programs: Sequence[str] = ()
    max_attempts: int = _ATTEMPTS
    budget: Budget = field(default_factory=Budget)
    #: Create and start the loop when a draft passes.
    auto_start: bool = False


@dataclass(frozen=True, kw_only=True)
class DraftAttempt:
    """One attempt at a draft: what was wrong with it."""

    number: int
    score: float | None
    problems: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class DraftView:
    """A draft as it is now."""

    job: JobView
    rules: DraftRules
    attempts: Sequence[DraftAttempt]
    #: The loop, once a draft has passed.
    document: LoopDocument | None
    #: Whether the loop of this name was created from this draft.
    is_created: bool
    #: Why the loop could not be created by itself.
    problem: str = ""


def request_draft(
    context: LoopContext,
    asked: DraftRequest,
    *,
    tenant: str = "",
    owner: str = "",
    key: str | None = None,
) -> Accepted:
    """Submit the job that drafts a loop. Raises BadInput with every problem of the request."""
    job = _checked_job(context, asked, tenant)
    if key is not None:
        job = _with_key(job, key)
    return submit_jobs(context.intake, [job], owner=owner or None)[0]


def join_draft(context: LoopContext, asked: DraftRequest, *, anew: bool = False) -> Accepted:
    """Ask for a draft, or return the one of the same request that still runs or has passed.

    One that has passed counts as long as the repository leads to the same prompt. The key of each
    draft is made of the one before, so that requests at one time are one draft. ``anew``: do not
    return an earlier one.
    """
    job = _checked_job(context, asked, tenant="")
    asks = job.model_copy(update={"prompt": asked.goal})
    key, last = _sha(asks.model_dump_json(exclude_defaults=True)), None
    while found := context.ledger.job(context.intake.new_id(_with_key(job, key), None)):
        key, last = _sha(f"{key}/{found.id}"), found
    if last is not None and not anew:
        passed = last.state == "succeeded" and last.job.prompt == job.prompt
        if passed or last.state not in TERMINAL:
            return Accepted(id=last.id, status="seen")
    (answer,) = store_jobs(context.intake, [_with_key(job, key)])
    return answer if isinstance(answer, Accepted) else Accepted(id=answer.id, status="seen")


def _with_key(job: Job, key: str) -> Job:
    return job.model_copy(update={"idempotency_key": f"draft/{key}"[:500]})


def _sha(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _checked_job(context: LoopContext, asked: DraftRequest, tenant: str) -> Job:
    config = asked.loop.model_copy(update={"specs": ()})
    refuse(_request_problems(context, asked, config))
    refuse(problem.below("loop") for problem in repository_problems(context, config))
    return _draft_job(context, asked, config, tenant)


def _request_problems(
    context: LoopContext, asked: DraftRequest, config: LoopConfig
) -> Sequence[Problem]:
    found = []
    if not asked.goal.strip():
        found.append(Problem.at("goal", "is required: what is to be done?", "missing"))
    if len(asked.goal) > _LONGEST_GOAL:
        message = f"may have {_LONGEST_GOAL:,} characters, not {len(asked.goal):,}"
        found.append(Problem.at("goal", message, "too_long"))
    if config.repo is None:
        message = "is required: a draft is verified in the repository that the loop changes"
        found.append(Problem.at("loop.repo", message, "missing"))
        return found
    found += [each.below("loop") for each in context.check_config(config)]
    # The items are not known yet. What the loop itself says is checked with one that is right.
    sample = ItemSpec.model_validate({"id": "item", "prompt": "-", "verifiers": ["json.object"]})
    found += [each.below("loop") for each in check_item(context, config, sample)]
    if asked.runner is not None:
        job = Job(task_type=DRAFT_TASK, prompt="-", runner=asked.runner, verifiers=sample.verifiers)
        problems = context.intake.problems(job)
        found += [each for each in problems if each.path[:1] == ("runner",)]
    return list(dict.fromkeys(found))


def _draft_job(context: LoopContext, asked: DraftRequest, config: LoopConfig, tenant: str) -> Job:
    rules = DraftRules(loop=config, programs=tuple(asked.programs), auto_start=asked.auto_start)
    labels = {context.tenant_label: tenant} if tenant else {}
    return Job(
        task_type=DRAFT_TASK,
        name=config.name,
        prompt=_prompt(context, asked, config),
        runner=asked.runner or config.runner,
        verifiers=draft_verifiers(rules),
        policy=PolicySpec(max_attempts=asked.max_attempts),
        budget=asked.budget,
        workspace=draft_workspace(config),
        labels={**labels, "loop": config.name},
    )


def _prompt(context: LoopContext, asked: DraftRequest, config: LoopConfig) -> str:
    repository = context.repository(config.repo or "")
    commit = repository.resolve(config.base)
    files = context.files(config.repo or "", commit) if commit is not None else {}
    ways = []
    if context.commands:
        ways.append(wording.DRAFT_COMMAND.format(names=", ".join(context.commands)))
    if asked.programs:
        ways.append(wording.DRAFT_PROGRAM.format(names=", ".join(asked.programs)))
    return wording.DRAFT.format(
        goal=asked.goal.strip(),
        commands=", or ".join(ways) or wording.DRAFT_NOTHING,
        overview=describe_repository(files),
    )


# -- what came of it -------------------------------------------------------------------------------


def read_draft(
    context: LoopContext, job_id: str, *, tenant: str | None = None, owner: str | None = None
) -> DraftView:
    """Return a draft. Raises NoSuchDraft, also if the caller may not see it."""
    job = context.ledger.job(job_id)
    rules = rules_of(job.job) if job is not None else None
    if job is None or rules is None or not _is_visible(job, tenant, owner):
        raise NoSuchDraft(f"there is no draft {job_id!r}")
    reading = context.ledger.read_loop(rules.loop.name)
    is_created = reading is not None and reading.snapshot.loop.draft == job.id
    document = _document_of(job, rules)
    problem = ""
    if document is not None and rules.auto_start and not is_created:
        taken = "another loop has this name" if reading is not None else ""
        problem = taken or "the loop could not be created by itself: create it to learn why"
    return DraftView(
        job=job,
        rules=rules,
        attempts=[
            DraftAttempt(
                number=each.plan.number,
                score=each.score,
                problems=_problems(each.verdict.results if each.verdict else ()),
            )
            for each in job.attempts
            if each.verdict is not None
        ],
        document=document,
        is_created=is_created,
        problem=problem,
    )


def _is_visible(job: JobView, tenant: str | None, owner: str | None) -> bool:
    return tenant in (None, job.tenant) and owner in (None, job.owner)


def _problems(results: Sequence[VerificationResult]) -> list[str]:
    """Return each problem once: what does not fit the contract is no item either."""
    decisive = [each for each in results if each.verifier_id == LOOP_DRAFT and each.errors]
    found = [error.message for each in decisive or results for error in each.errors]
    return list(dict.fromkeys(found))


def _document_of(job: JobView, rules: DraftRules) -> LoopDocument | None:
    best = job.best if job.state == "succeeded" else None
    if best is None or best.output is None:
        return None
    return draft_document(rules, best.output)


def draft_document(rules: DraftRules, output: Output) -> LoopDocument:
    """Return the loop of an answer that has passed `loop.draft`."""
    found: Any = extract_json(output.text, truncated=False).value
    items = found.get("items") if isinstance(found, dict) else None
    try:
        return LoopDocument.model_validate(
            {"loop": rules.loop.model_dump(mode="json", exclude_unset=True), "items": items}
        )
    except ValidationError as error:
        raise BadInput(*problems_of(error, LoopDocument)) from None


def create_drafted(
    context: LoopContext, draft: DraftView, caller: Requester, *, start: bool = False
) -> Written:
    """Create the loop of a draft that has passed. A second time changes nothing."""
    if draft.document is None:
        message = f"the draft has no spec that passed: its job is {draft.job.state}"
        raise LoopConflict(message)
    return _create(context, draft.job, draft.document, caller, start=start)


def create_if_asked(context: LoopContext, claim: Claim, output: Output) -> None:
    """Create and start the loop of a draft that has just passed, if that was asked for.

    It happens before the job is settled. If this process dies in between, the settlement is made
    again, and finds the loop created. What is wrong with the loop does not hold up the job: the
    draft says that it was not created.
    """
    rules = rules_of(claim.job)
    if rules is None or not rules.auto_start:
        return
    job = context.ledger.job(claim.job_id)
    if job is None or job.finished_at is not None:
        return
    try:
        document = draft_document(rules, output)
        _create(context, job, document, Requester(by=_AUTO), start=True)
    except BadInput as error:
        log.warning("The loop %s of a draft was not created: %s", rules.loop.name, error)


def _create(
    context: LoopContext, job: JobView, document: LoopDocument, caller: Requester, *, start: bool
) -> Written:
    belongs = {"tenant": job.tenant or "", "owner": job.owner or ""}
    made = create_loop(context, document, **belongs, by=caller.by, draft=job.id)
    if start:
        start_new(context, document.loop.name, caller)
    return made
