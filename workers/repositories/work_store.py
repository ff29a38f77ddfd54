"""The git directory in which the worker takes an agent's tree. The agent cannot reach it."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mulligan.policies.jobs.job import escapes
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.workers.repositories.git_command import Git, GitTimedOut
from mulligan.workers.repositories.git_directory import ObjectFormat, make_git_directory
from mulligan.workers.repositories.loose_objects import write_blob
from mulligan.workers.repositories.object_reading import display_path, tree_entries
from mulligan.workers.repositories.work_tree import (
    FILE,
    MOST_ENTRIES,
    TreeEntry,
    WorkTree,
)

#: An agent can make git wait: a .gitignore that is a pipe.
LISTING_SECONDS = 30.0
_MOST_REPOSITORIES = 100


class WorkStore:
    """A git directory with an index of its own, and the objects of others to read."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        object_format: ObjectFormat,
        objects: Path,
        shallow: Path | None = None,
    ) -> None:
        make_git_directory(
            directory, object_format=object_format, objects=[objects], shallow=shallow
        )
        self.directory, self._format = directory, object_format
        self.git = Git(name=name, directory=directory)
        self._listing_seconds = LISTING_SECONDS
        self._start: Mapping[bytes, TreeEntry] = {}
        self._work: WorkTree | None = None
        self._start_tree = ""
        #: What was taken last, and its tree.
        self._taken: tuple[Mapping[bytes, TreeEntry], str] = {}, ""
        #: What differed from the start before the work began. None: it was gone.
        self._given: dict[bytes, TreeEntry | None] = {}
        self._ignored_before: set[bytes] = set()
        self._directories: list[bytes] = []

    @property
    def index(self) -> Path:
        """The index of the files that were written."""
        return self.directory / "index"

    def write_files(self, tree: str, into: Path) -> None:
        """Write the files of a tree into an empty directory. Nothing is converted or filtered."""
        self.git.read("read-tree", "--reset", "-u", tree, work_tree=into)

    def entries(self, tree: str) -> dict[bytes, TreeEntry]:
        """Return the files of a tree."""
        return {path: TreeEntry(mode, oid) for path, mode, oid in tree_entries(self.git, tree)}

    def watch(self, directory: Path, tree: str) -> None:
        """Take trees of a directory from now on, which began with this one."""
        self._start_tree = tree
        self._start = self.entries(tree)
        self._taken = self._start, tree
        self._work = WorkTree(
            directory=directory,
            start=self._start,
            objects=self.directory / "objects",
            object_format=self._format,
            size_of=lambda oid: int(self.git.read("cat-file", "-s", oid).text),
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """The files and directories that were too much for the tree that was taken last."""
        files = self._watched.left_out
        return tuple(map(display_path, [*self._directories, *files]))

    @property
    def content(self) -> int:
        """The bytes of new content in the tree that was taken last."""
        return self._watched.content

    @property
    def _watched(self) -> WorkTree:
        if self._work is None:
            raise ValueError("no directory is watched")
        return self._work

    def begin_work(self) -> None:
        """Take what is there now for no part of the work, as long as nobody changes it again."""
        found = self._take()
        paths = {*found, *self._start}
        changed = {path for path in paths if found.get(path) != self._start.get(path)}
        self._given = {path: found.get(path) for path in changed}
        self._ignored_before = self._ignored()

    def newly_ignored(self) -> list[str]:
        """Return files and directories that are no part of the work because git ignores them."""
        return sorted(map(display_path, self._ignored() - self._ignored_before))

    def _ignored(self) -> set[bytes]:
        return {*self._listed(self._watched.directory, b"", "--ignored", "--directory")}

    def take_tree(self) -> str:
        """Return the tree of the watched directory. Raise BadInput if it cannot be read.

        If something is left out, nothing is removed: what is gone may be what was left out.
        """
        found = self._take()
        if self.left_out:
            found = {**self._start, **found}
        for path, given in self._given.items():
            if found.get(path) != given:
                continue
            if path in self._start:
                found[path] = self._start[path]
            else:
                del found[path]
        if found != self._taken[0]:
            self._taken = found, self._tree_of(found)
        return self._taken[1]

    def _take(self) -> dict[bytes, TreeEntry]:
        work = self._watched
        if work.directory.is_symlink() or not work.directory.is_dir():
            raise BadInput("the work cannot be saved: its directory is gone")
        try:
            return work.take(self._others(work.directory))
        except OSError as error:
            why = error.strerror or str(error)
            raise RepositoryUnavailable(f"the work cannot be saved: {why}") from error

    def _others(self, directory: Path) -> set[bytes]:
        """Return the files that are neither ignored nor part of the start."""
        self._directories = []
        found: set[bytes] = set()
        pending, repositories = [b""], 0
        while pending:
            below = pending.pop()
            for path in self._listed(directory, below):
                if not path.endswith(b"/"):
                    found.add(path)
                    continue
                # A repository that the agent made. Git would save it as a link to its commit.
                repositories += 1
                if repositories <= _MOST_REPOSITORIES:
                    pending.append(path)
                else:
                    self._directories.append(path)
        return self._fitting(found)

    def _fitting(self, found: set[bytes]) -> set[bytes]:
        """Leave out new directories, the largest first, until the rest is not too much."""
        if len(found) <= MOST_ENTRIES:
            return found
        known = {folder for path in self._start for folder in _folders(path)}
        new = {path: next((f for f in _folders(path) if f not in known), b"") for path in found}
        excess = len(found) - MOST_ENTRIES
        for folder, count in Counter(filter(None, new.values())).most_common():
            if excess <= 0:
                break
            self._directories.append(folder)
            excess -= count
        return {path for path in found if new[path] not in self._directories}

    def _listed(self, directory: Path, below: bytes, *more: str) -> Iterator[bytes]:
        # Nothing is part of the start in a repository that the agent made.
        index = self.directory / "index.none" if below else self.index
        git = replace(self.git.having(GIT_INDEX_FILE=index), timeout=self._listing_seconds)
        place = directory / os.fsdecode(below)
        if below and not place.is_dir():
            return
        options = ["--others", "--exclude-standard", "-z", *more]
        try:
            result = git.run("ls-files", *options, work_tree=place)
            if result.code:  # files that vanish may be a reason
                result = git.run("ls-files", *options, work_tree=place)
        except GitTimedOut:
            raise BadInput(
                f"the work cannot be saved: its files cannot be listed in {git.timeout:g} s"
            ) from None
        if result.code:
            raise BadInput(f"the work cannot be saved: {result.reason}")
        for name in result.out.split(b"\0"):
            if name:
                yield below + name

    def _tree_of(self, found: Mapping[bytes, TreeEntry]) -> str:
        changed = {p: entry for p, entry in found.items() if self._start.get(p) != entry}
        removed = [path for path in self._start if path not in found]
        if not changed and not removed:
            return self._start_tree
        return self.write_tree(self._start_tree, changed, removed)

    def write_tree(
        self, start: str | None, changed: Mapping[bytes, TreeEntry], removed: Sequence[bytes] = ()
    ) -> str:
        """Write a tree: another one with some entries changed."""
        index = self.directory / "index.new"
        index.unlink(missing_ok=True)
        git = self.git.having(GIT_INDEX_FILE=index)
        git.read("read-tree", *(["--empty"] if start is None else [start]))
        none = "0" * (40 if self._format == "sha1" else 64)
        lines = [b"0 %s\t%s" % (none.encode(), path) for path in removed]
        lines += [
            b"%s %s\t%s" % (entry.mode.encode(), entry.oid.encode(), path)
            for path, entry in changed.items()
        ]
        data = b"".join(line + b"\0" for line in lines)
        git.read("update-index", "--add", "--replace", "-z", "--index-info", stdin=data)
        return git.read("write-tree").text

    def tree_of_files(self, files: Mapping[str, bytes]) -> str:
        """Write files that are given by their contents, and return their tree."""
        objects = self.directory / "objects"
        entries = {}
        for name, data in files.items():
            if escapes(name) or posixpath.normpath(name) != name:
                raise BadInput(f"{name!r} is not a path of a file")
            try:
                oid = write_blob(objects, data, self._format)
            except OSError as error:
                raise RepositoryUnavailable(f"{objects}: {error.strerror}") from error
            entries[os.fsencode(name)] = TreeEntry(FILE, oid)
        return self.write_tree(None, entries)

    def commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        """Make a commit."""
        options = [part for parent in parents for part in ("-p", parent)]
        return self.git.read("commit-tree", tree, *options, stdin=message.encode()).text


def _folders(path: bytes) -> Iterator[bytes]:
    """Yield the directories of a path, the outermost first, each with a slash at its end."""
    end = path.find(b"/")
    while end >= 0:
        yield path[: end + 1]
        end = path.find(b"/", end + 1)
