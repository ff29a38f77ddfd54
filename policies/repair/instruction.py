"""The repair instruction: what the next attempt asks and changes, decided without a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

from mulligan.policies.failures.failure import FailureRecord, Finding
from mulligan.policies.repair.wording import recipe_for
from mulligan.policies.value import Json, Value

#: Longer values are cut: an instruction is a few sentences, whatever the answer was.
MAX_VALUE = 160
MAX_MESSAGE = 300


class RepairInstruction(Value):
    """How to repair one failure."""

    #: A stable verb phrase, for statistics and people: ``fix_type``, ``raise_token_cap``…
    action: str
    #: The sentences for the corrected prompt, which name the exact place.
    prompt_suffix: str
    #: The one thing to do next, in a sentence.
    minimal_next_step: str
    #: Whether the next attempt constrains decoding.
    constrained: bool = False
    #: Factors for the failed attempt's temperature and token cap.
    temperature_factor: float = 1.0
    token_cap_factor: float = 1.0
    #: Whether showing the last answer helps (not after truncation or in a fresh start).
    show_last_answer: bool = True


def reduce_failure_to_repair(record: FailureRecord) -> RepairInstruction:
    """Return the instruction for a failure: by kind and cause, about its deciding finding."""
    recipe = recipe_for(record.kind, record.cause, from_verifier=record.verifier_id is not None)
    words = _words(record)
    return RepairInstruction(
        action=recipe.action,
        prompt_suffix=recipe.prompt_suffix.format_map(words),
        minimal_next_step=recipe.next_step.format_map(words),
        constrained=recipe.constrained,
        temperature_factor=recipe.temperature,
        token_cap_factor=recipe.token_cap,
        show_last_answer=recipe.show_last_answer,
    )


def repair_instruction_to_dict(instruction: RepairInstruction) -> dict[str, Any]:
    """Return the JSON form, which ``repair_instruction_from_dict`` reads back."""
    return instruction.model_dump(mode="json")


def repair_instruction_from_dict(data: Mapping[str, Any]) -> RepairInstruction:
    """Read a stored instruction. Ignore the fields of another version."""
    return RepairInstruction.model_validate(data, extra="ignore")


def one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """Put a text on one line and cut it, so that it cannot imitate another part of a prompt."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def in_words(value: Json) -> str:
    """Write a value as JSON on one line; the items of a list without brackets."""
    if isinstance(value, str):
        return one_line(json.dumps(value, ensure_ascii=False), MAX_VALUE)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return one_line(
            ", ".join(json.dumps(item, ensure_ascii=False) for item in value), MAX_VALUE
        )
    return one_line(json.dumps(value, ensure_ascii=False, default=str), MAX_VALUE)


def _words(record: FailureRecord) -> dict[str, str]:
    """Return the values of a recipe's placeholders."""
    finding = _deciding(record)
    evidence = record.evidence
    place = one_line(_place(finding, evidence), MAX_VALUE)
    return {
        "place": place or "the answer",
        "at": f" ({place})" if place else "",
        "expected": _expected(finding, evidence),
        "actual": _actual(finding, evidence),
        "message": one_line(_message(record, finding)).rstrip("."),
        "hint": _hint(finding),
        "rule": finding.code or "limit",
    }


def _deciding(record: FailureRecord) -> Finding:
    """Return the first finding with the record's cause, or else the first finding."""
    same_cause = (finding for finding in record.findings if finding.code == record.cause)
    return next(chain(same_cause, record.findings), Finding(message=record.message))


def _place(finding: Finding, evidence: Mapping[str, Json]) -> str:
    argv = evidence.get("argv")
    if isinstance(argv, list) and argv:
        return "`" + " ".join(map(str, argv)) + "`"
    if finding.path:
        return finding.path
    if failed := _first_failed(evidence):
        return str(failed.get("nodeid") or "the tests")
    return argv if isinstance(argv, str) else ""


def _first_failed(evidence: Mapping[str, Json]) -> Mapping[str, Json]:
    failed = evidence.get("failed")
    first = failed[0] if isinstance(failed, list) and failed else None
    return first if isinstance(first, Mapping) else {}


def _expected(finding: Finding, evidence: Mapping[str, Json]) -> str:
    if finding.expected is None and evidence.get("signal") is not None:
        return f"signal {evidence['signal']}"
    if finding.expected is None:
        # pydantic has no field for it, only "Input should be a valid integer".
        rest = finding.message.removeprefix("Input should be ")
        return one_line(rest if rest != finding.message else "as in the schema", MAX_VALUE)
    if finding.code == "type":
        types = finding.expected if isinstance(finding.expected, list) else [finding.expected]
        return one_line(" or ".join(map(str, types)), MAX_VALUE)
    return in_words(finding.expected)


def _actual(finding: Finding, evidence: Mapping[str, Json]) -> str:
    if finding.code in (None, "exit_code") and evidence.get("exit_code") is not None:
        return f"exit code {evidence['exit_code']}"
    shown = in_words(finding.actual)
    is_string = finding.code == "type" and isinstance(finding.actual, str)
    return f"{shown} (a string)" if is_string else shown


def _hint(finding: Finding) -> str:
    """Return advice on quotes: quoting a number is the most frequent error of small models."""
    expected, actual = finding.expected, finding.actual
    if isinstance(actual, str) and expected in ("integer", "number", "boolean", "null"):
        return " Write the value without quotes."
    if expected == "string" and isinstance(actual, int | float):
        return " Put it in double quotes."
    return ""


def _message(record: FailureRecord, finding: Finding) -> str:
    """Return the most specific line: the end of a command's output, an assertion, the finding."""
    for name in ("stderr_tail", "stdout_tail"):
        tail = record.evidence.get(name)
        if isinstance(tail, str) and tail.strip():
            return tail.strip().splitlines()[-1]
    decoder = record.evidence.get("decoder")
    if isinstance(decoder, str) and decoder:
        return decoder
    failed = {} if record.findings else _first_failed(record.evidence)
    return str(failed.get("assertion") or failed.get("exception") or finding.message)
