"""Redaction of failures for readers who may not see prompts and answers.

Names, numbers and places of a contract are kept; keys, words and output of the answer are removed.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable

from mulligan.policies.failures.failure import GIVEN_SCORE, FailureKind
from mulligan.policies.failures.signature import Parts, SignatureExplanation
from mulligan.policies.value import Json

#: A name has no spaces: a text with spaces may be a sentence of the answer.
_NAME = re.compile(r"[^\W_][\w.:/-]{0,59}")
_OUTCOME = re.compile(r"timeout|(?:signal|exit_code) -?\d{1,10}")
_STEP = re.compile(
    r"\.(?P<name>[A-Za-z_][\w-]*)"
    r"|\[(?:\d+|\*)\]"
    r"|\[(?:'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")\]"
)
_LISTED = re.compile(r"edits\[(?:\d+|\*)\]")
#: Errors whose place ends in a key that the contract does not know.
_UNKNOWN_KEY = ("additionalProperties", "unevaluatedProperties")
#: Parts of a signature that are a single name, number or flag.
_PLAIN = ("shape", "truncated", "reason", "exit_code", "provider", "status", "errno", "class",
          "code", "exception")  # fmt: skip


def is_name(text: str | None) -> bool:
    """Whether a code or a cause is a name: ``required``, ``rate_limit``, ``tense.past``."""
    return text is not None and _NAME.fullmatch(text) is not None


def redacted_place(
    path: str | None,
    *,
    verifier_id: str | None,
    code: str | None = None,
    schema_path: str | None = None,
) -> str:
    """Return a finding's place without keys of the answer: ``$.prices[*].net``; or empty.

    If the path in the contract is known, only its names are kept. The place in an external report
    is free text, so it is dropped.
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
    kept, at = [], 1
    while step := _STEP.match(path, at):
        at = step.end()
        last = at == len(path)
        if name := step["name"]:
            in_contract = known is None or name in known or (last and code == "required")
            kept.append(step[0] if in_contract and not (last and code in _UNKNOWN_KEY) else ".*")
        else:
            kept.append(step[0] if step[0][1] not in "'\"" else "[*]")
    return "".join(kept) + ("…" if at < len(path) else "")


def redacted_parts(explained: SignatureExplanation) -> Parts:
    """Return the parts of a coarse signature that quote neither a prompt nor an answer."""
    kept = {name: _part(name, part, explained) for name, part in explained.coarse_parts.items()}
    return {name: part for name, part in kept.items() if part not in (None, "", [])}


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


def _rows(rows: list[Json], redact: Callable[[list[str]], list[Json]]) -> list[Json]:
    """Redact each row, and drop empty and repeated ones."""
    texts = [[str(cell) for cell in row] for row in rows if isinstance(row, list) and row]
    found: list[Json] = []
    for row in map(redact, texts):
        if row and row not in found:
            found.append(row)
    return found


def _schema_row(row: list[str], verifier_id: str | None) -> list[Json]:
    code, schema_path, path, *_ = row
    if not is_name(code):
        return []
    place = redacted_place(
        path, verifier_id=verifier_id, code=code, schema_path=schema_path or None
    )
    return [code, schema_path, place]


def _test_row(row: list[str], verifier_id: str | None) -> list[Json]:
    test = redacted_place(row[0], verifier_id=verifier_id)
    if not test:
        return []
    # Only names of built-in exceptions: the answer may define and name others.
    known = getattr(builtins, row[1], None)
    is_builtin = isinstance(known, type) and issubclass(known, BaseException)
    return [test, row[1]] if is_builtin else [test]
