"""Unified diffs as people, git and models write them: read leniently, never guessed at.

Reading forgives what carries no meaning (fences, missing headers, wrong counts) and says that it
did. Where the lines of a hunk belong is decided in ``fit``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Mark = Literal[" ", "+", "-"]

#: git's own prefixes, with those of diff.mnemonicPrefix.
PREFIXES = ("a/", "b/", "i/", "w/", "c/", "o/")
#: What models write where a name belongs.
_PLACEHOLDERS = frozenset(
    {"original", "modified", "old", "new", "before", "after", "file", "current", "updated"}
)
_RANGE = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
#: What diff -N writes behind the name of a file that is not there, in some time zone.
_EPOCH = re.compile(
    r"\t(?:1969-12-31|1970-01-01) (\d\d):(\d\d):00(?:\.0+)? ([-+])(\d\d):?(\d\d)\s*$"
)
_SIGNATURE = "-- \n"
#: The lines that open the next commit in the output of git log and in a mailbox.
_NEXT_COMMIT = re.compile(r"(?:commit|From) [0-9a-f]{7,}")
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_LETTERS = {
    b"a": b"\a",
    b"b": b"\b",
    b"t": b"\t",
    b"n": b"\n",
    b"v": b"\v",
    b"f": b"\f",
    b"r": b"\r",
    b'"': b'"',
    b"\\": b"\\",
}
_NO_NEWLINE = "\\"
_MARKS = (" ", "+", "-")
#: An empty context line that lost its mark.
_EMPTY = ("\n", "\r\n")
_SPECIAL_MODE = re.compile(
    r"^(?:(?:new file|deleted file|old|new) mode|index [0-9a-f]+\.\.[0-9a-f]+) (120000|160000)\s*$",
    re.MULTILINE,
)


class PatchError(ValueError):
    """It cannot be read as a unified diff; the text says which line and what to do."""


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
        """What has to be there: context and removed lines."""
        return tuple(line.text for line in self.lines if line.mark != "+")

    @property
    def new(self) -> tuple[str, ...]:
        """What is there afterwards: context and added lines."""
        return tuple(line.text for line in self.lines if line.mark != "-")

    @property
    def removes(self) -> bool:
        return any(line.mark == "-" for line in self.lines)

    @property
    def counts_right(self) -> bool:
        """Whether the header states as many lines as the hunk has."""
        return _stated(self.header) == (len(self.old), len(self.new))


@dataclass(frozen=True, kw_only=True)
class FilePatch:
    """What a diff says of one file. Names are as written, prefixes included."""

    #: None: /dev/null, the file is new.
    old: str | None
    #: None: /dev/null, the file is deleted.
    new: str | None
    hunks: tuple[Hunk, ...] = ()
    renamed: bool = False
    copied: bool = False
    #: Whether it shall be executable; None: as it is.
    executable: bool | None = None
    binary: bool = False
    #: There was no header at all: hunks only, and both names are empty.
    headless: bool = False

    @property
    def placeholder(self) -> bool:
        """Whether its header names no file ("--- original", or none at all)."""
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
    def names(self) -> set[str]:
        """Every path that it may touch, with and without its first folder."""
        return _both_ways(name for file in self.files for name in (file.old, file.new))

    @property
    def vanishing(self) -> set[str]:
        """The paths among them at which no file is left: what is deleted, and renamed."""
        gone = (file for file in self.files if file.new is None or file.renamed)
        return _both_ways(file.old for file in gone)


@dataclass
class _Draft:
    """A file patch while it is read."""

    old: str | None = None
    new: str | None = None
    named: bool = False
    hunks: list[Hunk] = field(default_factory=list)
    renamed: bool = False
    copied: bool = False
    executable: bool | None = None
    binary: bool = False
    created: bool = False
    deleted: bool = False
    headless: bool = False

    def done(self) -> FilePatch:
        return FilePatch(
            old=None if self.created else self.old,
            new=None if self.deleted else self.new,
            hunks=tuple(self.hunks),
            renamed=self.renamed,
            copied=self.copied,
            executable=self.executable,
            binary=self.binary,
            headless=self.headless,
        )


def parse(text: str) -> ParsedDiff:
    """The files and hunks of a diff. Raises PatchError if there is nothing to read."""
    inside, fenced = _unfenced(_split(text))
    files = _Reader(inside).read()
    if not files:
        raise PatchError(
            "there is no unified diff in it: give '--- a/FILE', '+++ b/FILE' and '@@' hunks"
        )
    return ParsedDiff(files=tuple(files), fenced=fenced)


def unfenced(text: str) -> str:
    """A diff without the code fence that it stands in, if it does, and what is around that."""
    inside, fenced = _unfenced(_split(text))
    return "".join(inside) if fenced else text


def stripped(name: str) -> str:
    """A name without git's prefix, if it has one."""
    return name[2:] if name.startswith(PREFIXES) else name


