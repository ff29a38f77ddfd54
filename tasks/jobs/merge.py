"""Merges as commits and as results: what they are called, and how they are found again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mulligan.policies.failures.causes import VERIFIERS
from mulligan.policies.failures.failure import (
    FailureKind,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import GIT_MERGE, Job, Output, Usage, Workspace
from mulligan.policies.loops.checkpoints import taken_out
from mulligan.policies.repair.retry import MERGE_CONFLICT
from mulligan.tasks.jobs.context import AttemptContext
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
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
    undone = _undone_attempts(history)
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


def is_undone(history: Sequence[BranchCommit], merge: BranchCommit) -> bool:
    """Whether a rollback has undone a merge."""
    return merge.trailers.get(ATTEMPT_TRAILER) in _undone_attempts(history)


def _undone_attempts(history: Sequence[BranchCommit]) -> Collection[str]:
    return taken_out(
        (names_in(each, UNDONE_TRAILER), names_in(each, RESTORED_TRAILER)) for each in history
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


def upstream_of(job: Job) -> str | None:
    name = job.verifiers[-1].options.get("sync")
    return str(name) if name else None


def synced_tip(
    repository: Repository, job: Job, branch: str, tip: str
) -> tuple[str, tuple[str, ...]]:
    """Return the commit to merge into: the tip, or one with what is new upstream."""
    name = upstream_of(job)
    upstream = repository.resolve(name) if name else None
    if upstream is None or repository.contains(branch, upstream):
        return tip, ()
    merged = repository.merge(tip, upstream)
    if merged.conflicts:
        paths = ", ".join(each.path for each in merged.conflicts[:3])
        return tip, (f"{name} was not merged: it conflicts with {branch} in {paths}",)
    message = f"Merge {name}\n\n{SYNC_TRAILER}: {upstream}\n"
    return repository.commit(merged.tree, (tip, upstream), message), ()


def commit_message(claim: Claim, how: Mapping[str, str] | None = None) -> str:
    """Return the message of a merge. Its trailers say what was merged, and ``how``."""
    title = str(claim.job.verifiers[-1].options.get("title") or claim.job.task_text[:200])
    first = " ".join(title.split())
    subject = f"{claim.job.labels['item']}: {first}"[:_LONGEST_SUBJECT]
    names = {
        ATTEMPT_TRAILER: attempt_name(claim),
        ITEM_TRAILER: item_name(claim.job),
        **(how or {}),
    }
    trailers = "".join(f"{name}: {value}\n" for name, value in names.items())
    return f"{subject}\n\n{trailers}"


def merged_result(
    commit: str, space: Workspace, what: str, warnings: tuple[str, ...] = ()
) -> VerificationResult:
    return VerificationResult(
        status=VerificationStatus.PASS,
        verifier_id=GIT_MERGE,
        summary=f"{what} into {space.branch} as {commit[:10]}",
        evidence={"commit": commit, "branch": space.branch},
        warnings=warnings,
    )


def conflict_result(merged: MergedTree, tip: str) -> VerificationResult:
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


def undone_result(merge: BranchCommit) -> VerificationResult:
    """Return the result of work that was merged, and taken back before that was recorded."""
    said = "a rollback has taken it back from the branch"
    return VerificationResult(
        status=VerificationStatus.FAIL,
        verifier_id=GIT_MERGE,
        summary=f"it was merged as {merge.commit[:10]}, but {said}",
        evidence={"kind": FailureKind.MISSING_CONTEXT.value, "commit": merge.commit},
        errors=(Finding(message=said, code="rolled_back", expected=merge.commit),),
    )


def fails_together(failed: VerificationResult) -> VerificationResult:
    """Return the failure of a merged tree whose parts pass alone as a result of the merge."""
    kind = VERIFIERS.get(failed.verifier_id, FailureKind.TEST_FAILED)
    return failed.model_copy(
        update={
            "verifier_id": GIT_MERGE,
            "summary": f"it passes alone, but not with what was merged meanwhile: {failed.summary}",
            "evidence": {"kind": kind.value, **failed.evidence},
        }
    )
