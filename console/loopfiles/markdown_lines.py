"""The lines of a Markdown checklist: headings, entries with their nesting, fences, and texts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from mulligan.policies.loops.draft import COMMAND, PYTEST

LineKind = Literal["heading", "box", "bullet", "text", "fence"]
_HEADING = re.compile(r" {0,3}(#{1,6}) +(.*)\Z")
#: The fields of an item that have words of their own in a checklist; `Fields:` has the others.
WRITTEN = frozenset({"id", "title", "prompt", "depends_on", "touches", "pass_criteria", "priority",
                     "verifiers", "emits", "waits_for"})  # fmt: skip
_ENTRY = re.compile(r"( *)(?:[-*+]|\d{1,9}[.)]) +(.*)\Z")
_BOX = re.compile(r"\[([ xX-])\](?: +(.*))?\Z")
_FENCE = re.compile(r"( *)(`{3,}|~{3,})([^`]*)\Z")
#: An id at the beginning of a line: `any.id`: …, or one with a number, such as CP-SPEC-005.
_QUOTED_ID = re.compile(r"`([A-Za-z0-9][A-Za-z0-9_.-]{0,79})` *(?::|[–—-](?= )|\Z) *")
_NUMBERED_ID = re.compile(
    r"(\*\*|__|`)?([A-Z][A-Z0-9]{0,30}(?:[-_.][A-Z0-9]{1,30}){0,8}[-_.][0-9]{1,9})(\*\*|__|`)?"
    r"( *(?::|[–—-](?= )|[.)](?= |\Z)))? *(\*\*|__)? *"
)
_LONG_NUMBER = re.compile(r"[0-9]{3}\Z")
#: Programs that check a code base. Any other code in a text is no command.
_PROGRAMS = frozenset(
    {"pytest", "py.test", "python", "python3", "make", "tox", "nox", "npm", "npx", "yarn", "pnpm",
     "cargo", "go", "mypy", "ruff", "node", "bash", "sh"}
)  # fmt: skip
#: Those that say what they check without an argument.
_ALONE = frozenset({"pytest", "py.test", "tox", "nox"})


@dataclass(frozen=True)
class Line:
    """One line, or a whole fence. ``mark``: of a heading its `#`, of a box what is in it."""

    number: int
    kind: LineKind
    indent: int
    text: str
    mark: str = ""


def read_lines(text: str) -> Iterator[Line]:
    """Yield what a text consists of, without empty lines."""
    lines = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at].replace("\t", "    ") if lines[at][:1] == "\t" else lines[at]
        if fence := _FENCE.match(line):
            end = _end_of_fence(lines, at, fence[2])
            indent = len(fence[1])
            inside = [_without_indent(each, indent) for each in lines[at + 1 : end]]
            yield Line(at + 1, "fence", indent, "\n".join(inside), fence[3].strip())
            at = end + 1
            continue
        if line.strip():
            yield _line(at + 1, line)
        at += 1


def _end_of_fence(lines: list[str], at: int, marks: str) -> int:
    for place in range(at + 1, len(lines)):
        text = lines[place].strip()
        if text.startswith(marks) and not text.strip(marks[0]):
            return place
    return len(lines)


def _without_indent(line: str, indent: int) -> str:
    return line[min(indent, len(line) - len(line.lstrip(" "))) :]


def _line(number: int, line: str) -> Line:
    if heading := _HEADING.match(line):
        return Line(number, "heading", 0, heading[2].rstrip(" #"), heading[1])
    if entry := _ENTRY.match(line):
        indent = len(entry[1])
        if box := _BOX.match(entry[2]):
            return Line(number, "box", indent, box[2] or "", box[1])
        return Line(number, "bullet", indent, entry[2])
    stripped = line.strip(" ")
    return Line(number, "text", len(line) - len(line.lstrip(" ")), stripped)


def split_id(text: str) -> tuple[str, str]:
    """Return the id at the beginning of a line, or nothing, and the rest.

    A name with a number is an id if it is marked, if a colon or a dash follows, or if its number
    has three digits: UTF-8 is none.
    """
    if found := _QUOTED_ID.match(text):
        return found[1], text[found.end() :]
    if found := _NUMBERED_ID.match(text):
        opened, name, closed, separator, late = found.groups()
        rest = text[found.end() :]
        if (opened and (closed or late)) or separator or _LONG_NUMBER.search(name):
            open_still = opened and not (closed or late)
            return name, rest.removesuffix(opened) if open_still else rest
    return "", text


# -- texts that may be quoted ----------------------------------------------------------------------


def quoted(text: str) -> str:
    """Return a text as one line that `unquoted` reads as the same text."""
    plain = text.isprintable() and text == text.strip() and text[:1] not in ('"', "`", "[")
    return text if plain and text[-1:] != "`" else json.dumps(text)


def unquoted(text: str) -> str:
    """Return a text without the quotes or the backticks around it."""
    if text[:1] == '"':
        try:
            value = json.loads(text)
        except ValueError:
            return text
        return value if isinstance(value, str) else text
    if len(text) > 2 and text[0] == text[-1] == "`" and "`" not in text[1:-1]:
        return text[1:-1]
    return text


# -- verifiers -------------------------------------------------------------------------------------


def command_verifier(text: str) -> dict[str, Any] | None:
    """Return the verifier of a command as people write it; None if it is none."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if not words:
        return None
    if words[0] in ("pytest", "py.test"):
        return {"id": PYTEST, **({"args": words[1:]} if words[1:] else {})}
    if words[:3] in (["python", "-m", "pytest"], ["python3", "-m", "pytest"]):
        return {"id": PYTEST, **({"args": words[3:]} if words[3:] else {})}
    return {"id": COMMAND, "argv": words}


def is_command(text: str) -> bool:
    """Whether code in a sentence is a command that checks something."""
    program, _, rest = text.partition(" ")
    return program in _ALONE or (program in _PROGRAMS and bool(rest.strip()))
