"""Restore the files of a workspace that no answer may change."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path, PurePosixPath

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
        added = [name for name in _files(directory) if name not in snapshot]
        if may_add:
            hidden = self.hidden_modules(snapshot)
            added = [
                name
                for name in added
                if ALWAYS.covers(name)
                or hidden.reason(name, is_link=(directory / name).is_symlink())
            ]
        else:
            added = list(filter(self.covers, added))
        for name in added:
            remove(directory / name)
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
        return sorted({*added, *changed})


def _files(directory: Path) -> list[str]:
    """Return every file and link, also in excluded directories, which pytest would read."""
    entries = (entry for entry in directory.rglob("*") if entry.is_symlink() or not entry.is_dir())
    return [entry.relative_to(directory).as_posix() for entry in entries]


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


@lru_cache(maxsize=1024)
def path_pattern(pattern: str) -> re.Pattern[str]:
    """Translate a pattern: ``**`` crosses directories, ``*`` and ``?`` do not."""
    anchored = pattern.lstrip("/")
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", anchored)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    body = "".join(meaning.get(part, re.escape(part)) for part in parts)
    prefix = "" if "/" in pattern else "(?:.*/)?"
    return re.compile(f"{prefix}{body}\\Z", re.DOTALL)


#: What is protected in every job.
ALWAYS = Protection(())
