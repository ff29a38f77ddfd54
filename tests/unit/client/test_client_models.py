"""Models as contracts: findings of pydantic, the allow-list, and the schemas in submitted jobs."""

from __future__ import annotations

import datetime
import sys
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator
from support.client_models import Person
from support.jobs import make_job

from mulligan.client.schema_form import with_form
from mulligan.policies.failures.failure import Finding, VerificationResult
from mulligan.policies.jobs.job import Output, VerifierSpec
from mulligan.policies.repair.strategy import contract_of
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers import contract_models
from mulligan.workers.contract_models import (
    ContractModels,
    complete_contracts,
    contract_problems,
    reference_of,
    schema_of,
)
from mulligan.workers.ledger.stored.digests import job_digest
from mulligan.workers.verifiers.model_findings import model_findings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

MODELS = "support.client_models"
REFERENCE = f"{MODELS}:Person"


class Span(BaseModel):
    model_config = ConfigDict(extra="forbid")

    first: int
    last: int
    day: datetime.date | None = None
    parts: list[Person] = Field(default_factory=list)

    @model_validator(mode="after")
    def _in_order(self) -> Span:
        assert self.first <= self.last, "first must not be after last"
        return self


def verify(models: ContractModels, text: str, **options: Any) -> VerificationResult:
    spec = VerifierSpec.model_validate({"id": "contract.schema", **options})
    return (
        VerifierRegistry(models=models)
        .build(spec)
        .verify(Candidate(output=Output(text=text), text=text))
    )


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"first": 1, "last": 2}, []),
        ({"first": 2, "last": 1}, [("$", "assertion_error", "first must not be after last")]),
        ({"last": 1}, [("$.first", "required", "Field required")]),
        (
            {"first": 1, "last": 2, "more": 3},
            [("$.more", "additionalProperties", "Extra inputs are not permitted")],
        ),
        (
            {"first": 1, "last": 2, "parts": [{"name": "x", "age": -1}]},
            [
                ("$.parts[0].name", "value_error", "write the name in capital letters"),
                ("$.parts[0].age", "minimum", "Input should be greater than or equal to 0"),
            ],
        ),
    ],
)
def test_each_error_of_pydantic_is_a_finding(value: Any, found: list[tuple[str, ...]]) -> None:
    findings = model_findings(Span, value)
    # pytest adds lines to an assertion's message.
    assert [(f.path, f.code, f.message.splitlines()[0]) for f in findings] == found


def test_a_finding_of_the_schema_is_not_repeated() -> None:
    value = {"first": "x", "last": 2, "parts": [{"name": "x", "age": 1}]}
    findings = model_findings(Span, value, reported=[Finding(message="m", path="$.first")])
    assert [finding.path for finding in findings] == ["$.parts[0].name"]
    assert model_findings(Span, value, reported=[Finding(message="m", path="$")]) == []


def test_a_models_errors_at_counted_places_are_not_reported_twice() -> None:
    """Given a contract's finding that counts 296 places, then none of them is reported again."""

    class Row(BaseModel):
        id: int

    class Rows(BaseModel):
        rows: list[Row]

    value = {"rows": [{"id": "x"}] * 300}
    counted = Finding(message="m", path="$.rows[4].id", count=296)
    assert model_findings(Rows, value, reported=[counted]) == []
    assert [finding.count for finding in model_findings(Rows, value)] == [1, 1, 1, 1, 296]


def test_a_strict_model_is_validated_as_json() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)

        day: datetime.date

    assert model_findings(Strict, {"day": "2026-01-02"}) == []


def test_both_the_schema_and_the_validators_are_checked() -> None:
    models = ContractModels(frozenset({MODELS}))
    result = verify(models, '{"name": "Alice", "age": "31"}', model=REFERENCE)
    assert [(f.path, f.code) for f in result.errors] == [
        ("$.age", "type"),
        ("$.name", "value_error"),
    ]
    assert verify(models, '{"name": "ALICE", "age": 31}', model=REFERENCE).status == "pass"
    assert "not_json" in {f.code for f in verify(models, "prose", model=REFERENCE).errors}


def test_a_taught_model_is_found_by_its_schema() -> None:
    models, text = ContractModels(), '{"name": "Alice", "age": 31}'
    assert verify(models, text, schema=schema_of(Person)).status == "pass"
    registry = VerifierRegistry(models=models)
    spec = VerifierSpec.model_validate({"id": "contract.schema", "schema": schema_of(Person)})
    built = registry.build(spec)  # before the model was registered: verifiers are shared and kept
    models.register(Person)
    candidate = Candidate(output=Output(text=text), text=text)
    assert built.verify(candidate).status == "fail"
    assert verify(models, text, schema={"type": "object"}).status == "pass"


def shouting(*, allowed: bool) -> type[BaseModel]:
    """Return a model with a fixed name and schema whose validator differs."""

    class Shout(BaseModel):
        text: str

        @model_validator(mode="after")
        def _allowed(self) -> Shout:
            assert allowed, "nobody shouts here"
            return self

    return Shout


