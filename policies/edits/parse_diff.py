"""Read unified diffs as people, git and models write them.

The reader forgives what carries no meaning (fences, missing headers, wrong counts), and the result
says that it did. Where the lines of a hunk belong is decided in ``fit``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mulligan.policies.edits.patch import (
    FilePatch,
    Hunk,
    HunkLine,
    Mark,
    ParsedDiff,
    PatchError,
    header_counts,
)

#: The date in a name line of diff -N. The epoch means that the file does not exist.
_DATE = re.compile(r"\t(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? ([-+]\d\d:?\d\d)\s*$")
_SIGNATURE = "-- \n"
#: The lines that open the next commit in the output of git log and in a mailbox.
_NEXT_COMMIT = re.compile(r"(?:commit|From) [0-9a-f]{7,}")
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_ESCAPE_LETTERS = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
_NO_NEWLINE = "\\"
#: The length of the longest two paths that a file system takes.
_MAX_NAMES = 8_200
_MARKS = (" ", "+", "-")
#: An empty context line that lost its mark.
_EMPTY = ("\n", "\r\n")
_SPECIAL_MODE = re.compile(
    r"^(?:(?:new file|deleted file|old|new) mode|index [0-9a-f]+\.\.[0-9a-f]+) (120000|160000)\s*$",
    re.MULTILINE,
)


def parse(text: str) -> ParsedDiff:
    """Return the files and hunks of a diff. Raises PatchError if it cannot be read."""
    lines, fenced = _inside_fences(_split(text))
    try:
        files = _Reader(lines).read()
    except UnicodeEncodeError:
        raise PatchError("a file name in the diff is not Unicode text") from None
    if not files:
        raise PatchError(
            "the text contains no unified diff: write '--- a/FILE', '+++ b/FILE' and '@@' hunks"
        )
    return ParsedDiff(files=tuple(files), fenced=fenced)


def strip_fences(text: str) -> str:
    """Return a diff without its code fence and the text around that, if it has one."""
    lines, fenced = _inside_fences(_split(text))
    return "".join(lines) if fenced else text


def special_mode(text: str) -> str | None:
    """Return the mode of the first symbolic link or submodule that a diff touches, if any."""
    found = _SPECIAL_MODE.search(text)
    return found[1] if found else None


def unquote_name(name: str) -> str:
    """Return the file name in a header, without a date and without git's C quoting."""
    name = name.rstrip("\r\n")
    if not name.startswith('"'):
        return name.partition("\t")[0]
    end = re.match(r'"((?:[^"\\]|\\.)*)"', name)
    raw = (end[1] if end else name[1:]).encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(_unescape, raw).decode("utf-8", "surrogateescape")


def _unescape(found: re.Match[bytes]) -> bytes:
    code = found[1]
    known = _ESCAPE_LETTERS.get(code[0])
    return bytes([int(code, 8) & 255 if known is None else known])


def _has_epoch_date(line: str) -> bool:
    found = _DATE.search(line)
    try:
        return found is not None and datetime.fromisoformat(found[1] + found[2]).timestamp() == 0
    except ValueError:
        return False


def _split(text: str) -> list[str]:
    """Split at line feeds only; every line gets its ending, the last one too."""
    return [line + "\n" for line in text.removesuffix("\n").split("\n")]


def _inside_fences(lines: list[str]) -> tuple[list[str], bool]:
    """Return the lines inside code fences, and True, if the diff begins inside one."""
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
    """Return both names of a "diff --git" line, or none if the end of the first is unclear."""
    rest = line.removeprefix("diff --git ").rstrip("\r\n")
    if rest.startswith('"') or rest.endswith('"'):
        found = re.match(r'("(?:[^"\\]|\\.)*"|\S.*?) ("(?:[^"\\]|\\.)*"|\S.*)$', rest)
        return (unquote_name(found[1]), unquote_name(found[2])) if found else ()
    if len(rest) > _MAX_NAMES:
        return ()
    words = rest.split(" ")
    for cut in range(1, len(words)):
        old, new = " ".join(words[:cut]), " ".join(words[cut:])
        if old.partition("/")[2] == new.partition("/")[2] or old == new:
            return (old, new)
    return (words[0], words[1]) if len(words) == 2 else ()


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

    def add_git_header(self, line: str) -> None:
        """Take one of git's extended header lines into account."""
        words = line.rstrip("\r\n")
        if words.startswith(("rename from ", "copy from ")):
            # These carry no prefix; with one, every name is read the same way.
            self.old, self.named = "a/" + unquote_name(words.partition(" from ")[2]), True
            self.renamed, self.copied = words.startswith("rename"), words.startswith("copy")
        elif words.startswith(("rename to ", "copy to ")):
            self.new, self.named = "b/" + unquote_name(words.partition(" to ")[2]), True
        elif words.startswith(("new mode ", "new file mode ")):
            self.executable = words.endswith("755")
            self.created |= words.startswith("new file")
        elif words.startswith("deleted file mode "):
            self.deleted = True
        elif words.startswith(("GIT binary patch", "Binary files ")):
            self.binary = True

    def finish(self) -> FilePatch:
        """Return the file patch. Raises PatchError if it names no file or changes nothing."""
        if not self.named and not self.headless:
            raise PatchError(
                "a 'diff --git' line names no file: write '--- a/FILE' and '+++ b/FILE'"
            )
        patch = FilePatch(
            old=None if self.created else self.old,
            new=None if self.deleted else self.new,
            hunks=tuple(self.hunks),
            renamed=self.renamed,
            copied=self.copied,
            executable=self.executable,
            binary=self.binary,
            headless=self.headless,
        )
        changes = patch.hunks or patch.binary or patch.renamed or patch.copied
        if not changes and patch.executable is None and None not in (patch.old, patch.new):
            raise PatchError(f"the diff of {patch.new} has no hunks ('@@ …') and changes nothing")
        return patch


