"""Which files of a workspace no answer may change, and putting them back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path, PurePosixPath

from mulligan.workers.sandbox.file_tree import Tree, remove, write_tree

#: What pytest or Python would pick up by itself, whatever the job says about protection.
ALWAYS = (
    "conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", "*.egg-link", "pytest.ini",
    ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg",
    "pytest.py", "_pytest.py", "pytest/**", "_pytest/**", "pluggy/**",
)  # fmt: skip


class Protection:
    """The patterns of a workspace. One without a slash fits the name of a file at any depth."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(_compile(pattern) for pattern in (*ALWAYS, *patterns))

    def covers(self, name: str) -> bool:
        """Whether a path relative to the workspace is protected."""
        path = str(PurePosixPath(name))
        return any(pattern.match(path) for pattern in self._patterns)

    def restore(self, directory: Path, snapshot: Tree) -> list[str]:
        """Make every protected file what it is in the snapshot; names those that were not.

        A file that is planted is removed, a changed or deleted one is written again.
        """
        present = _files(directory)
        wrong = [name for name in present if self.covers(name) and name not in snapshot]
        for name in wrong:
            remove(directory / name)
        lost = {
            name: node
            for name, node in snapshot.items()
            if self.covers(name)
            and node.kind != "directory"
            and not _same(directory, name, snapshot)
        }
        for name in lost:
            _clear_way(directory, name)
        write_tree(lost, directory)
        return sorted({*wrong, *lost})


def _files(directory: Path) -> list[str]:
    """Every file and link, those in excluded directories too: pytest does not know of our list."""
    entries = (entry for entry in directory.rglob("*") if entry.is_symlink() or not entry.is_dir())
    return [entry.relative_to(directory).as_posix() for entry in entries]


def _same(directory: Path, name: str, snapshot: Tree) -> bool:
    path, node = directory / name, snapshot[name]
    if any(parent.is_symlink() for parent in _parents(directory, name)):
        return False
    if node.kind == "link":
        return path.is_symlink() and str(path.readlink()).encode() == node.content
    if path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_mode & 0o777 == node.mode and path.read_bytes() == node.content


def _clear_way(directory: Path, name: str) -> None:
    """Remove links and files that stand where a protected file's directories should be."""
    for parent in _parents(directory, name):
        if parent.is_symlink() or parent.is_file():
            remove(parent)


def _parents(directory: Path, name: str) -> list[Path]:
    """From the top down, without the workspace itself."""
    relative = [parent for parent in PurePosixPath(name).parents if parent.parts]
    return [directory / parent for parent in reversed(relative)]


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    """``**`` crosses directories, ``*`` and ``?`` do not."""
    anchored = pattern.lstrip("/")
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", anchored)
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    body = "".join(meaning.get(part, re.escape(part)) for part in parts)
    prefix = "" if "/" in pattern else "(?:.*/)?"
    return re.compile(f"{prefix}{body}\\Z", re.DOTALL)
