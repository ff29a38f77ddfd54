"""Check the base before an attempt of an item: its work may be there, its verifiers must fail.

Work that is on the branch already, of a run that ended before it could say so, is not done again.
An acceptance verifier that passes before the work proves nothing about it. A guard that fails
before the work would blame it for somebody else's error.
"""

from __future__ import annotations

from collections.abc import Sequence

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Output
from mulligan.policies.loops.checkpoints import ALREADY_DONE
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.jobs.merge import find_merge, item_name, merged_answer, open_repository
from mulligan.tasks.jobs.outcome import Outcome
from mulligan.tasks.jobs.settle import settle_unasked
from mulligan.tasks.jobs.verify import check_one, no_verdict, setup_time, undone, verification_time
from mulligan.tasks.ports.errors import (
    CallCancelled,
    SetupFailed,
    VerifierError,
    WorkspaceUnavailable,
)
from mulligan.tasks.ports.ledger import Claim, Finish
from mulligan.tasks.ports.repositories import BranchCommit
from mulligan.tasks.ports.verifiers import Verifier

#: Why an item of a repository ends before anybody works on it.
NOTHING_FAILS = "nothing_fails_before"
GUARD_FAILS = "guard_fails_before"
_SLACK = 60.0


def check_base(
    context: AttemptContext, claim: Claim, verifiers: Sequence[Verifier]
) -> Outcome | Output | None:
    """Look whether an attempt may begin. Return None, how it ends, or its work on the branch.

    Before the first attempt, the verifiers run on the branch as it is. One acceptance verifier that
    fails is enough. An error is no failure.
    """
    setup = setup_time(claim.job)
    seconds = sum(verification_time(each) + setup for each in verifiers) + _SLACK
    with context.holding(claim.lease, seconds):
        try:
            found = _check(context, claim, verifiers)
        except VerifierError as error:
            return no_verdict(context, claim, error, unasked=True)
        except (WorkspaceUnavailable, CallCancelled) as error:
            return undone(context, claim, error, unasked=True)
        if isinstance(found, tuple):
            return settle_unasked(context, claim, *found)
        return merged_answer(found) if found is not None else None


def _check(
    context: AttemptContext, claim: Claim, verifiers: Sequence[Verifier]
) -> tuple[Finish, list[VerificationResult]] | BranchCommit | None:
    """Raise VerifierError if a guard reaches no verdict."""
    job, space = claim.job, claim.job.workspace
    if space is None or space.git is None or space.branch is None:
        raise ValueError(f"{claim.lease.entry} has no branch")
    repository = open_repository(context, space.git)
    start = repository.resolve(space.ref)
    if start is None:
        return Finish(state="escalated", reason="no_base", detail=f"there is no {space.ref}"), []
    base = repository.begin_branch(space.branch, start)
    history = repository.history(space.branch)
    mine = find_merge(history, item_name(job), claim.job_id)
    if mine is not None or claim.plan.number > 1:
        return mine
    answer = Output(text="", commit=base, base=base)
    options = job.verifiers[-1].options
    results: list[VerificationResult] = []
    acceptance = options.get("acceptance") or ()
    problems = [] if acceptance else ["the item has none"]
    for index in acceptance:
        try:
            result = check_one(claim, answer, index, verifiers[index])
        except SetupFailed:
            raise  # no verifier can run
        except VerifierError as error:
            problems.append(str(error))
            continue
        results.append(result)
        if result.status is VerificationStatus.FAIL:
            break
        if result.status is VerificationStatus.SKIPPED:
            problems.append(f"{job.verifiers[index].label} is skipped: {result.summary}")
    else:
        earlier = None if problems else find_merge(history, item_name(job))
        return earlier or (_nothing_fails(problems, str(options.get("already_done"))), results)
    for index in options.get("guard") or ():
        result = check_one(claim, answer, index, verifiers[index])
        results.append(result)
        if result.status is VerificationStatus.FAIL:
            detail = f"{job.verifiers[index].label} fails before the work: {result.summary}"
            return Finish(state="escalated", reason=GUARD_FAILS, detail=detail), results
    return None


def _nothing_fails(problems: Sequence[str], already_done: str) -> Finish:
    if problems:
        detail = f"no acceptance verifier fails before the work: {problems[0]}"
        return Finish(state="escalated", reason=NOTHING_FAILS, detail=detail)
    detail = "every acceptance verifier passes before the work"
    if already_done == "refuse":
        return Finish(state="escalated", reason=NOTHING_FAILS, detail=detail)
    return Finish(state="cancelled", reason=ALREADY_DONE, detail=detail)
