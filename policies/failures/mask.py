"""Masks for the parts of a text that change from run to run although the failure is the same.

Every pattern is linear in its input: repetitions are bounded, or anchored to the start of a token
and followed by nothing that makes them backtrack over it twice. Inputs are cut all the same,
because a model's text may be written to attack a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

#: Longer inputs are cut first.
MAX_INPUT = 8 * 1024


class Level(IntEnum):
    """How much is masked; each level includes the ones before it."""

    #: Where it ran: directories, addresses, process ids. Never part of a failure.
    PLACE = 1
    #: When and how it ran: positions, dates, durations, ports, numbers in running text.
    NOISE = 2
    #: What was compared: operands and quoted values. Only coarse signatures drop them.
    OPERAND = 3


class Mask(NamedTuple):
    name: str
    level: Level
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]


#: A character of a path.
_CHAR = r"[^\s'\"`()\[\]{}=,:;<>|]"
#: Where a path can start: not inside another path.
_START = rf"(?<!{_CHAR})"
_DIGITS = r"\d{1,300}"
#: A number of errors: ``12 errors``, ``3 rows are wrong``, ``errors: 12``.
_WRONG = (
    r"(?:errors?|fail(?:s|ed|ing|ures?)?|problems?|issues?|warnings?|violations?|mistakes?"
    r"|mismatch(?:es)?|missing|wrong|incorrect|invalid)"
)
_COUNT = (
    rf"\d{{1,9}} (?:\w{{1,20}} ){{0,4}}{_WRONG}\b"
    r"|(?<=errors: )\d|(?<=errors=)\d|(?<=failed: )\d|(?<=failed=)\d"
)


def _temporary(match: re.Match[str]) -> str:
    """Keep the file's name; every directory above it may have a random name."""
    parts = [part for part in (match["rest"] or "").split("/") if part]
    return f"<tmp>/{parts[-1]}" if len(parts) > 1 else "<tmp>"


def _mask(name: str, level: Level, pattern: str, replacement: str) -> Mask:
    return Mask(name, level, re.compile(pattern), replacement)


#: Applied in this order: a mask may rely on the ones above it.
MASKS: tuple[Mask, ...] = (
    _mask("ansi", Level.PLACE, r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|[@-Z\\-_])", ""),
    _mask("site-packages", Level.PLACE, rf"{_START}{_CHAR}*/(?:site|dist)-packages(?=/)", "<site>"),
    Mask(
        "temporary directory",
        Level.PLACE,
        re.compile(rf"{_START}/(?:{_CHAR}*?/)?(?:tmp|temp|shm|T)(?P<rest>/{_CHAR}*)?(?!{_CHAR})"),
        _temporary,
    ),
    _mask("temporary name", Level.PLACE, r"\btmp[a-z0-9_]{8}\b", "<tmp>"),
    _mask(
        "home directory",
        Level.PLACE,
        rf"{_START}/(?:root|(?:home|Users)/[^\s/'\"`()=,:;<>|]{{1,255}})(?=/|(?!{_CHAR}))",
        "<home>",
    ),
    _mask("address", Level.PLACE, r"\bat 0x[0-9a-fA-F]{1,300}|\b0x[0-9a-fA-F]{8,300}", "at <addr>"),
    _mask(
        "uuid",
        Level.PLACE,
        r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F])",
        "<uuid>",
    ),
    _mask(
        "process id",
        Level.PLACE,
        rf"(?i)\b(p?pid|process|tid|thread)([ =:#\[(]{{1,3}}){_DIGITS}\b",
        r"\1\2<pid>",
    ),
    _mask("file position", Level.PLACE, rf"(\.[A-Za-z]\w{{0,5}}):{_DIGITS}(?::{_DIGITS})?", r"\1"),
    _mask(
        "hash",
        Level.NOISE,
        r"\b(?=[0-9]{0,64}[a-f])(?=[a-f]{0,64}[0-9])[0-9a-f]{8,128}\b",
        "<hash>",
    ),
    _mask(
        "date",
        Level.NOISE,
        r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?\b"
        r"|\b\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?\b",
        "<date>",
    ),
    _mask(
        "duration",
        Level.NOISE,
        r"\b\d{1,12}(?:\.\d{1,12})?\s?(?:[nuµm]?s|secs?|seconds?|mins?|minutes?|h|hours?)\b",
        "<time>",
    ),
    _mask(
        "ip",
        Level.NOISE,
        r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b"
        r"|(?<![\w:>)\]])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{1,4}(?![\w:])",
        "<ip>",
    ),
    _mask("port", Level.NOISE, r"(?i)\b(port[ =:]{1,2}|localhost:)\d{1,5}\b", r"\1<port>"),
    _mask(
        "line and column",
        Level.NOISE,
        rf"(?i)\b(lines?|lineno|columns?|col|char|character|offset)[ =:]{{1,2}}{_DIGITS}\b",
        r"\1 <n>",
    ),
    _mask(
        "turn",
        Level.NOISE,
        rf"(?i)\b(attempt|try|retry|run|request|id)([ #]){_DIGITS}\b",
        r"\1\2<n>",
    ),
    _mask("position", Level.NOISE, rf"(?<=[\w>)\]]):{_DIGITS}(?::{_DIGITS})?\b", ":<n>"),
    _mask("quoted value", Level.OPERAND, r"'[^'\n]*'|\"[^\"\n]*\"", "<value>"),
    _mask(
        "number",
        Level.NOISE,
        rf"(?<![\w.])(?!(?i:{_COUNT}))[-+]?(?:0x[0-9a-fA-F]{{1,300}}|{_DIGITS}(?:\.{_DIGITS})?(?:[eE][-+]?\d{{1,9}})?)",
        "<n>",
    ),
    # A strict signature keeps it: fewer errors are progress.
    _mask("number of errors", Level.OPERAND, rf"(?<![\w.]){_DIGITS}\b", "<n>"),
)