def test_two_models_with_one_name_and_schema_check_their_own_jobs() -> None:
    models = ContractModels()
    lax, strict = (models.contract(shouting(allowed=allowed)) for allowed in (True, False))
    assert lax["schema"] == strict["schema"]
    registry, text = VerifierRegistry(models=models), '{"text": "HEY"}'
    candidate = Candidate(output=Output(text=text), text=text)
    found = [
        registry.build(VerifierSpec.model_validate(spec)).verify(candidate).status
        for spec in (lax, strict, {"id": "contract.schema", "schema": lax["schema"]})
    ]
    assert found == ["pass", "fail", "pass"]


def test_the_key_of_a_model_is_unique_and_does_not_change_the_job() -> None:
    models, restarted = ContractModels(), ContractModels()
    first = shouting(allowed=True)
    spec, other = models.contract(first), models.contract(shouting(allowed=False))
    assert models.contract(first) == spec == restarted.contract(first)
    assert other["taught"] != spec["taught"]
    mine, theirs = (make_job(verifiers=[each]) for each in (spec, other))
    assert job_digest(mine) == job_digest(theirs), "a notebook finds its jobs when it runs again"
    renamed = {**spec, "schema": {"type": "object"}}
    assert verify(models, "{}", **renamed).status == "pass", "a key belongs to one schema"


def test_only_the_latest_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_models, "_KEPT", 2)
    models = ContractModels()
    specs = [models.contract(shouting(allowed=False)) for _ in range(3)]
    found = [verify(models, '{"text": "HEY"}', **spec).status for spec in specs]
    assert found == ["pass", "fail", "fail"]


@pytest.mark.parametrize(
    ("allowed", "reference", "message"),
    [
        ((), REFERENCE, "the module 'support.client_models' is not allow-listed"),
        (("client",), REFERENCE, "not allow-listed"),
        ((MODELS,), MODELS, "not of the form package.module:Model"),
        ((MODELS,), f"{MODELS}:Missing", "cannot be imported: AttributeError"),
        (("nowhere",), "nowhere.to_be:Found", "cannot be imported: ModuleNotFoundError"),
        ((MODELS,), f"{MODELS}:Outer", "is not a pydantic model"),
    ],
)
def test_an_invalid_model_reference_is_refused(
    allowed: tuple[str, ...], reference: str, message: str
) -> None:
    models = ContractModels(frozenset(allowed))
    with pytest.raises(BadInput, match=message):
        verify(models, "{}", model=reference)
    registry = VerifierRegistry(models=models)
    spec = VerifierSpec.model_validate({"id": "contract.schema", "model": reference})
    assert registry.check([spec], None)[0].field == "verifiers[0].model"


def test_a_module_that_is_not_allowed_is_not_imported() -> None:
    assert "this" not in sys.modules
    with pytest.raises(BadInput):
        ContractModels(frozenset({"that"})).load("this:d")
    assert "this" not in sys.modules


def test_an_allowed_package_includes_its_modules() -> None:
    models = ContractModels(frozenset({"mulligan.policies"}))
    job = models.load("mulligan.policies.jobs.job:Job")
    assert job.__name__ == "Job"
    assert models.load("mulligan.policies.jobs.job:Job") is job
    inner = ContractModels(frozenset({MODELS})).load(f"{MODELS}:Outer.Inner")
    assert reference_of(inner) == f"{MODELS}:Outer.Inner"


def test_submitting_adds_the_schema_of_the_model() -> None:
    models = ContractModels(frozenset({MODELS}))
    job = make_job(verifiers=["json.object", {"id": "contract.schema", "model": REFERENCE}])
    assert contract_of(job) is None
    complete = complete_contracts(job, models)
    assert contract_of(complete) == schema_of(Person)
    assert complete.verifiers[1].options["model"] == REFERENCE
    assert complete_contracts(complete, models) == complete
    assert contract_problems(complete, models) == []
    both = {"id": "contract.schema", "model": REFERENCE, "schema": {"type": "object"}}
    (problem,) = contract_problems(make_job(verifiers=[both]), models)
    assert str(problem) == "verifiers[0].model: give either a model or a schema, not both"


def test_a_model_without_a_json_schema_is_refused_by_name() -> None:
    class Odd(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)

        thing: threading_event  # type: ignore[valid-type]

    with pytest.raises(BadInput, match="Odd has no JSON Schema"):
        schema_of(Odd)


threading_event = type("Event", (), {})


class Order(BaseModel):
    kind: Literal["buy", "sell"]
    note: str | None = None
    people: list[Person]
    until: datetime.date = Field(description="the last day")


@pytest.mark.parametrize(
    ("schema", "form"),
    [
        (
            Order.model_json_schema(),
            '{"kind": "buy" | "sell", "note": string | null, "people":'
            ' [{"name": string, "age": integer}, …], "until": string (date) (the last day)}',
        ),
        ({"type": "array", "items": {"type": "number"}}, "[number, …]"),
        ({"$defs": {"T": {"type": ["string", "null"]}}, "$ref": "#/$defs/T"}, "string | null"),
        ({"const": 7}, "7"),
    ],
)
def test_the_form_of_a_schema(schema: Any, form: str) -> None:
    assert with_form("Do it. ", schema).splitlines() == [
        "Do it.", "", f"Answer with JSON and nothing else, of this form: {form}",
    ]  # fmt: skip


def test_the_form_of_a_recursive_and_of_an_empty_schema() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}}
    assert "any" in with_form("x", {**tree, "$defs": {"Tree": tree}})
    assert with_form("x", {}) == with_form("x", True) == "x"
