"""The repair instruction: what the next attempt is told and what it changes, without a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

from mulligan.policies.failures.failure import FailureRecord, Finding
from mulligan.policies.repair.wording import recipe_for
from mulligan.policies.value import Json, Value

#: Longer values are cut: an instruction is a few sentences whatever the answer was.
MAX_VALUE = 160
MAX_MESSAGE = 300

_NUMBERS = frozenset({"integer", "number", "boolean", "null"})


class RepairInstruction(Value):
    """How to repair one failure."""

    #: A stable verb phrase, for statistics and people: ``fix_type``, ``raise_token_cap``…
    action: str
    #: What the corrected prompt says, naming the exact place.
    prompt_suffix: str
    #: The one thing to do next, in a sentence.
    minimal_next_step: str
    #: What the next attempt changes in decoding, relative to the failed one.
    constrained: bool = False
    #: Multiplies the temperature of the failed attempt; 1.0 leaves it.
    temperature_factor: float = 1.0
    #: Multiplies the token cap of the failed attempt; 1.0 leaves it.
    token_cap_factor: float = 1.0
    #: Whether showing the last answer helps (it does not for truncation or a fresh start).
    show_last_answer: bool = True


def reduce_failure_to_repair(record: FailureRecord) -> RepairInstruction:
    """The instruction for one failure: by kind and finer cause, about the finding that decides."""
    recipe = recipe_for(record.kind, record.cause, from_verifier=record.verifier_id is not None)
    words = _words(record)
    return RepairInstruction(
        action=recipe.action,
        prompt_suffix=recipe.say.format_map(words),
        minimal_next_step=recipe.step.format_map(words),
        constrained=recipe.constrained,
        temperature_factor=recipe.temperature,
        token_cap_factor=recipe.token_cap,
        show_last_answer=recipe.show_last_answer,
    )


def repair_instruction_to_dict(instruction: RepairInstruction) -> dict[str, Any]:
    """JSON-friendly form; ``repair_instruction_from_dict`` reads it back."""
    return instruction.model_dump(mode="json")


def repair_instruction_from_dict(data: Mapping[str, Any]) -> RepairInstruction:
    """A stored instruction. Fields of another version are ignored."""
    return RepairInstruction.model_validate(data, extra="ignore")


def one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """A text on one line, cut: it cannot pretend to be another part of a prompt."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def in_words(value: Json) -> str:
    """A value as a prompt shows it: JSON on one line, the items of a list without brackets."""
    if isinstance(value, str):
        return one_line(json.dumps(value, ensure_ascii=False), MAX_VALUE)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return one_line(
            ", ".join(json.dumps(item, ensure_ascii=False) for item in value), MAX_VALUE
        )
    return one_line(json.dumps(value, ensure_ascii=False, default=str), MAX_VALUE)


def _words(record: FailureRecord) -> dict[str, str]:
    """What the sentences of a recipe are filled with."""
    finding = _deciding(record)
    evidence = record.evidence
    return {
        "place": one_line(_place(finding, evidence), MAX_VALUE),
        "expected": _expected(finding, evidence),
        "actual": _actual(finding, evidence),
        "message": one_line(_message(record, finding)).rstrip("."),
        "hint": _hint(finding),
        "rule": finding.code or "limit",
    }


def _deciding(record: FailureRecord) -> Finding:
    """The first finding with the record's own cause, or the first of all."""
    alike = (finding for finding in record.findings if finding.code == record.cause)
    return next(chain(alike, record.findings), Finding(message=record.message))


def _place(finding: Finding, evidence: Mapping[str, Json]) -> str:
    argv = evidence.get("argv")
    if isinstance(argv, list) and argv:
        return "`" + " ".join(map(str, argv)) + "`"
    if finding.path:
        return finding.path
    if failed := _first_failed(evidence):
        return str(failed.get("nodeid") or "the tests")
    return str(argv) if isinstance(argv, str) and argv else "the answer"


def _first_failed(evidence: Mapping[str, Json]) -> Mapping[str, Json]:
    failed = evidence.get("failed")
    first = failed[0] if isinstance(failed, list) and failed else None
    return first if isinstance(first, Mapping) else {}


def _expected(finding: Finding, evidence: Mapping[str, Json]) -> str:
    if finding.expected is None and evidence.get("signal") is not None:
        return f"signal {evidence['signal']}"
    if finding.expected is None:
        # pydantic has no field for it, only "Input should be a valid integer".
        said = finding.message.removeprefix("Input should be ")
        return one_line(said if said != finding.message else "as the contract says", MAX_VALUE)
    if finding.code == "type":
        types = finding.expected if isinstance(finding.expected, list) else [finding.expected]
        return one_line(" or ".join(map(str, types)), MAX_VALUE)
    return in_words(finding.expected)


def _actual(finding: Finding, evidence: Mapping[str, Json]) -> str:
    if finding.code in (None, "exit_code") and evidence.get("exit_code") is not None:
        return f"exit code {evidence['exit_code']}"
    shown = in_words(finding.actual)
    return f"{shown} (a string)" if finding.code == "type" and _is_text(finding) else shown


def _is_text(finding: Finding) -> bool:
    return isinstance(finding.actual, str)


def _hint(finding: Finding) -> str:
    """Of all wrong types, quotes around a number are the slip that small models make most."""
    wanted = finding.expected
    if _is_text(finding) and isinstance(wanted, str) and wanted in _NUMBERS:
        return " Write the bare value without quotes."
    if wanted == "string" and isinstance(finding.actual, int | float):
        return " Put it in double quotes."
    return ""


def _message(record: FailureRecord, finding: Finding) -> str:
    """The most telling line: the end of a command's output, an assertion, the finding."""
    for name in ("stderr_tail", "stdout_tail"):
        tail = record.evidence.get(name)
        if isinstance(tail, str) and tail.strip():
            return tail.strip().splitlines()[-1]
    decoder = record.evidence.get("decoder")
    if isinstance(decoder, str) and decoder:
        return decoder
    failed = {} if record.findings else _first_failed(record.evidence)
    return str(failed.get("assertion") or failed.get("exception") or finding.message)
