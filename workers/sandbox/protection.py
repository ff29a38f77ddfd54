"""Restore the files of a workspace that no answer may change."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath

from mulligan.policies.path_patterns import path_pattern
from mulligan.workers.sandbox.file_tree import Tree, read_file, remove, write_tree
from mulligan.workers.sandbox.hidden_modules import HiddenModules

#: Files in which pytest looks for its configuration.
PYTEST_CONFIGURATION = (
    "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini",
    "setup.cfg",
)  # fmt: skip
#: What pytest or Python loads without being asked; protected in every job.
_ALWAYS = (
    "conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.egg-link",
    *PYTEST_CONFIGURATION,
    "pytest.py", "_pytest.py", "pytest/**", "_pytest/**", "pluggy/**",
)  # fmt: skip


class Protection:
    """The protected patterns of a workspace. One without a slash matches at any depth."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(path_pattern(pattern) for pattern in (*_ALWAYS, *patterns))

    def covers(self, name: str) -> bool:
        """Return whether a path relative to the workspace is protected."""
        path = str(PurePosixPath(name))
        return any(pattern.match(path) for pattern in self._patterns)

    def hidden_modules(self, base: Tree) -> HiddenModules:
        """Return what tells whether a new file hides a protected one of the base."""
        return HiddenModules(
            (name for name, node in base.items() if node.kind != "directory"),
            self.covers,
            lambda name: self.covers(name) and not ALWAYS.covers(name),
        )

    def restore(self, directory: Path, snapshot: Tree, *, may_add: bool = False) -> list[str]:
        """Remove protected files that are new, rewrite changed or deleted ones; return both.

        ``may_add``: new files stay, unless pytest or Python loads them without being asked, or
        instead of a protected one.
        """
        added = [name for name in list_files(directory) if name not in snapshot]
        if may_add:
            added = self._refused(added, directory, snapshot, ALWAYS)
        else:
            added = list(filter(self.covers, added))
        for name in added:
            remove(directory / name)
        return sorted({*added, *self._rewrite(directory, snapshot)})

    def restore_after(
        self,
        run: Callable[[], None],
        directory: Path,
        snapshot: Tree,
        *,
        anything_in: Sequence[str],
        made_by_base: Callable[[Sequence[str]], Collection[str]],
    ) -> list[str]:
        """Run something that may change the directory, and restore protected files as above.

        New ones stay if they are in a directory of ``anything_in``, or if ``made_by_base`` returns
        their names. Compiled modules never do: Python may load them instead of protected ones.
        """
        before = {*list_files(directory)}
        run()
        added = [name for name in list_files(directory, anything_in) if name not in before]
        compiled = [name for name in added if "__pycache__" in PurePosixPath(name).parts]
        refused = self._refused(sorted({*added} - {*compiled}), directory, snapshot, self)
        kept = made_by_base(refused) if refused else ()
        refused = [name for name in refused if name not in kept]
        for name in (*refused, *compiled):
            remove(directory / name)
        return sorted({*refused, *self._rewrite(directory, snapshot)})

    def _refused(
        self, added: Iterable[str], directory: Path, snapshot: Tree, refused: Protection
    ) -> list[str]:
        """Return those of the new files that are refused, or hide a protected one."""
        hidden = self.hidden_modules(snapshot)
        return [
            name
            for name in added
            if refused.covers(name) or hidden.reason(name, is_link=(directory / name).is_symlink())
        ]

    def _rewrite(self, directory: Path, snapshot: Tree) -> Iterable[str]:
        changed = {
            name: node
            for name, node in snapshot.items()
            if self.covers(name)
            and node.kind != "directory"
            and not _same(directory, name, snapshot)
        }
        for name in changed:
            for parent in _parents(directory, name):
                if parent.is_symlink() or parent.is_file():
                    remove(parent)
        write_tree(changed, directory)
        return changed


def list_files(directory: Path, without: Sequence[str] = ()) -> list[str]:
    """Return every file and link, also in excluded directories, which pytest would read.

    Some directories may be left out. So is what cannot be read, or is too deep to be opened.
    """
    found: list[str] = []
    left_out, pending = {posixpath.normpath(name) for name in without}, [""]
    while pending:
        folder = pending.pop()
        with contextlib.suppress(OSError), os.scandir(directory / folder) as entries:
            for entry in entries:
                name = posixpath.join(folder, entry.name)
                if not entry.is_dir(follow_symlinks=False):
                    found.append(name)
                elif name not in left_out:
                    pending.append(name)
    return found


def same_file(name: str, one: Path, other: Path) -> bool:
    """Whether both directories have a file with the same content, but for their own paths."""
    try:
        expected = read_file(other / name).replace(bytes(other), bytes(one))
        return read_file(one / name) == expected
    except OSError:  # one is missing, or something else
        return False


def _same(directory: Path, name: str, snapshot: Tree) -> bool:
    path, node = directory / name, snapshot[name]
    if any(parent.is_symlink() for parent in _parents(directory, name)):
        return False
    if node.kind == "link":
        return path.is_symlink() and str(path.readlink()).encode() == node.content
    try:
        return path.lstat().st_mode & 0o777 == node.mode and read_file(path) == node.content
    except OSError:  # it is missing or something else
        return False


def _parents(directory: Path, name: str) -> list[Path]:
    """Return the parents from the top down, without the workspace itself."""
    relative = [parent for parent in PurePosixPath(name).parents if parent.parts]
    return [directory / parent for parent in reversed(relative)]


#: What is protected in every job.
ALWAYS = Protection(())