class _Reader:
    """Reads the lines of a diff from the first to the last."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._at = 0
        self._files: list[_Draft] = []
        #: Inside a commit's message any line may occur.
        self._in_message = False

    def read(self) -> list[FilePatch]:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("@@"):
                self._read_hunk()
            elif self._opens_file(self._at):
                self._read_names()
            else:
                self._read_header(line)
                self._at += 1
        return [draft.finish() for draft in self._files]

    def _opens_file(self, at: int) -> bool:
        """Return whether a pair of name lines begins at this line."""
        pair = self._lines[at : at + 2]
        return len(pair) == 2 and pair[0].startswith("--- ") and pair[1].startswith("+++ ")

    def _read_names(self) -> None:
        pair = self._lines[self._at : self._at + 2]
        old, new = (unquote_name(line[4:]) for line in pair)
        if self._in_message or not self._files or self._files[-1].hunks or self._files[-1].binary:
            self._files.append(_Draft())
        self._in_message = False
        draft = self._files[-1]
        draft.created |= old == "/dev/null" or _has_epoch_date(pair[0])
        draft.deleted |= new == "/dev/null" or _has_epoch_date(pair[1])
        draft.old, draft.new, draft.named = old, new, True
        self._at += 2

    def _read_header(self, line: str) -> None:
        """Read a line outside hunks: one of git's extended headers, or text to ignore."""
        if line == _SIGNATURE or _NEXT_COMMIT.match(line):
            self._in_message = True
        elif line.startswith("diff --git "):
            self._in_message = False
            names = _git_names(line)
            draft = _Draft(named=bool(names))
            if names:
                draft.old, draft.new = names
            self._files.append(draft)
        elif self._in_message or not self._files:
            return
        elif not self._files[-1].hunks:
            self._files[-1].add_git_header(line)
        elif line.startswith(("+", "-")):
            raise PatchError(
                f"line {self._at + 1} of the diff is outside a hunk: {line.rstrip()[:80]!r};"
                " every line of a hunk starts with a space, '+' or '-'"
            )

    def _read_hunk(self) -> None:
        if not self._files:
            self._files.append(_Draft(old="", new="", headless=True))
        header = self._lines[self._at].rstrip("\r\n")
        self._at += 1
        body = self._read_counted(header_counts(header)) or self._read_uncounted()
        if all(line.mark == " " for line in body):
            raise PatchError(f"the hunk {header!r} adds and removes nothing")
        hunks = self._files[-1].hunks
        hunks.append(Hunk(number=len(hunks) + 1, header=header, lines=tuple(body)))

    def _read_counted(self, counts: tuple[int, int] | None) -> list[HunkLine] | None:
        """Read a body that has the stated counts, as git does. Return None if there is none, or
        if more lines of the hunk follow, which git would drop without warning."""
        if counts is None:
            return None
        old, new = counts
        body: list[HunkLine] = []
        at = self._at
        while (old or new) and at < len(self._lines):
            line = self._lines[at]
            if line.startswith(_NO_NEWLINE):
                _drop_last_newline(body)
            elif not line.startswith(_MARKS) and line not in _EMPTY:
                return None
            else:
                body.append(_body_line(line))
                old -= body[-1].mark != "+"
                new -= body[-1].mark != "-"
            at += 1
        if at < len(self._lines) and self._lines[at].startswith(_NO_NEWLINE):
            _drop_last_newline(body)
            at += 1
        if old or new or not self._hunk_ends(self._past_blanks(at)):
            return None
        self._at = at
        return body

    def _read_uncounted(self) -> list[HunkLine]:
        """Read a body as far as its lines go, whatever the header states."""
        body: list[HunkLine] = []
        blanks = 0
        while not self._hunk_ends(self._at):
            line = self._lines[self._at]
            self._at += 1
            if line.startswith(_NO_NEWLINE):
                _drop_last_newline(body)
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
        """Return whether no line of a hunk is here."""
        if at >= len(self._lines):
            return True
        line = self._lines[at]
        if line == _SIGNATURE and self._mail_ends(at):
            return True
        if self._opens_file(at):
            return at + 2 >= len(self._lines) or self._lines[at + 2].startswith("@@")
        return not line.startswith((*_MARKS, _NO_NEWLINE)) and line not in _EMPTY

    def _mail_ends(self, at: int) -> bool:
        """Return whether a signature line ends a mailed patch: git's version follows, then the
        next mail or nothing."""
        after = self._past_blanks(at + 2)
        return after >= len(self._lines) or bool(_NEXT_COMMIT.match(self._lines[after]))


def _body_line(line: str) -> HunkLine:
    if line in _EMPTY:
        return HunkLine(mark=" ", text=line)
    mark: Mark = "+" if line[0] == "+" else "-" if line[0] == "-" else " "
    return HunkLine(mark=mark, text=line[1:])


def _drop_last_newline(body: list[HunkLine]) -> None:
    if body:
        body[-1] = HunkLine(mark=body[-1].mark, text=body[-1].text.removesuffix("\n"))
