"""One git repository. Where its references are is up to its subclasses."""

from __future__ import annotations

import abc
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.repositories import (
    ATTEMPT_TRAILER,
    ATTEMPTS,
    TRANSCRIPTS,
    BranchCommit,
    ChangedFile,
    Fence,
    MergedTree,
    SavedWork,
)
from mulligan.workers.repositories import moved_work, object_reading
from mulligan.workers.repositories.git_command import Git
from mulligan.workers.repositories.git_directory import ObjectFormat
from mulligan.workers.repositories.merge_tree import merge_commits, merge_on_base
from mulligan.workers.repositories.ref_names import (
    OURS,
    AttemptName,
    branch_ref,
    fence_ref,
    is_ref,
    refs_below,
)

_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORTEST_ID = 4
#: How often somebody else may come first.
_MOST_RACES = 20


def is_id(text: str) -> bool:
    """Whether a text is the full id of an object."""
    return _ID.fullmatch(text) is not None


def is_abbreviated(text: str) -> bool:
    """Whether a text can be the start of an id."""
    return len(text) >= _SHORTEST_ID and all(c in "0123456789abcdef" for c in text)


@dataclass(frozen=True)
class RefMove:
    """A reference and its change. None: it does not exist."""

    ref: str
    old: str | None
    new: str | None


class MoveRefused(RepositoryUnavailable):
    """Git moved no reference, for another reason than that one of them had moved."""


