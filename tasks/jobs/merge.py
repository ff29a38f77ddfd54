"""Merge: the last verification of an attempt lands its work on the branch of its loop.

Whoever does it first takes the loop's fence: another merger, which may only be slow, can then land
nothing any more. So looking whether the work is on the branch already gives an answer that stays
true, and a merge that is claimed again after a crash is not made twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mulligan.policies.failures.causes import VERIFIERS
from mulligan.policies.failures.failure import (
    FailureKind,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import GIT_MERGE, TERMINAL, Job, Output, Usage, Workspace
from mulligan.policies.loops.checkpoints import taken_out
from mulligan.policies.repair.retry import MERGE_CONFLICT
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.ports.errors import (
    BadInput,
    CallCancelled,
    RepositoryUnavailable,
    WorkspaceUnavailable,
)
from mulligan.tasks.ports.leases import HeldLease
from mulligan.tasks.ports.ledger import Claim
from mulligan.tasks.ports.repositories import (
    ATTEMPT_TRAILER,
    ITEM_TRAILER,
    RESTORED_TRAILER,
    SYNC_TRAILER,
    UNDONE_TRAILER,
    BranchCommit,
    MergedTree,
    Repository,
)

#: Runs the other verifiers on a tree. Returns what fails, if it does.
VerifyTree = Callable[[Output], VerificationResult | None]

#: Tries while others write to the branch.
_TRIES = 5
#: Seconds for git itself, besides the verifiers of a merged tree.
GIT_SECONDS = 300.0
_LONGEST_SUBJECT = 72
_MOST_CONFLICTS = 20

NOT_MERGED = VerificationResult(
    status=VerificationStatus.SKIPPED, verifier_id=GIT_MERGE, summary="not merged"
)


def merge_index(job: Job) -> int | None:
    """Return the index of the merge among a job's verifiers; None for a job without one."""
    return len(job.verifiers) - 1 if job.merges and job.verifiers[-1].id == GIT_MERGE else None


def attempt_name(claim: Claim) -> str:
    """Return how a commit names its attempt."""
    return f"{claim.job_id}/{claim.plan.number}"


def item_name(job: Job) -> str:
    """Return how a commit names its item."""
    return f"{job.labels['loop']}/{job.labels['item']}"


def find_commit(history: Sequence[BranchCommit], trailer: str, value: str) -> BranchCommit | None:
    """Return the newest commit with a trailer."""
    return next((each for each in history if each.trailers.get(trailer) == value), None)


def find_merge(history: Sequence[BranchCommit], item: str, job: str = "") -> BranchCommit | None:
    """Return the newest merge of an item, by one job or by any, that no rollback has undone."""
    undone = taken_out(
        (names_in(each, UNDONE_TRAILER), names_in(each, RESTORED_TRAILER)) for each in history
    )
    return next(
        (
            each
            for each in history
            if each.trailers.get(ITEM_TRAILER) == item
            and (by := each.trailers.get(ATTEMPT_TRAILER, "")) not in undone
            and job in ("", by.partition("/")[0])
        ),
        None,
    )


def merged_answer(merge: BranchCommit) -> Output:
    """Return work that was found on the branch as an answer, for which nobody was asked."""
    nothing = Usage(prompt_tokens=0, completion_tokens=0, total_tokens=0)
    return Output(text="", usage=nothing, commit=merge.commit, base=merge.parents[0])


def names_in(commit: BranchCommit, trailer: str) -> tuple[str, ...]:
    """Return the attempts that a trailer of a commit names."""
    return tuple(commit.trailers.get(trailer, "").split())


def open_repository(context: AttemptContext, name: str) -> Repository:
    """Open a repository that was accepted with its job. Raises RepositoryUnavailable.

    If this worker cannot reach it, that says nothing about the job: another one may.
    """
    try:
        return context.repository(name)
    except BadInput as error:
        raise RepositoryUnavailable(str(error)) from error


def merge_attempt(
    context: AttemptContext,
    claim: Claim,
    output: Output,
    held: HeldLease,
    verify_tree: VerifyTree,
) -> VerificationResult:
    """Merge an attempt's work into the branch, unless it is there already.

    Raises CallCancelled if the lease is lost, and WorkspaceUnavailable.
    """
    space = claim.job.workspace
    if space is None or space.git is None or space.branch is None or output.commit is None:
        raise ValueError(f"{claim.lease.entry} has nothing to merge")
    repository = open_repository(context, space.git)
    for _ in range(_TRIES):
        fence = repository.take_fence(claim.job.labels["loop"])
        context.step("merge_fenced", claim.lease.entry)
        tip = repository.begin_branch(space.branch, output.base or output.commit)
        history = repository.history(space.branch, until=output.base)
        done = find_commit(history, ATTEMPT_TRAILER, attempt_name(claim))
        if done := done or next((each for each in history if each.commit == output.commit), None):
            return _merged(done.commit, space, "was merged before")
        ours, warnings = _synced(repository, claim.job, space.branch, tip)
        made = _merge_into(context, repository, claim, output, ours, verify_tree)
        if isinstance(made, VerificationResult) and ours != tip:
            # The next attempt would begin without what is new there, and fail in the same way.
            warnings = (f"{_upstream(claim.job)} was not merged: with it, {made.summary}",)
            made = _merge_into(context, repository, claim, output, tip, verify_tree)
        if isinstance(made, VerificationResult):
            return made
        if not held.is_sure():
            raise CallCancelled("the lease is lost, so the work must not be merged")
        # In this order: the rollback's end and the cancellations that follow from it are one write.
        if _rolls_back(context, claim.job.labels["loop"]):
            raise WorkspaceUnavailable("a rollback of the loop is being made")
        if _has_ended(context, claim.job_id):  # a person cancelled it, which ends no lease
            raise WorkspaceUnavailable("the job has ended, so the work must not be merged")
        if repository.land(space.branch, old=tip, new=made, fence=fence) is not None:
            context.step("merge_landed", claim.lease.entry)
            return _merged(made, space, "merged", warnings)
    raise RepositoryUnavailable(f"{space.branch} was changed {_TRIES} times during the merge")


