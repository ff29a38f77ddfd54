"""The port for git repositories: where the work of loops is kept, and what it is merged into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Literal, Protocol

from mulligan.tasks.ports.errors import BadInput

#: Where the work and the transcripts of attempts are kept: below these, by loop, item and attempt.
ATTEMPTS = "refs/mulligan/attempts/"
TRANSCRIPTS = "refs/mulligan/transcripts/"
#: Trailers of the commits that mulligan makes on the branch of a loop.
ATTEMPT_TRAILER = "Mulligan-Attempt"
ITEM_TRAILER = "Mulligan-Item"
ROLLBACK_TRAILER = "Mulligan-Rollback"
UNDONE_TRAILER = "Mulligan-Undone"
RESTORED_TRAILER = "Mulligan-Restored"
SYNC_TRAILER = "Mulligan-Sync"
BATCH_TRAILER = "Mulligan-Batch"
BESIDE_TRAILER = "Mulligan-Beside"


@dataclass(frozen=True, kw_only=True)
class ConflictingFile:
    """A file that two sides changed differently."""

    path: str
    #: Its conflicting parts with git's markers, shortened; empty if it is not text.
    hunks: str = ""


@dataclass(frozen=True, kw_only=True)
class MergedTree:
    """The tree of a merge. A tree with conflicts contains git's markers."""

    tree: str
    conflicts: tuple[ConflictingFile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fence:
    """The right to write to the branch of a loop, until somebody else takes it.

    A loop has one for each group of its items. Who has different ones is told apart by the branch.
    """

    loop: str
    #: The group whose merges it is for; empty: rollbacks, deliveries, and loops with one group.
    group: str = ""
    #: The object that the fence's reference names while it is ours.
    value: str


@dataclass(frozen=True, kw_only=True)
class BranchCommit:
    """A commit on a branch."""

    commit: str
    tree: str
    parents: tuple[str, ...]
    at: float
    subject: str
    trailers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ChangedFile:
    """A file that differs between two commits."""

    path: str
    kind: Literal["added", "changed", "deleted"]
    #: Lines; None if it is not text.
    added: int | None = None
    removed: int | None = None
    #: Where it leads to now, if it is a symbolic link.
    link: str | None = None


@dataclass(frozen=True, kw_only=True)
class SavedWork:
    """Work of an attempt that is kept in the repository."""

    ref: str
    commit: str
    at: float
    item: str
    #: As commits name it: the job and the number.
    attempt: str
    #: The commit that it was made from; empty if there is none.
    base: str = ""


class Repository(Protocol):
    """One git repository, wherever it is. No user's branch, index or working tree is touched.

    Every method raises RepositoryUnavailable if the repository cannot be reached. Commits and trees
    are named by their full ids. A method that is repeated after a lost answer is harmless.
    """

    @property
    def identity(self) -> str:
        """What tells it from other repositories, whether a path, a URL or a profile named it."""

    def resolve(self, ref: str) -> str | None:
        """Return the commit of a branch, tag, ``HEAD`` or id; None if there is none."""

    def begin_branch(self, branch: str, start: str) -> str:
        """Return the tip of a branch, which is made at the commit ``start`` if there is none."""

    def checked_out(self, branch: str) -> str | None:
        """Return the directory in which a branch is checked out, if it can be seen."""

    def in_the_way(self, branch: str) -> str | None:
        """Return a branch because of which this one cannot be made: git keeps `a/b` below `a`."""

    def tree_of(self, commit: str) -> str:
        """Return the tree of a commit."""

    def history(self, branch: str, *, until: str | None = None) -> Sequence[BranchCommit]:
        """Return the commits on a branch by first parents, the newest first.

        ``until``: the oldest one that is not part of it. None, or a commit that is not found: the
        whole history, up to a limit.
        """

    def contains(self, branch: str, commit: str) -> bool:
        """Whether a commit is an ancestor of a branch."""

    def merge(self, ours: str, theirs: str, *, base: str | None = None) -> MergedTree:
        """Merge two commits without a checkout. ``base``: instead of their common ancestor."""

    def commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        """Make a commit that no branch has yet."""

    def take_fence(self, loop: str, group: str = "") -> Fence:
        """Take the right to write to the loop's branch. Whoever had it can write no more."""

    def land(self, branch: str, *, old: str, new: str, fence: Fence) -> Fence | None:
        """Move a branch from ``old`` to ``new``, and the fence with it, in one transaction.

        Return the fence as it is now. None: the branch or the fence has moved, nothing changed.
        """

    def changes(self, old: str, new: str) -> Sequence[ChangedFile]:
        """Return the files that differ between two commits or trees."""

    def diff(self, old: str, new: str, *, max_bytes: int) -> str:
        """Return the difference between two commits or trees as text, cut at a length."""

    def saved(self, loop: str, item: str | None = None) -> Sequence[SavedWork]:
        """Return the work of attempts that is kept for a loop or an item, the oldest first."""

    def transcripts(self, loop: str) -> Sequence[SavedWork]:
        """Return the transcripts of attempts that are kept for a loop, the oldest first."""

    def transcript(self, loop: str, item: str, attempt: str) -> Mapping[str, bytes]:
        """Return the files of the newest transcript of an attempt, named as in SavedWork."""

    def forget(self, refs: Sequence[str]) -> None:
        """Remove references below ``refs/mulligan/``."""

    def export_work(self, loop: str, branch: str, base: str, into: IO[bytes]) -> Mapping[str, str]:
        """Write the objects of a loop that its ``base`` has not, as a pack.

        Return the references that need them: the branch, the saved work and the transcripts.
        """

    def import_work(
        self, loop: str, branch: str, base: str, refs: Mapping[str, str], pack: IO[bytes] | None
    ) -> None:
        """Take over what `export_work` wrote elsewhere.

        Raises BadInput for any reference that is not the loop's, for objects that are damaged or
        incomplete, and for a branch that would lose commits.
        """


class Repositories(Protocol):
    """The repositories that this process can reach."""

    def open(self, name: str) -> Repository:
        """Return a repository by the name of a profile, its URL or its path. Raises BadInput."""


def no_repository(name: str) -> Repository:
    """Refuse: of a process that works in no repository."""
    raise BadInput.at("workspace.git", f"{name} cannot be used here")
