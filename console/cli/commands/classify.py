"""`mulligan classify`: a failure's kind, the parts of its signature, and its repair."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.console.jobfiles.source_document import read_text
from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.failure import (
    FailureRecord,
    FailureSource,
    Finding,
    VerificationResult,
    failure_record_to_dict,
)
from mulligan.policies.failures.signature import explain_signature
from mulligan.policies.repair.instruction import (
    reduce_failure_to_repair,
    repair_instruction_to_dict,
)
from mulligan.tasks.jobs.validation_errors import problem_of
from mulligan.tasks.ports.errors import BadInput


def classify(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Failure as JSON or text; - is stdin.")
    ],
    attempt: Annotated[int, typer.Option(help="Number of the failed attempt.", min=1)] = 1,
    node: Annotated[
        str | None, typer.Option(help="Node of a graph that failed, such as an item of a loop.")
    ] = None,
    json: Json = False,
) -> None:
    """Classify a failure and show its signature and repair.

    FILE holds a VerificationResult, a record, {"kind": …}, {"exit_code": …} or plain text.
    """
    text = read_text(file, "<stdin>" if file == "-" else file)
    record = _record(text, file, attempt, node)
    instruction, signature = reduce_failure_to_repair(record), explain_signature(record)
    if json:
        screen.emit(
            {
                "record": failure_record_to_dict(record),
                "signature": signature.as_dict(),
                "instruction": repair_instruction_to_dict(instruction),
            }
        )
        return
    place = f"{record.node_id}: " if record.source == "graph" else ""
    screen.say(f"{place}{record.kind}{f' ({record.cause})' if record.cause else ''}", style="bold")
    screen.say(record.message)
    screen.say()
    screen.say(signature.as_text())
    screen.say()
    screen.say(f"{instruction.action}: {instruction.prompt_suffix}")
    for change in _changes(instruction):
        screen.say(f"  {change}", style="dim")


def _record(text: str, file: str, attempt: int, node: str | None) -> FailureRecord:
    """Classify a payload, or raise BadInput."""
    source: FailureSource = "task" if node is None else "graph"
    if not text.strip():
        raise BadInput(f"{file}: is empty")
    try:
        payload = json.loads(text)
    except ValueError:
        payload = text
    try:
        if not isinstance(payload, dict):
            return classify_failure(text.strip(), source=source, attempt=attempt, node_id=node)
        if "classification_signature" in payload:
            return FailureRecord.model_validate(payload)
        if {"status", "verifier_id"} <= payload.keys():
            result = VerificationResult.model_validate(payload)
            source = "verify" if node is None else "graph"
            return classify_failure(result, source=source, attempt=attempt, node_id=node)
        _check_findings(payload)
        return classify_failure(payload, source=source, attempt=attempt, node_id=node)
    except ValidationError as error:
        problems = map(problem_of, error.errors())
        raise BadInput(*(f"{file}: {problem}" for problem in problems)) from None
    except (ValueError, TypeError) as error:
        raise BadInput(f"{file}: {error}") from None


def _check_findings(payload: dict[str, Any]) -> None:
    """Raise ValidationError with the place of each invalid finding."""
    for name in ("findings", "errors"):
        if isinstance(payload.get(name), list):
            TypeAdapter(dict[str, list[Finding]]).validate_python({name: payload[name]})


def _changes(instruction: Any) -> list[str]:
    """List what the next attempt changes in decoding."""
    changes = []
    if instruction.constrained:
        changes.append("constrained to the contract if the runner supports it")
    if instruction.temperature_factor != 1.0:
        changes.append(f"temperature × {instruction.temperature_factor:g}")
    if instruction.token_cap_factor != 1.0:
        changes.append(f"token cap × {instruction.token_cap_factor:g}")
    if not instruction.show_last_answer:
        changes.append("without the last answer")
    return changes