class GitRepository(abc.ABC):
    """One git repository. See the port ``Repository`` for the contract of its methods."""

    #: What messages call it: its path, or its URL without credentials.
    name: str
    object_format: ObjectFormat

    # -- what differs between local and remote ones ------------------------------------------------

    @property
    @abc.abstractmethod
    def identity(self) -> str: ...

    @property
    @abc.abstractmethod
    def objects(self) -> Git:
        """Git that reads and writes objects here, isolated."""

    @property
    @abc.abstractmethod
    def object_directory(self) -> Path:
        """Where its objects are on this host."""

    @property
    def shallow_file(self) -> Path | None:
        """The file that says where its history is cut off, if it can be."""
        return None

    @abc.abstractmethod
    def resolve(self, ref: str) -> str | None: ...

    @abc.abstractmethod
    def checked_out(self, branch: str) -> str | None: ...

    @abc.abstractmethod
    def _below(self, start: str) -> dict[str, str]:
        """Return the references that begin so, with their commits, which are here then."""

    @abc.abstractmethod
    def _names_below(self, start: str) -> Collection[str]:
        """Return the references that begin so."""

    def saved(self, loop: str, item: str | None = None) -> Sequence[SavedWork]:
        return self._dated(self._below(refs_below(ATTEMPTS, loop, item)))

    def kept(self) -> int:
        """Return how many attempts have saved work or a transcript here, of all loops."""
        found = [ref for start in (ATTEMPTS, TRANSCRIPTS) for ref in self._names_below(start)]
        return len({ref.removeprefix(ATTEMPTS).removeprefix(TRANSCRIPTS) for ref in found})

    def transcripts(self, loop: str) -> Sequence[SavedWork]:
        return self._dated(self._below(refs_below(TRANSCRIPTS, loop)))

    def transcript(self, loop: str, item: str, attempt: str) -> dict[str, bytes]:
        found = self._dated(self._below(refs_below(TRANSCRIPTS, loop, item)))
        newest = [each.commit for each in found if each.attempt == attempt][-1:]
        return object_reading.files_of(self.objects, newest[0]) if newest else {}

    @abc.abstractmethod
    def tips(self, refs: Sequence[str]) -> dict[str, str]:
        """Return what references are now, and have these objects on this host."""

    @abc.abstractmethod
    def using(self) -> AbstractContextManager[None]:
        """Keep its objects on this host until the end."""

    @abc.abstractmethod
    def read_refs(self, refs: Sequence[str]) -> dict[str, str]:
        """Return what references are now."""

    @abc.abstractmethod
    def _write(self, moves: Sequence[RefMove], source: Git | None, known: Sequence[str]) -> None:
        """Move references, all or none. Any error may mean that nothing or everything happened.

        ``source`` has the objects, if they are not here yet. ``known``: commits that are here.
        """

    # -- references --------------------------------------------------------------------------------

    def move(
        self, moves: Sequence[RefMove], *, source: Git | None = None, known: Sequence[str] = ()
    ) -> bool:
        """Move references in one transaction; return False if one of them is not what it was.

        Raise RepositoryUnavailable if they are unchanged for another reason, and if that cannot
        be found out.
        """
        try:
            self._write(moves, source, known)
        except RepositoryUnavailable as error:
            # The answer may be lost and the references moved, so only they can tell.
            now = self.read_refs([each.ref for each in moves])
            if all(now.get(each.ref) == each.new for each in moves):
                return True
            if all(now.get(each.ref) == each.old for each in moves):
                raise MoveRefused(str(error)) from error
            return False
        return True

    def begin_branch(self, branch: str, start: str) -> str:
        ref = branch_ref(branch)
        self._require_free(branch)
        for _ in range(_MOST_RACES):
            tip = self.tips([ref]).get(ref)
            if tip is not None:
                return tip
            self.require(start)
            try:
                if self.move([RefMove(ref, None, start)]):
                    return start
            except MoveRefused as error:
                if other := self.in_the_way(branch):
                    raise RepositoryUnavailable(
                        f"{self.name}: git cannot have the branch {branch} beside {other}: rename"
                        f" that one there (`git branch -m {other} NAME`)"
                    ) from error
                raise
        raise RepositoryUnavailable(f"{self.name}: the branch {branch} is made and removed again")

    def in_the_way(self, branch: str) -> str | None:
        parts = branch.split("/")
        above = [branch_ref("/".join(parts[:end])) for end in range(1, len(parts))]
        found = [*self.read_refs(above), *self._names_below(f"{branch_ref(branch)}/")]
        return found[0].removeprefix("refs/heads/") if found else None

    def take_fence(self, loop: str, group: str = "") -> Fence:
        ref = fence_ref(loop, group)
        for _ in range(_MOST_RACES):
            now = self.read_refs([ref]).get(ref)
            value = self._unique_commit()
            if self.move([RefMove(ref, now, value)]):
                return Fence(loop=loop, group=group, value=value)
        raise RepositoryUnavailable(f"{self.name}: others keep taking the fence of loop {loop}")

    def land(self, branch: str, *, old: str, new: str, fence: Fence) -> Fence | None:
        self._require_free(branch)
        value = self._unique_commit()
        moves = [
            RefMove(branch_ref(branch), old, new),
            RefMove(fence_ref(fence.loop, fence.group), fence.value, value),
        ]
        return replace(fence, value=value) if self.move(moves) else None

    def forget(self, refs: Sequence[str]) -> None:
        for ref in refs:
            if not ref.startswith(OURS) or not is_ref(ref):
                raise BadInput(f"only references below {OURS} can be removed, not {ref!r}")
        for _ in range(_MOST_RACES):
            now = self.read_refs(refs)
            if not now or self.move([RefMove(ref, value, None) for ref, value in now.items()]):
                return
        raise RepositoryUnavailable(f"{self.name}: references to remove are moved again and again")

    # -- moving ------------------------------------------------------------------------------------

    def export_work(self, loop: str, branch: str, base: str, into: IO[bytes]) -> dict[str, str]:
        refs = {
            **self._below(refs_below(ATTEMPTS, loop)),
            **self._below(refs_below(TRANSCRIPTS, loop)),
            **self.tips([branch_ref(branch)]),
        }
        if refs:
            with self.using():
                moved_work.write_pack(self.objects, refs, self.resolve(base), into)
        return refs

    def import_work(
        self, loop: str, branch: str, base: str, refs: Mapping[str, str], pack: IO[bytes] | None
    ) -> None:
        moved_work.check_refs(loop, branch, refs)
        if not all(map(is_id, refs.values())):
            raise BadInput("the archive has a reference to something that is not a commit")
        if not refs:
            return
        start = self.resolve(base)
        with self.using():
            if pack is not None:
                moved_work.read_pack(self.objects, pack)
            moved_work.check_complete(self.objects, refs, start, base)
            for _ in range(_MOST_RACES):
                moves = [*self._moves(branch, refs)]
                if not moves or self.move(moves):
                    return
        raise RepositoryUnavailable(f"{self.name}: the references of the loop move meanwhile")

    def _moves(self, branch: str, refs: Mapping[str, str]) -> Iterator[RefMove]:
        """Yield the references that change. Raise BadInput if a commit would be lost."""
        own, now = branch_ref(branch), self.tips([*refs])
        for ref, commit in refs.items():
            old = now.get(ref)
            if old == commit:
                continue
            if old is not None and not (ref == own and self._is_ancestor(old, commit)):
                raise BadInput(
                    f"{self.name}: {ref.removeprefix('refs/heads/')} has commits that the archive"
                    " has not: rename or remove it there first"
                )
            if ref == own:
                self._require_free(branch)
            yield RefMove(ref, old, commit)

    def _require_free(self, branch: str) -> None:
        place = self.checked_out(branch)
        if place is not None:
            raise RepositoryUnavailable(
                f"{self.name}: the branch {branch} is checked out in {place}: check out another"
                " branch there (`git switch`), or remove that worktree (`git worktree remove`; `git"
                " worktree prune` if its directory is gone)"
            )

    def _unique_commit(self) -> str:
        """Make an object that nobody else has: what a fence points at."""
        tree = self.objects.read("mktree").text
        return self.commit(tree, (), f"mulligan: fence\n\n{secrets.token_hex(16)}")

    # -- objects -----------------------------------------------------------------------------------

    def tree_of(self, commit: str) -> str:
        if is_id(commit):
            result = self.objects.run("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")
            if result.code == 0:
                return result.text
        self.require(commit)
        return self.objects.read("rev-parse", "--verify", f"{commit}^{{tree}}").text

    def history(self, branch: str, *, until: str | None = None) -> Sequence[BranchCommit]:
        tip = self._tip(branch)
        if tip is None:
            return ()
        with self.using():
            end = until if until is not None and self._is_ancestor(until, tip) else None
            return object_reading.first_parents(self.objects, tip, end)

    def contains(self, branch: str, commit: str) -> bool:
        tip = self._tip(branch)
        return tip is not None and self._is_ancestor(commit, tip)

    def merge(self, ours: str, theirs: str, *, base: str | None = None) -> MergedTree:
        with self.using():
            self.require(ours, theirs, *([] if base is None else [base]))
            if base is None:
                return merge_commits(self.objects, ours, theirs)
            return merge_on_base(self.objects, ours, theirs, base)

    def commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        options = [part for parent in parents for part in ("-p", parent)]
        text = message.encode("utf-8", "replace")
        with self.using():
            return self.objects.read("commit-tree", tree, *options, stdin=text).text

    def changes(self, old: str, new: str) -> Sequence[ChangedFile]:
        with self.using():
            self.require(old, new)
            return object_reading.file_changes(self.objects, old, new)

    def diff(self, old: str, new: str, *, max_bytes: int) -> str:
        with self.using():
            self.require(old, new)
            return object_reading.diff_text(self.objects, old, new, max_bytes=max_bytes)

    def has(self, oid: str) -> bool:
        """Whether an object is on this host."""
        return is_id(oid) and bool(object_reading.present(self.objects, [oid]))

    def require(self, *ids: str) -> None:
        """Have these commits or trees on this host. Raise RepositoryUnavailable if that fails."""
        if not all(map(is_id, ids)):
            raise BadInput(f"not the full ids of commits or trees: {', '.join(map(repr, ids))}")
        for each in sorted(self._missing(ids)):
            self.resolve(each)
        for each in sorted(self._missing(ids)):
            raise RepositoryUnavailable(f"{self.name} has no commit or tree {each}")

    def _missing(self, ids: Sequence[str]) -> set[str]:
        return set(ids) - object_reading.present(self.objects, ids).keys()

    def newest_work(self, name: AttemptName) -> str | None:
        """Return the newest saved work of an attempt, whatever its token is."""
        found = [
            each.commit
            for each in self.saved(name.loop, name.item)
            if (of := AttemptName.from_ref(each.ref)) is not None
            and of.attempt == name.attempt
            and each.attempt == (f"{name.job}/{name.attempt}" if name.job else "")
        ]
        return found[-1] if found else None

    def _tip(self, branch: str) -> str | None:
        ref = branch_ref(branch)
        return self.tips([ref]).get(ref)

    def _is_ancestor(self, commit: str, tip: str) -> bool:
        if not is_id(commit):
            return False
        result = self.objects.run("merge-base", "--is-ancestor", commit, tip)
        if result.code not in (0, 1) and self.has(commit):
            raise self.objects.failed("merge-base", result)
        return result.code == 0

    def _dated(self, found: Mapping[str, str]) -> list[SavedWork]:
        """Return saved work with its dates, the oldest first."""
        if not found:
            return []
        ids = "".join(f"{each}\n" for each in dict.fromkeys(found.values()))
        known = {each.commit: each for each in object_reading.commits(self.objects, ids)}
        works = []
        for ref, commit in found.items():
            name, about = AttemptName.from_ref(ref), known[commit]
            works.append(
                SavedWork(
                    ref=ref,
                    commit=commit,
                    at=about.at,
                    item="" if name is None else name.item,
                    attempt=about.trailers.get(ATTEMPT_TRAILER, ""),
                    base=about.parents[0] if about.parents else "",
                )
            )
        return sorted(works, key=lambda work: (work.at, _attempt_of(work.ref), work.ref))


def _attempt_of(ref: str) -> int:
    name = AttemptName.from_ref(ref)
    return 0 if name is None else name.attempt
