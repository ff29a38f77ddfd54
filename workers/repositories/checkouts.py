"""Checkouts: a private one for each attempt, whose work is saved, and plain files to verify."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.repositories import ConflictingFile
from mulligan.workers.repositories.git_directory import make_git_directory, object_directories
from mulligan.workers.repositories.git_repository import GitRepository, RefMove
from mulligan.workers.repositories.ref_names import AttemptName, branch_ref
from mulligan.workers.repositories.work_store import WorkStore
from mulligan.workers.sandbox.file_tree import encode_tree, read_tree
from mulligan.workers.sandbox.private import private_directory

_BRANCH = "refs/heads/work"
#: How often a reference of this attempt may be removed or moved by others.
_MOST_RACES = 3


class IsProtected(Protocol):
    """Tells whether no attempt may change a file, or add it."""

    def __call__(self, path: str, *, is_new: bool) -> bool: ...


def _nothing_protected(path: str, *, is_new: bool) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What an attempt begins with."""

    base: str
    base_tree: str
    tree: str
    kept: str | None = None
    conflicts: tuple[ConflictingFile, ...] = ()
    is_protected: IsProtected = _nothing_protected


class AttemptCheckout:
    """A private clone in which an agent works. The agent may commit in it."""

    def __init__(
        self, repository: GitRepository, name: AttemptName, start: _Start, work: Path
    ) -> None:
        self.directory = work
        #: The tip of the branch when the attempt began.
        self.base = start.base
        #: The saved work that it continues.
        self.kept = start.kept
        #: Where that work did not merge with the branch. These files contain git's markers.
        self.conflicts = start.conflicts
        #: What a confined program must be able to read, for git to work in the directory.
        self.readable = object_directories(repository.object_directory)
        self._repository, self._name = repository, name
        self._store = WorkStore(
            work.parent / "store",
            name=repository.name,
            object_format=repository.object_format,
            objects=repository.object_directory,
            shallow=repository.shallow_file,
        )
        self._saving = threading.Lock()
        self._saved_tree: str | None = None
        self._saved_digest: bytes | None = None
        #: What the references of the attempt are, as far as this process knows.
        self._refs: dict[str, str] = {}
        self._base_tree = start.base_tree
        self._fill(self._with_protected(start.tree, start.is_protected))

    def _with_protected(self, tree: str, is_protected: IsProtected) -> str:
        """Return kept work without its changes of protected files, which could never be merged."""
        if tree == self._base_tree:
            return tree
        base, kept = self._store.entries(self._base_tree), self._store.entries(tree)
        names = {path: os.fsdecode(path) for path in {*base, *kept}}
        wrong = [
            path
            for path, name in names.items()
            if base.get(path) != kept.get(path) and is_protected(name, is_new=path not in base)
        ]
        changed = {path: base[path] for path in wrong if path in base}
        removed = [path for path in wrong if path not in base]
        return self._store.write_tree(tree, changed, removed) if wrong else tree

    def _fill(self, tree: str) -> None:
        repository, inside = self._repository, self.directory / ".git"
        make_git_directory(
            inside,
            object_format=repository.object_format,
            bare=False,
            raw=False,
            head=_BRANCH,
            tip=self.base,
            objects=[repository.object_directory],
            shallow=repository.shallow_file,
        )
        self._store.write_files(tree, self.directory)
        if tree == self._base_tree:
            shutil.copyfile(self._store.index, inside / "index")
        else:  # for the agent, kept work is a change that is not committed
            index = self._store.git.having(GIT_INDEX_FILE=inside / "index")
            index.read("read-tree", self._base_tree)
        self._store.watch(self.directory, tree)

    def begin_work(self) -> None:
        """Take what is in the directory now for no part of the work: what a setup made of it."""
        self._store.begin_work()

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was too much to be saved the last time."""
        return self._store.left_out

    @property
    def content(self) -> int:
        """The bytes of new content in the work that was saved last."""
        return self._store.content

    def newly_ignored(self) -> list[str]:
        """Return what the agent made that git ignores."""
        return self._store.newly_ignored()

    def save(self, transcript: Mapping[str, bytes] | None = None) -> str | None:
        """Save the work and the transcript in the repository; return the work's commit.

        None: the tree is the one of ``base``. If nothing changed since the last time, nothing is
        done. Raise BadInput if the tree cannot be read or the repository refuses it, and
        RepositoryUnavailable if it cannot be saved now. What was saved before is still there then.
        """
        with self._saving:
            digest = _digest(transcript or {})
            new: dict[str, str] = {}
            unreadable: BadInput | None = None
            try:
                tree = self._store.take_tree()
            except BadInput as error:
                tree, unreadable = self._saved_tree or self._base_tree, error
            if tree not in (self._base_tree, self._saved_tree):
                message = f"Attempt {self._name.attempt} of {self._name.item}\n"
                message += self._name.trailer
                new[self._name.work_ref] = self._store.commit(tree, [self.base], message)
            if transcript and digest != self._saved_digest:
                message = f"Transcript of attempt {self._name.attempt} of {self._name.item}\n"
                message += self._name.trailer
                files = self._store.tree_of_files(transcript)
                new[self._name.transcript_ref] = self._store.commit(files, [], message)
            if new:
                self._move(new)
                self._saved_digest = digest if transcript else self._saved_digest
                self._saved_tree = tree if self._name.work_ref in new else self._saved_tree
            if unreadable is not None:
                raise unreadable
            return None if tree == self._base_tree else self._refs[self._name.work_ref]

    def _move(self, new: Mapping[str, str]) -> None:
        known = [self.base, *self._refs.values()]
        for _ in range(_MOST_RACES):
            moves = [RefMove(ref, self._refs.get(ref), commit) for ref, commit in new.items()]
            if self._repository.move(moves, source=self._store.git, known=known):
                self._refs |= new
                return
            # They were removed, or an answer was lost.
            self._refs = self._repository.read_refs([*self._refs, *new])
            known = [self.base]
        raise RepositoryUnavailable(
            f"{self._repository.name}: others move the references of attempt {self._name.attempt}"
            f" of {self._name.item}"
        )


class Checkouts:
    """Checkouts below a directory for temporary files."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root

    @contextlib.contextmanager
    def attempt(
        self,
        repository: GitRepository,
        *,
        branch: str,
        start: str,
        loop: str,
        item: str,
        attempt: int,
        token: str,
        job: str = "",
        kept: str | None = None,
        is_protected: IsProtected = _nothing_protected,
    ) -> Iterator[AttemptCheckout]:
        """Make a private clone for an attempt, and remove it afterwards.

        ``branch`` is made at ``start`` if it does not exist. ``kept``: saved work to continue.
        Work that was saved for the same attempt goes before it: its worker died, or it waited for
        its provider. Protected files are those of the branch.
        """
        name = AttemptName(loop=loop, item=item, attempt=attempt, token=token, job=job)
        with repository.using():
            begun = replace(
                _begin(repository, name, branch=branch, start=start, kept=kept),
                is_protected=is_protected,
            )
            with private_directory(self._root) as work:
                with _explain_disk(work):
                    checkout = AttemptCheckout(repository, name, begun, work)
                yield checkout

    def files(self, repository: GitRepository, commit: str, into: Path) -> None:
        """Write the plain files of a commit or tree into an empty directory, without ``.git``."""
        with repository.using(), private_directory(self._root) as private:
            repository.require(commit)
            with _explain_disk(into):
                into.mkdir(parents=True, exist_ok=True)
                store = WorkStore(
                    private / "store",
                    name=repository.name,
                    object_format=repository.object_format,
                    objects=repository.object_directory,
                )
            store.write_files(commit, into)

    def export(
        self, repository: GitRepository, commit: str, *, max_bytes: int | None = None
    ) -> bytes:
        """Return the packed files of a commit or tree.

        Links that leave the tree are left out. Raise BadInput for more than ``max_bytes`` of files.
        """
        with private_directory(self._root) as directory:
            self.files(repository, commit, directory)
            left_out: list[str] = []
            return encode_tree(read_tree(directory, max_bytes=max_bytes, refused=left_out))


def _begin(
    repository: GitRepository, name: AttemptName, *, branch: str, start: str, kept: str | None
) -> _Start:
    commit = repository.resolve(start) or repository.resolve(branch_ref(branch))
    if commit is None:
        raise BadInput(
            f"{repository.name} has no branch, tag or commit {start!r}; if it is empty, make a"
            " first commit"
        )
    base = repository.begin_branch(branch, commit)
    # This also fetches what was saved on another host.
    own = repository.newest_work(name)
    if own is not None or (kept is not None and not repository.has(kept)):
        kept = own
    tree = repository.tree_of(base)
    if kept is None:
        return _Start(base=base, base_tree=tree, tree=tree)
    merged = repository.merge(base, kept)
    return _Start(
        base=base, base_tree=tree, tree=merged.tree, kept=kept, conflicts=merged.conflicts
    )


def _digest(files: Mapping[str, bytes]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted(files):
        data = os.fsencode(name)
        digest.update(b"%d %d " % (len(data), len(files[name])) + data)
        digest.update(files[name])
    return digest.digest()


@contextlib.contextmanager
def _explain_disk(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RepositoryUnavailable(f"{place}: {error.strerror or error}") from error
