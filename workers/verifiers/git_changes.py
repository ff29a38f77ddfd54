"""``git.diff`` and ``git.merge``: what an item of a repository begins and ends with.

Only loops have them. The merge itself is made by ``tasks/jobs/merge.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import ClassVar, Literal

from pydantic import Field

from mulligan.policies.failures.failure import (
    FailureKind,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import GIT_DIFF, GIT_MERGE
from mulligan.policies.value import Value
from mulligan.tasks.jobs.merge import NOT_MERGED
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.repositories import ChangedFile
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.file_tree import Tree, leaves_tree
from mulligan.workers.sandbox.hidden_modules import HiddenModules
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.protection import ALWAYS, Protection
from mulligan.workers.sandbox.workspace import git_trees

_MOST_FINDINGS = 50
#: The lines that git puts around the sides of a conflict.
_MARKS = (b"\n<<<<<<< ", b"\n=======\n", b"\n>>>>>>> ")


class GitDiff:
    """The change touches no protected file and is complete.

    Codes: ``no_change``, ``left_out``, ``protected_changed``, ``protected_hidden``,
    ``leaves_tree``, ``conflict_markers``. Evidence: ``files``.
    """

    id: ClassVar[str] = GIT_DIFF
    slow: bool = True
    needs_blobs: ClassVar[bool] = True
    longest: ClassVar[float] = 300.0

    class Options(Value):
        pass

    def __init__(
        self,
        options: Options,
        *,
        blobs: BlobStore | None = None,
        limits: Limits | None = None,
        root: Path | None = None,
    ) -> None:
        del options, limits, root  # no code of the answer runs
        self._blobs = blobs

    def verify(self, candidate: Candidate) -> VerificationResult:
        started, space, output = perf_counter(), candidate.workspace, candidate.output
        if space is None or space.git is None or output.base is None:
            return VerificationResult(status=VerificationStatus.SKIPPED, verifier_id=self.id)
        trees, commit = git_trees(self._blobs), output.commit or output.base
        changes = trees.changes(space.git, output.base, commit)
        findings = [*_findings(changes, Protection(space.protect))]
        if not changes:
            why = f" ({output.not_saved})" if output.not_saved else ""
            said = f"no file was changed{why}"
            findings.append(Finding(message=said, code="no_change", actual=output.not_saved))
        else:
            before, after = trees.tree(space.git, output.base), trees.tree(space.git, commit)
            if lacks := output.not_saved:
                findings.append(Finding(message=lacks, code="left_out", actual=lacks))
            findings += _leaving(changes)
            findings += _hiding(changes, Protection(space.protect).hidden_modules(before))
            findings += _marks(changes, after, before)
        summary = f"{len(changes)} file{'s' * (len(changes) != 1)} changed"
        return VerificationResult(
            status=VerificationStatus.FAIL if findings else VerificationStatus.PASS,
            verifier_id=self.id,
            summary=_said(findings[0]) if findings else summary,
            evidence={
                "kind": FailureKind.REASONING_ERROR.value,
                "files": [each.path for each in changes[:_MOST_FINDINGS]],
            },
            errors=tuple(findings[:_MOST_FINDINGS]),
            elapsed_seconds=perf_counter() - started,
        )


def _said(finding: Finding) -> str:
    return f"{finding.path}: {finding.message}" if finding.path else finding.message


def _findings(changes: Sequence[ChangedFile], protection: Protection) -> Iterator[Finding]:
    """Yield the protected files that are changed or deleted, and new ones of the test run."""
    words = {"added": "it must not be added", "changed": "it was changed", "deleted": "it is gone"}
    for each in changes:
        if (ALWAYS if each.kind == "added" else protection).covers(each.path):
            yield Finding(message=words[each.kind], code="protected_changed", path=each.path)


def _leaving(changes: Sequence[ChangedFile]) -> Iterator[Finding]:
    """Yield the links that are left out of every checkout that is verified."""
    for each in changes:
        if each.link is not None and leaves_tree(each.path, each.link):
            message = f"it leads out of the repository, to {each.link}"
            yield Finding(message=message, code="leaves_tree", path=each.path)


def _hiding(changes: Sequence[ChangedFile], hidden: HiddenModules) -> Iterator[Finding]:
    """Yield the new files that Python would import instead of protected ones."""
    for each in changes:
        reason = hidden.reason(each.path, is_link=each.link is not None)
        if each.kind == "added" and reason and not ALWAYS.covers(each.path):
            yield Finding(message=reason, code="protected_hidden", path=each.path)


def _marks(changes: Sequence[ChangedFile], tree: Tree, base: Tree) -> Iterator[Finding]:
    """Yield the files with conflicts that nobody resolved. A manual of git may have quoted some."""
    for each in changes:
        if _is_marked(tree, each.path) and not _is_marked(base, each.path):
            message = "a conflict in it is not resolved"
            yield Finding(message=message, code="conflict_markers", path=each.path)


def _is_marked(tree: Tree, path: str) -> bool:
    node = tree.get(path)
    return node is not None and all(mark in b"\n" + node.content for mark in _MARKS)


class GitMerge:
    """The work is merged into the branch of its loop."""

    id: ClassVar[str] = GIT_MERGE
    slow: bool = True
    longest: ClassVar[float] = 300.0

    class Options(Value):
        #: The indices of the verifiers of each role.
        acceptance: tuple[int, ...] = ()
        guard: tuple[int, ...] = ()
        already_done: Literal["skip", "refuse"] = "skip"
        #: A branch whose new commits are merged, too.
        sync: str | None = Field(default=None, min_length=1)
        #: What the commit is called; by default the beginning of the prompt.
        title: str = ""
        #: A commit that is only verified: nobody works, and nothing is merged.
        check: str = ""

    def __init__(self, options: Options) -> None:
        self.options = options

    def verify(self, candidate: Candidate) -> VerificationResult:
        """A merge is made once, when everything else is verified."""
        del candidate
        return NOT_MERGED
