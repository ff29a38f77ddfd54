"""Find a program's own first error in its output.

Programs end with a summary ("Found 3 errors.", "make: *** [x] Error 1"), which says nothing about
what to correct. A Python traceback ends with the error; compilers and linters begin with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Characters of the line, and of each line that is looked at.
MAX_LINE = 300
#: Lines to look at, from the start and from the end of a long output.
_MAX_LINES = 2_000

#: Lines that count or repeat errors, or say only that there are some.
_SUMMARY = re.compile(
    r"""(?ix)
    ^\s*(?:
      (?:found|there\ (?:was|were)|total:?)?\s*\d+\s+(?:errors?|problems?|warnings?|failures?)\b.*
    | .*\bfound\s+\d+\s+(?:errors?|problems?|issues?|warnings?)\b.*
    | \[\*\]\ \d+\ fixable.*
    | [✖x]\ \d+\ problems?.*
    | \w*make(?:\[\d+\])?:\ \*\*\*\ \[.*\]\ error\ \d+.*
    | \w*make(?:\[\d+\])?:\ (?:entering|leaving)\ directory.*
    | error:\ (?:aborting\ due\ to|could\ not\ compile|process\ didn't\ exit).*
    | (?:some\ errors\ have\ detailed|for\ more\ information\ about\ this\ error).*
    | collect2:\ error:\ ld\ returned.*
    | compilation\ terminated\.?
    | npm\ (?:err!|error).*
    | (?:error:\ )?(?:the\ )?(?:command|process|script|task)\b.*\b(?:failed|exit(?:ed)?)\b.*
    | exit(?:ed\ with)?\ (?:code|status):?\ \d+.*
    | fail(?:ed|ure)?!?(?:\s+\(.*\)|\s+[\w./-]+\s+[\d.]+s|\s+[\w./-]+\s+\[.*\])?
    | (?:build|lint|checks?)\ failed.*
    | ran\ \d+\ tests?.*
    | .*\b\d+\ (?:passed|failed)\b.*
    | (?:[=\-_~*#]{3,}.*|[\s|^~\d=\-_]+)
    | (?:at|help|note|hint):?\ .*
    | \#\ .*
    )$"""
)
#: A line that is about an error: a place with a message, a code of a linter, a word for an error.
_PLACE = r"(?:[A-Za-z]:)?[^\s:()]{1,200}"
_ERROR = re.compile(
    rf"""(?x)
    ^\s{{0,4}}(?:
      {_PLACE}[:(]\d+(?:[:,]\d+)?\)?:?\s*(?:-\s+)?(?:fatal\ )?(?:error|Error|ERROR)\b
    | {_PLACE}:\d+:\d+:\ (?!warning\b|note\b|info\b|In\ )\S
    | {_PLACE}:\(\S+\):\ \S
    | vet:\ \S
    | (?:fatal\ )?error(?:\[\w+\])?:\ \S
    | (?:ERROR|FATAL|Error|FAIL|panic|fatal)\b:?\s+\S
    | \S+:\ (?:fatal\ )?error:?\ \S
    | \S+:\ error\ \(.*\):\ \S
    | \S+:\ \*\*\*\ \S
    | [A-Z]{{1,5}}\d{{2,5}}\ \S
    | invalid-syntax:\ \S
    | \d+:\d+\s+error\s+\S
    )"""
)
#: The last line of a traceback: the class of an exception, and its message.
_RAISED = re.compile(
    r"^(?:[A-Za-z_][\w.]{0,200}\.)?[A-Z]\w{0,100}"
    r"(?:Error|Exception|Exit|Interrupt|Warning|Failure|NotFound|Iteration|Timeout)\b(?::|$)"
)
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
#: Where rustc and ruff point to below their message.
_POINTER = re.compile(r"^\s{0,8}-->\s+(\S.*)$")
_FILE_LINE = re.compile(r'^\s{2,8}File "([^"]{1,300})", line (\d+)')


def first_error(stderr: str, stdout: str = "") -> str:
    """Return the first error that a program reported, on one line; empty if it printed nothing."""
    streams = [_lines(text) for text in (stderr, stdout)]
    for lines in streams:
        if found := _traceback(lines) or _reported(lines):
            return found[:MAX_LINE]
    for lines in streams:
        for line in reversed(lines):
            if not _SUMMARY.match(line):
                return line.strip()[:MAX_LINE]
    return next((lines[-1].strip()[:MAX_LINE] for lines in streams if lines), "")


def _lines(text: str) -> list[str]:
    lines = [line[: MAX_LINE * 2].rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) > 2 * _MAX_LINES:
        lines = lines[:_MAX_LINES] + lines[-_MAX_LINES:]
    return lines


def _reported(lines: Sequence[str]) -> str:
    """Return the first line that reports an error, with the place that follows it."""
    for at, line in enumerate(lines):
        raised = _RAISED.match(line)
        if raised or (_ERROR.match(line) and not _SUMMARY.match(line)):
            place = _place_before(lines[:at]) if raised else _place_after(lines[at + 1 : at + 2])
            return f"{place}{line.strip()}"
    return ""


def _traceback(lines: Sequence[str]) -> str:
    """Return the end of the first traceback, or of the last one that is chained to it."""
    found = ""
    for at, line in enumerate(lines):
        if line.strip() != _TRACEBACK or (found and not _is_chained(lines[at - 1])):
            continue
        rest = lines[at + 1 :]
        end = next((n for n, each in enumerate(rest) if not each.startswith((" ", "\t"))), None)
        if end is not None:
            found = f"{_place_before(rest[:end])}{rest[end]}"
    return found


def _is_chained(line: str) -> bool:
    return line.strip().startswith(_CHAINED)


def _place_after(following: Sequence[str]) -> str:
    found = _POINTER.match(following[0]) if following else None
    return f"{found[1]}: " if found else ""


def _place_before(frames: Sequence[str]) -> str:
    """Return the file and the line of the innermost frame."""
    found = [match for frame in frames[-40:] if (match := _FILE_LINE.match(frame))]
    return f"{found[-1][1]}:{found[-1][2]}: " if found else ""
