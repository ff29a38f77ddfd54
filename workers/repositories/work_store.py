"""The git directory in which the worker takes an agent's tree. The agent cannot reach it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mulligan.policies.jobs.job import escapes
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.workers.repositories.git_command import Git, GitTimedOut
from mulligan.workers.repositories.git_directory import ObjectFormat, make_git_directory
from mulligan.workers.repositories.loose_objects import write_blob
from mulligan.workers.repositories.object_reading import tree_entries
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

    @property
    def index(self) -> Path:
        """The index of the files that were written."""
        return self.directory / "index"

    def write_files(self, tree: str, into: Path) -> None:
        """Write the files of a tree into an empty directory. Nothing is converted or filtered."""
        self.git.read("read-tree", "--reset", "-u", tree, work_tree=into)

    def watch(self, directory: Path, tree: str) -> None:
        """Take trees of a directory from now on, which began with this one."""
        self._start_tree = tree
        self._start = {
            path: TreeEntry(mode, oid) for path, mode, oid in tree_entries(self.git, tree)
        }
        self._taken = self._start, tree
        self._work = WorkTree(
            directory=directory,
            start=self._start,
            objects=self.directory / "objects",
            object_format=self._format,
            size_of=lambda oid: int(self.git.read("cat-file", "-s", oid).text),
        )

    def take_tree(self) -> str:
        """Return the tree of the watched directory. Raise BadInput if there is too much in it."""
        if self._work is None:
            raise ValueError("no directory is watched")
        if self._work.directory.is_symlink() or not self._work.directory.is_dir():
            raise BadInput("the work cannot be saved: its directory is gone")
        try:
            found = self._work.take(self._others(self._work.directory))
        except OSError as error:
            why = error.strerror or str(error)
            raise RepositoryUnavailable(f"the work cannot be saved: {why}") from error
        if found != self._taken[0]:
            self._taken = found, self._tree_of(found)
        return self._taken[1]

    def _others(self, directory: Path) -> set[bytes]:
        """Return the files that are neither ignored nor part of the start."""
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
            if len(found) > MOST_ENTRIES:
                raise BadInput(
                    f"the work has more than {MOST_ENTRIES} new files: add what tools generate to"
                    " .gitignore"
                )
        if repositories > _MOST_REPOSITORIES:
            raise BadInput(f"there are more than {_MOST_REPOSITORIES} repositories in the work")
        return found

    def _listed(self, directory: Path, below: bytes) -> Iterator[bytes]:
        # Nothing is part of the start in a repository that the agent made.
        index = self.directory / "index.none" if below else self.index
        git = replace(self.git.having(GIT_INDEX_FILE=index), timeout=self._listing_seconds)
        place = directory / os.fsdecode(below)
        if below and not place.is_dir():
            return
        options = ["--others", "--exclude-standard", "-z"]
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
        return self._write_tree(self._start_tree, changed, removed)

    def _write_tree(
        self, start: str | None, changed: Mapping[bytes, TreeEntry], removed: Sequence[bytes] = ()
    ) -> str:
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
        return self._write_tree(None, entries)

    def commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        """Make a commit."""
        options = [part for parent in parents for part in ("-p", parent)]
        return self.git.read("commit-tree", tree, *options, stdin=message.encode()).text
