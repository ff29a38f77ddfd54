"""A unified diff as values. ``parse_diff`` reads one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Mark = Literal[" ", "+", "-"]

#: git's own prefixes, with those of diff.mnemonicPrefix.
PREFIXES = ("a/", "b/", "i/", "w/", "c/", "o/")
#: What models write in place of a file name.
_PLACEHOLDERS = frozenset(
    {"original", "modified", "old", "new", "before", "after", "file", "current", "updated"}
)
_RANGE = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")


class PatchError(ValueError):
    """The text is not a unified diff; the message names the line and the remedy."""


@dataclass(frozen=True, kw_only=True)
class HunkLine:
    """A line of a hunk. ``text`` has its line ending, or none before "No newline at end"."""

    mark: Mark
    text: str


@dataclass(frozen=True, kw_only=True)
class Hunk:
    #: From 1, within its file.
    number: int
    header: str
    lines: tuple[HunkLine, ...]

    @property
    def old(self) -> tuple[str, ...]:
        """The lines that the file must have: context and removed lines."""
        return tuple(line.text for line in self.lines if line.mark != "+")

    @property
    def new(self) -> tuple[str, ...]:
        """The lines that the file has afterwards: context and added lines."""
        return tuple(line.text for line in self.lines if line.mark != "-")

    @property
    def removes(self) -> bool:
        return any(line.mark == "-" for line in self.lines)

    @property
    def counts_right(self) -> bool:
        """Whether the header states as many lines as the hunk has."""
        return header_counts(self.header) == (len(self.old), len(self.new))


@dataclass(frozen=True, kw_only=True)
class FilePatch:
    """The changes of one file. Names are as written, prefixes included."""

    #: None: /dev/null, the file is new.
    old: str | None
    #: None: /dev/null, the file is deleted.
    new: str | None
    hunks: tuple[Hunk, ...] = ()
    renamed: bool = False
    copied: bool = False
    #: None: unchanged.
    executable: bool | None = None
    binary: bool = False
    #: Hunks without any header: both names are empty.
    headless: bool = False

    @property
    def names_no_file(self) -> bool:
        """Whether its header is missing or has placeholders ("--- original")."""
        return self.headless or all(
            name is not None and name.lower() in _PLACEHOLDERS for name in (self.old, self.new)
        )


@dataclass(frozen=True, kw_only=True)
class ParsedDiff:
    files: tuple[FilePatch, ...]
    fenced: bool = False

    @property
    def counts_right(self) -> bool:
        """Whether every hunk header states as many lines as its hunk has."""
        return all(hunk.counts_right for file in self.files for hunk in file.hunks)

    @property
    def paths(self) -> set[str]:
        """Every path that it may touch, with and without its first folder."""
        return _with_and_without_folder(
            name for file in self.files for name in (file.old, file.new)
        )

    @property
    def removed_paths(self) -> set[str]:
        """The paths of deleted and renamed files, with and without their first folder."""
        removed = (file for file in self.files if file.new is None or file.renamed)
        return _with_and_without_folder(file.old for file in removed)


def strip_prefix(name: str) -> str:
    """Return a name without git's prefix."""
    return name[2:] if name.startswith(PREFIXES) else name


def header_counts(header: str) -> tuple[int, int] | None:
    """Return the numbers of old and new lines in a hunk header; None if it is not in git's form."""
    found = _RANGE.match(header)
    if found is None:
        return None
    old, new = (1 if count is None else int(count) for count in found.groups())
    return old, new


def _with_and_without_folder(names: Iterable[str | None]) -> set[str]:
    known = {name for name in names if name}
    return (known | {name.partition("/")[2] for name in known}) - {""}