#: Lines with a comparison. Their numbers are operands, which a strict signature keeps: from
#: ``2 == 0`` to ``1 == 0`` is progress.
_COMPARES = re.compile(r"assert|[!=]=|\bexpected\b", re.IGNORECASE)
_COMPARISON = re.compile(r" (?:==|!=|<=|>=|<|>|not in|in|is not|is) ")
_PREFIX = re.compile(r"^(?:[A-Za-z_.]{0,100}(?:Error|Exception|Failed|Failure): )?(?:assert\b ?)?")


def mask(text: str, level: Level = Level.NOISE, *, roots: Sequence[str] = ()) -> str:
    """Mask what changes from run to run. ``roots`` are paths of workspaces."""
    text = text[:MAX_INPUT]
    for root in sorted(filter(None, (root.rstrip("/") for root in roots)), key=len, reverse=True):
        text = text.replace(root, "<workspace>")
    for row in MASKS:
        if row.level <= level:
            text = row.pattern.sub(row.replacement, text)
    return text


def mask_lines(text: str, level: Level, *, roots: Sequence[str] = ()) -> str:
    """Mask running text line by line. Below OPERAND, comparisons keep their operands."""
    return "\n".join(
        _mask_line(line.strip(), level, roots)
        for line in text[:MAX_INPUT].splitlines()
        if line.strip()
    )


def _mask_line(line: str, level: Level, roots: Sequence[str]) -> str:
    if not _COMPARES.search(line):
        return mask(line, level, roots=roots)
    return mask_assertion(line, coarse=level >= Level.OPERAND, roots=roots)


def mask_assertion(text: str, *, coarse: bool, roots: Sequence[str] = ()) -> str:
    """Mask the first line of an assertion. A coarse one keeps only the operator."""
    line = first_line(text).removeprefix("E ").strip()
    if not coarse:
        return mask(line, Level.PLACE, roots=roots)
    line = mask(line, Level.OPERAND, roots=roots)
    prefix = _PREFIX.match(line)
    head = prefix.group() if prefix else ""
    operator = _COMPARISON.search(line, len(head))
    if operator:
        return f"{head}…{operator.group()}…"
    return f"{head}…" if head.endswith("assert ") else line


def first_line(text: str) -> str:
    """Return the first line that is not blank; pytest's ``+  where`` lines come after it."""
    return next((line.strip() for line in text[:MAX_INPUT].splitlines() if line.strip()), "")
