"""A difference as git shows it, file by file, for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mulligan.console.page.job_story_page import DiffKind, DiffLine
from mulligan.tasks.ports.repositories import ChangedFile

#: Lines of all files on one page, and files that are open at first.
MAX_LINES = 3000
_OPEN = 20
_START = "diff --git "
#: The beginnings of lines about a file that say something besides its name.
_SAYS = ("rename ", "new file ", "deleted file ", "old mode ", "new mode ", "Binary files ")
_KINDS: dict[str, DiffKind] = {"+": "add", "-": "del", "@": "place", "\\": "place"}


@dataclass(frozen=True, kw_only=True)
class DiffFile:
    """What changed in one file."""

    path: str
    lines: Sequence[DiffLine]
    added: int | None
    removed: int | None
    #: Whether a page shows its lines at first.
    is_open: bool
    #: Lines that are not shown.
    left_out: int = 0


def diff_files(text: str, changes: Sequence[ChangedFile]) -> list[DiffFile]:
    """Return the files of a difference, with at most MAX_LINES lines of all of them."""
    counts = {each.path: each for each in changes}
    found: list[DiffFile] = []
    room = MAX_LINES
    for path, lines in _files(text):
        change = counts.get(path)
        found.append(
            DiffFile(
                path=path,
                lines=lines[:room],
                added=change.added if change else _count(lines, "add"),
                removed=change.removed if change else _count(lines, "del"),
                is_open=len(found) < _OPEN and room > 0,
                left_out=max(0, len(lines) - room),
            )
        )
        room = max(0, room - len(lines))
    return found


def _count(lines: Sequence[DiffLine], kind: DiffKind) -> int:
    return sum(each.kind == kind for each in lines)


def _files(text: str) -> Iterator[tuple[str, list[DiffLine]]]:
    """Yield the path and the lines of each file."""
    head: list[str] = []
    body: list[DiffLine] = []
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith(_START):
            if head:
                yield _path(head), [*_said(head), *body]
            head, body = [line], []
        elif body or line.startswith("@@"):
            body.append(DiffLine(kind=_KINDS.get(line[:1], "same"), text=line))
        elif head:
            head.append(line)
    if head:
        yield _path(head), [*_said(head), *body]


def _said(head: Sequence[str]) -> list[DiffLine]:
    return [DiffLine(kind="place", text=line) for line in head if line.startswith(_SAYS)]


def _path(head: Sequence[str]) -> str:
    """Return the path of a file: the new one, unless it was deleted."""
    for start, prefix in (("+++ ", "b/"), ("--- ", "a/"), ("rename to ", "")):
        for line in head:
            name = line.removeprefix(start)
            if line.startswith(start) and name != "/dev/null":
                return name.strip('"').rstrip("\t").removeprefix(prefix)
    names = head[0].removeprefix(_START).strip('"')
    return names[len(names) // 2 :].strip().strip('"').removeprefix("b/")
