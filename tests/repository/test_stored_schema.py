"""Stored bodies change only together with the schema's number.

`schemas/schema-N.txt` records what schema N stores: a line per field with its type, limits and
default. The default counts, because bodies are written without the fields that have it. Options of
verifiers and runners are stored as they were given, so only their names are recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, PlainSerializer, TypeAdapter

from mulligan.policies.cycles.cycle import SelfRepairCycle
from mulligan.policies.edits.session import EditDelta, EditSession
from mulligan.policies.failures.failure import FailureRecord, VerificationResult
from mulligan.policies.jobs.job import AttemptPlan, Job, Output
from mulligan.policies.repair.instruction import RepairInstruction
from mulligan.tasks.escalations.end_escalations import EndAction, EscalationFilter
from mulligan.tasks.ports.ledger import SessionNote
from mulligan.workers.ledger.stored.schema import CURRENT
from mulligan.workers.ledger.stores.tokens import Token
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.settings.model import Settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

FOLDER = Path(__file__).parent / "schemas"
STORED: tuple[type[Any], ...] = (
    Job, AttemptPlan, Output, VerificationResult,  # what a claim reads
    FailureRecord, RepairInstruction, SelfRepairCycle, EditSession, EditDelta, EndAction,
    EscalationFilter, SessionNote, Token,
)  # fmt: skip
ADVICE = 'read "Changing a stored body" in CONTRIBUTING.md'


def shape() -> dict[str, str]:
    """Return what this code stores: `Model.field` or `Enum` → its JSON Schema without texts."""
    found: dict[str, str] = {}
    for model in STORED:
        document = TypeAdapter(model).json_schema()
        for name, schema in [(model.__name__, document), *document.get("$defs", {}).items()]:
            if "properties" not in schema:
                found[name] = compact(schema)
            for field, about in schema.get("properties", {}).items():
                required = " required" if field in schema.get("required", ()) else ""
                found[f"{name}.{field}"] = compact(about) + required
    return found | dict.fromkeys(options(), "option")


def options() -> Iterator[str]:
    """Yield the options of the built-in verifiers and runners."""
    verifiers = VerifierRegistry(plugins=list).option_models()
    runners = RunnerRegistry({}).option_models()
    for spec, known in (("VerifierSpec", verifiers), ("RunnerSpec", runners)):
        for name, model in known.items():
            yield from (f"{spec}.{name}:{each}" for each in (model.model_fields if model else ()))


def compact(schema: Any) -> str:
    return json.dumps(_without_texts(schema), sort_keys=True, separators=(",", ":"))


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_texts(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {k: _without_texts(v) for k, v in schema.items() if k not in ("title", "description")}
    if isinstance(kept.get("default"), dict):  # the fields of the default have lines of their own
        kept["default"] = {k: v for k, v in kept["default"].items() if v is not None}
    if kept.get("uniqueItems") and "default" in kept:
        kept["default"] = sorted(kept["default"])
    return kept


def recorded(number: int) -> dict[str, str]:
    text = (FOLDER / f"schema-{number}.txt").read_text()
    return dict(line.split(" ", 1) for line in text.splitlines())


def expected(number: int) -> dict[str, str]:
    """Return the shape without what later schemas added."""
    later = {place for place, since in CURRENT.added.items() if since > number}
    more_values = {place.partition("=")[0] for place in later if "=" in place}
    return {k: v for k, v in shape().items() if k not in later and k not in more_values}


@pytest.mark.parametrize("number", range(1, CURRENT.number + 1))
def test_what_is_stored_is_what_was_recorded(number: int) -> None:
    known, found = recorded(number), expected(number)
    changed = {
        place: f"recorded {known.get(place, 'nothing')}, found {found.get(place, 'nothing')}"
        for place in known.keys() | found.keys()
        if known.get(place) != found.get(place) and place in found
    }
    assert not changed, f"{ADVICE}; schema {number}"
    assert known.keys() <= shape().keys(), f"a stored field was removed: {ADVICE}"


def test_the_number_is_the_newest_that_added_something() -> None:
    assert CURRENT.number == max(CURRENT.added.values(), default=1)


def test_what_schemas_added_exists() -> None:
    assert {place.partition("=")[0] for place in CURRENT.added} <= shape().keys()


def _classes(value: type[BaseModel]) -> list[type[BaseModel]]:
    return [value, *(each for sub in value.__subclasses__() for each in _classes(sub))]


def test_every_set_of_a_model_is_written_in_order() -> None:
    """A set's order differs between processes: it must not reach storage, a hash or the screen."""
    assert Settings in _classes(BaseModel)
    unordered = [
        f"{model.__name__}.{name}"
        for model in _classes(BaseModel)
        if model.__module__.startswith("mulligan.")
        for name, field in model.model_fields.items()
        if "set[" in str(field.annotation)
        and not any(isinstance(each, PlainSerializer) for each in field.metadata)
    ]
    assert unordered == []