def _both_ways(names: Iterable[str | None]) -> set[str]:
    """Names with and without their first folders."""
    given = {name for name in names if name}
    return (given | {name.partition("/")[2] for name in given}) - {""}


def _stated(header: str) -> tuple[int, int] | None:
    """How many old and new lines a hunk header states; None if it is not in git's form."""
    found = _RANGE.match(header)
    if found is None:
        return None
    old, new = (1 if count is None else int(count) for count in found.groups())
    return old, new


def special_mode(text: str) -> str | None:
    """The mode of a symbolic link or a submodule that a diff touches, if it does."""
    found = _SPECIAL_MODE.search(text)
    return found[1] if found else None


def unquoted(name: str) -> str:
    """A file name of a header: cut at the tab before a date, git's C quoting undone."""
    name = name.rstrip("\r\n")
    if not name.startswith('"'):
        return name.partition("\t")[0]
    end = re.match(r'"((?:[^"\\]|\\.)*)"', name)
    raw = (end[1] if end else name[1:]).encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(_unescape, raw).decode("utf-8", "surrogateescape")


def _is_epoch(line: str) -> bool:
    found = _EPOCH.search(line)
    if found is None:
        return False
    hours, minutes, sign, zone_hours, zone_minutes = found.groups()
    local = int(hours) * 60 + int(minutes)
    zone = (int(zone_hours) * 60 + int(zone_minutes)) * (-1 if sign == "-" else 1)
    return (local - zone) % (24 * 60) == 0


