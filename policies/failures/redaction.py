"""What is said of a failure to those who may not read prompts and answers.

Names, numbers and places of a contract stay; keys, words and output that are the answer's do not.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable

from mulligan.policies.failures.failure import GIVEN_SCORE, FailureKind
from mulligan.policies.failures.signature import Parts, SignatureExplanation
from mulligan.policies.value import Json

#: A class of errors is a word: what has spaces in it may be a sentence of the answer's.
_NAME = re.compile(r"[^\W_][\w.:/-]{0,59}")
_OUTCOME = re.compile(r"timeout|(?:signal|exit_code) -?\d{1,10}")
_STEP = re.compile(
    r"\.(?P<name>[A-Za-z_][\w-]*)"
    r"|\[(?:\d+|\*)\]"
    r"|\[(?:'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")\]"
)
_LISTED = re.compile(r"edits\[(?:\d+|\*)\]")
#: The last step of such an error's place is a key that the contract does not know.
_UNKNOWN_KEY = ("additionalProperties", "unevaluatedProperties")
#: Parts of a signature that are one name, number or flag.
_PLAIN = ("shape", "truncated", "reason", "exit_code", "provider", "status", "errno", "class",
          "code", "exception")  # fmt: skip


def is_name(text: str | None) -> bool:
    """Whether a code or a cause is one: ``required``, ``rate_limit``, ``tense.past``."""
    return text is not None and _NAME.fullmatch(text) is not None


def redacted_place(
    path: str | None,
    *,
    verifier_id: str | None,
    code: str | None = None,
    schema_path: str | None = None,
) -> str:
    """A finding's place without the answer's own keys: ``$.prices[*].net``; empty if none is left.

    Where the way through the contract is known, only names that stand in it are told. A reporter's
    place is free text, and none is.
    """
    if not path or verifier_id == GIVEN_SCORE:
        return ""
    if verifier_id == "pytest.subprocess":
        return path
    if listed := _LISTED.match(path):
        return listed[0]
    if not path.startswith("$"):
        return ""
    known = None if schema_path is None else set(schema_path.split("/"))
    return "$" + _steps(path, known, code)


def _steps(path: str, known: set[str] | None, code: str | None) -> str:
    told, at = [], 1
    while step := _STEP.match(path, at):
        at = step.end()
        last = at == len(path)
        if name := step["name"]:
            ours = known is None or name in known or (last and code == "required")
            told.append(step[0] if ours and not (last and code in _UNKNOWN_KEY) else ".*")
        else:
            told.append(step[0] if step[0][1] not in "'\"" else "[*]")
    return "".join(told) + ("…" if at < len(path) else "")


def redacted_parts(explained: SignatureExplanation) -> Parts:
    """The parts of a coarse signature that quote nobody."""
    told: Parts = {}
    for name, part in explained.coarse_parts.items():
        kept = _part(name, part, explained)
        if kept not in (None, "", []):
            told[name] = kept
    return told


def _part(name: str, part: Json, explained: SignatureExplanation) -> Json:
    match name, part:
        case "errors", list() if explained.kind is FailureKind.SCHEMA_INVALID:
            return _rows(part, lambda row: _schema_row(row, explained.verifier_id))
        case "errors", list():
            return _rows(part, lambda row: [row[0]] if is_name(row[0]) else [])
        case "tests", list():
            return _rows(part, lambda row: _test_row(row, explained.verifier_id))
        case "outcome", str():
            return part if _OUTCOME.fullmatch(part) else None
        case "decoder", str():
            return part
        case _, str() if name in _PLAIN:
            return part if is_name(part) else None
        case _, int() | float() if name in _PLAIN:
            return part
    return None


def _rows(rows: list[Json], told: Callable[[list[str]], list[Json]]) -> list[Json]:
    """Every row as it may be told, once, in the order of the parts."""
    texts = [[str(cell) for cell in row] for row in rows if isinstance(row, list) and row]
    found: list[Json] = []
    for row in map(told, texts):
        if row and row not in found:
            found.append(row)
    return found


def _schema_row(row: list[str], verifier_id: str | None) -> list[Json]:
    code, schema_path, path = row
    if not is_name(code):
        return []
    place = redacted_place(
        path, verifier_id=verifier_id, code=code, schema_path=schema_path or None
    )
    return [code, schema_path, place]


def _test_row(row: list[str], verifier_id: str | None) -> list[Json]:
    test = redacted_place(row[0], verifier_id=verifier_id)
    # A class of its own is a word of the answer's.
    known = getattr(builtins, row[1], None)
    raised = isinstance(known, type) and issubclass(known, BaseException)
    return [test, row[1]] if test and raised else [test] if test else []