def _rolls_back(context: AttemptContext, loop: str) -> bool:
    """Whether a rollback is pending. What it undoes may be what this work was built on."""
    reading = context.ledger.read_loop(loop)
    return reading is not None and bool(reading.snapshot.loop.rollback)


def _has_ended(context: AttemptContext, job_id: str) -> bool:
    view = context.ledger.job(job_id)
    return view is None or view.state in TERMINAL


def _merge_into(
    context: AttemptContext,
    repository: Repository,
    claim: Claim,
    output: Output,
    ours: str,
    verify_tree: VerifyTree,
) -> str | VerificationResult:
    """Merge an attempt's work into a commit, on no branch. Return what fails, if it does."""
    commit = output.commit or ""
    merged = repository.merge(ours, commit)
    if merged.conflicts:
        return _conflict(merged, ours)
    made = repository.commit(merged.tree, (ours, commit), _message(claim))
    if merged.tree != repository.tree_of(commit):
        if failed := verify_tree(output.model_copy(update={"commit": made, "base": ours})):
            return _fails_together(failed)
        context.step("merge_verified", claim.lease.entry)
    return made


def _upstream(job: Job) -> str | None:
    name = job.verifiers[-1].options.get("sync")
    return str(name) if name else None


def _synced(repository: Repository, job: Job, branch: str, tip: str) -> tuple[str, tuple[str, ...]]:
    """Return the commit to merge into: the tip, or one with what is new upstream."""
    name = _upstream(job)
    upstream = repository.resolve(name) if name else None
    if upstream is None or repository.contains(branch, upstream):
        return tip, ()
    merged = repository.merge(tip, upstream)
    if merged.conflicts:
        paths = ", ".join(each.path for each in merged.conflicts[:3])
        return tip, (f"{name} was not merged: it conflicts with {branch} in {paths}",)
    message = f"Merge {name}\n\n{SYNC_TRAILER}: {upstream}\n"
    return repository.commit(merged.tree, (tip, upstream), message), ()


def _message(claim: Claim) -> str:
    """Return the message of a merge. Its trailers say what was merged."""
    title = str(claim.job.verifiers[-1].options.get("title") or claim.job.task_text[:200])
    first = " ".join(title.split())
    subject = f"{claim.job.labels['item']}: {first}"[:_LONGEST_SUBJECT]
    names = {ATTEMPT_TRAILER: attempt_name(claim), ITEM_TRAILER: item_name(claim.job)}
    trailers = "".join(f"{name}: {value}\n" for name, value in names.items())
    return f"{subject}\n\n{trailers}"


def _merged(
    commit: str, space: Workspace, what: str, warnings: tuple[str, ...] = ()
) -> VerificationResult:
    return VerificationResult(
        status=VerificationStatus.PASS,
        verifier_id=GIT_MERGE,
        summary=f"{what} into {space.branch} as {commit[:10]}",
        evidence={"commit": commit, "branch": space.branch},
        warnings=warnings,
    )


def _conflict(merged: MergedTree, tip: str) -> VerificationResult:
    """Return the result of work that does not fit together with the branch.

    The tip is part of each finding, so that a conflict with other work is another failure.
    """
    found = merged.conflicts[:_MOST_CONFLICTS]
    hunks = "\n\n".join(f"{each.path}\n{each.hunks}".strip() for each in found)
    paths = ", ".join(each.path for each in found[:3])
    return VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id=GIT_MERGE,
        summary=f"it conflicts with what was merged meanwhile: {paths}",
        evidence={
            "kind": FailureKind.MISSING_CONTEXT.value,
            "conflicts": hunks,
            "base": tip,
        },
        errors=tuple(
            Finding(
                message="both sides changed the same lines",
                code=MERGE_CONFLICT,
                path=each.path,
                expected=tip,
            )
            for each in found
        ),
    )


def _fails_together(failed: VerificationResult) -> VerificationResult:
    """Return the failure of a merged tree whose parts pass alone as a result of the merge."""
    kind = VERIFIERS.get(failed.verifier_id, FailureKind.TEST_FAILED)
    return failed.model_copy(
        update={
            "verifier_id": GIT_MERGE,
            "summary": f"it passes alone, but not with what was merged meanwhile: {failed.summary}",
            "evidence": {"kind": kind.value, **failed.evidence},
        }
    )