def _unescape(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return _LETTERS[code] if code in _LETTERS else bytes([int(code, 8) & 255])


def _split(text: str) -> list[str]:
    """Lines with their endings. Only a line feed ends one; the last gets its own."""
    lines = [line + "\n" for line in text.split("\n")]
    if lines[-1] == "\n":
        lines.pop()
    return lines


def _unfenced(lines: list[str]) -> tuple[list[str], bool]:
    """What stands inside code fences, if the diff begins inside one."""
    start = next((n for n, line in enumerate(lines) if line.startswith(("@@", "--- ", "diff "))), 0)
    if sum(line.startswith("```") for line in lines[: start + 1]) % 2 == 0:
        return lines, False
    kept: list[str] = []
    inside = False
    for line in lines:
        if line.startswith("```"):
            inside = not inside
        elif inside:
            kept.append(line)
    return kept, True


def _git_names(line: str) -> tuple[str, ...]:
    """Both names of a "diff --git" line, or none if it cannot be told where the first ends."""
    rest = line.removeprefix("diff --git ").rstrip("\r\n")
    if rest.startswith('"') or rest.endswith('"'):
        return _quoted_names(rest)
    words = rest.split(" ")
    for cut in range(1, len(words)):
        old, new = " ".join(words[:cut]), " ".join(words[cut:])
        if old.partition("/")[2] == new.partition("/")[2] or old == new:
            return (old, new)
    return (words[0], words[1]) if len(words) == 2 else ()


def _quoted_names(rest: str) -> tuple[str, ...]:
    found = re.match(r'("(?:[^"\\]|\\.)*"|\S.*?) ("(?:[^"\\]|\\.)*"|\S.*)$', rest)
    return (unquoted(found[1]), unquoted(found[2])) if found else ()


class _Reader:
    """Reads the lines of a diff from the first to the last."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._at = 0
        self._files: list[_Draft] = []
        #: Whether it reads a commit's message, in which any line may stand.
        self._message = False

    def read(self) -> list[FilePatch]:
        """Every file patch that says something."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("@@"):
                self._hunk()
            elif self._opens_file(self._at):
                self._names()
            else:
                self._header(line)
                self._at += 1
        return [_checked(draft) for draft in self._files]

    def _opens_file(self, at: int) -> bool:
        """Whether a pair of name lines stands there."""
        pair = self._lines[at : at + 2]
        return len(pair) == 2 and pair[0].startswith("--- ") and pair[1].startswith("+++ ")

    def _names(self) -> None:
        pair = self._lines[self._at : self._at + 2]
        old, new = (unquoted(line[4:]) for line in pair)
        if self._message or not self._files or self._files[-1].hunks or self._files[-1].binary:
            self._files.append(_Draft())
        self._message = False
        draft = self._files[-1]
        draft.created |= old == "/dev/null" or _is_epoch(pair[0])
        draft.deleted |= new == "/dev/null" or _is_epoch(pair[1])
        draft.old, draft.new, draft.named = old, new, True
        self._at += 2

    def _header(self, line: str) -> None:
        """A line outside of hunks: git's extended headers, or text that nobody needs."""
        if line == _SIGNATURE or _NEXT_COMMIT.match(line):
            self._message = True
        elif line.startswith("diff --git "):
            self._message = False
            names = _git_names(line)
            draft = _Draft(named=bool(names))
            if names:
                draft.old, draft.new = names
            self._files.append(draft)
        elif self._message or not self._files:
            return
        elif not self._files[-1].hunks:
            _extend(self._files[-1], line)
        elif line.startswith(("+", "-")):
            raise PatchError(
                f"line {self._at + 1} of the diff stands outside of a hunk: {line.rstrip()[:80]!r};"
                " every line of a hunk starts with a space, '+' or '-'"
            )

    def _hunk(self) -> None:
        if not self._files:
            self._files.append(_Draft(old="", new="", headless=True))
        header = self._lines[self._at].rstrip("\r\n")
        self._at += 1
        body = self._counted(_stated(header)) or self._uncounted()
        if all(line.mark == " " for line in body):
            raise PatchError(f"the hunk {header!r} adds and removes nothing")
        hunks = self._files[-1].hunks
        hunks.append(Hunk(number=len(hunks) + 1, header=header, lines=tuple(body)))

    def _counted(self, stated: tuple[int, int] | None) -> list[HunkLine] | None:
        """The body that has the stated counts, as git reads it; None if there is none, or if more
        of the hunk follows upon it, which git would leave out without a word."""
        if stated is None:
            return None
        old, new = stated
        body: list[HunkLine] = []
        at = self._at
        while (old or new) and at < len(self._lines):
            line = self._lines[at]
            if line.startswith(_NO_NEWLINE):
                _unended(body)
            elif not line.startswith(_MARKS) and line not in _EMPTY:
                return None
            else:
                body.append(_body_line(line))
                old -= body[-1].mark != "+"
                new -= body[-1].mark != "-"
            at += 1
        if at < len(self._lines) and self._lines[at].startswith(_NO_NEWLINE):
            _unended(body)
            at += 1
        if old or new or not self._hunk_ends(self._past_blanks(at)):
            return None
        self._at = at
        return body

    def _uncounted(self) -> list[HunkLine]:
        """The body as far as its lines go, whatever the header states."""
        body: list[HunkLine] = []
        blanks = 0
        while not self._hunk_ends(self._at):
            line = self._lines[self._at]
            self._at += 1
            if line.startswith(_NO_NEWLINE):
                _unended(body)
            else:
                body.append(_body_line(line))
            blanks = blanks + 1 if line in _EMPTY else 0
        # An empty line at the end belongs to the text around the diff more often than to the hunk.
        return body[: len(body) - blanks]

    def _past_blanks(self, at: int) -> int:
        while at < len(self._lines) and self._lines[at] in _EMPTY:
            at += 1
        return at

    def _hunk_ends(self, at: int) -> bool:
        """Whether the line there is none of a hunk's."""
        if at >= len(self._lines):
            return True
        line = self._lines[at]
        if line == _SIGNATURE and self._signs(at):
            return True
        if self._opens_file(at):
            return at + 2 >= len(self._lines) or self._lines[at + 2].startswith("@@")
        return not line.startswith((*_MARKS, _NO_NEWLINE)) and line not in _EMPTY

    def _signs(self, at: int) -> bool:
        """Whether a mailed patch ends there: git's version follows, and the next mail if any."""
        after = self._past_blanks(at + 2)
        return after >= len(self._lines) or bool(_NEXT_COMMIT.match(self._lines[after]))


def _checked(draft: _Draft) -> FilePatch:
    """A file patch that names a file and says something of it."""
    if not draft.named and not draft.headless:
        raise PatchError("a 'diff --git' line names no file: give '--- a/FILE' and '+++ b/FILE'")
    patch = draft.done()
    says = patch.hunks or patch.binary or patch.renamed or patch.copied
    if not says and patch.executable is None and None not in (patch.old, patch.new):
        raise PatchError(f"the diff of {patch.new} has no hunks ('@@ …') and changes nothing")
    return patch


def _body_line(line: str) -> HunkLine:
    if line in _EMPTY:
        return HunkLine(mark=" ", text=line)
    mark: Mark = "+" if line[0] == "+" else "-" if line[0] == "-" else " "
    return HunkLine(mark=mark, text=line[1:])


def _unended(body: list[HunkLine]) -> None:
    """The line before has no line ending."""
    if body:
        body[-1] = HunkLine(mark=body[-1].mark, text=body[-1].text.removesuffix("\n"))


def _extend(draft: _Draft, line: str) -> None:
    """Take one of git's extended header lines into account."""
    words = line.rstrip("\r\n")
    if words.startswith(("rename from ", "copy from ")):
        # These carry no prefix; with one, every name is read the same way.
        draft.old, draft.named = "a/" + unquoted(words.partition(" from ")[2]), True
        draft.renamed, draft.copied = words.startswith("rename"), words.startswith("copy")
    elif words.startswith(("rename to ", "copy to ")):
        draft.new, draft.named = "b/" + unquoted(words.partition(" to ")[2]), True
    elif words.startswith(("new mode ", "new file mode ")):
        draft.executable = words.endswith("755")
        draft.created |= words.startswith("new file")
    elif words.startswith("deleted file mode "):
        draft.deleted = True
    elif words.startswith(("GIT binary patch", "Binary files ")):
        draft.binary = True
