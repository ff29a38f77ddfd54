"""contract.schema: the vocabulary of draft 2020-12 and draft-07, and its findings.

The official suite needs the network; this table has every keyword with a value that fits it and
one that breaks it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mulligan.policies.failures.failure import Finding, VerificationStatus
from mulligan.policies.jobs.job import Output
from mulligan.tasks.ports.errors import BadInput, VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.verifiers.contract_schema import MAX_FINDINGS, Contract, ContractSchema

PASS, FAIL = VerificationStatus.PASS, VerificationStatus.FAIL
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"

INTEGER, STRING = {"type": "integer"}, {"type": "string"}

#: Schema, a value that fits it, one that breaks it, and the code of the error.
BOTH: list[tuple[dict[str, Any], Any, Any, str]] = [
    ({"type": "null"}, None, 0, "type"),
    ({"type": "boolean"}, True, 1, "type"),
    ({"type": "integer"}, 1.0, 1.5, "type"),
    ({"type": "number"}, 1.5, "1.5", "type"),
    ({"type": "string"}, "a", 1, "type"),
    ({"type": "array"}, [], {}, "type"),
    ({"type": "object"}, {}, [], "type"),
    ({"type": ["string", "null"]}, None, 3, "type"),
    ({"enum": [1, "a", None, [2]]}, [2], [3], "enum"),
    ({"enum": [False]}, False, 0, "enum"),
    ({"const": {"a": 1}}, {"a": 1}, {"a": 2}, "const"),
    ({"multipleOf": 0.5}, 1.5, 1.25, "multipleOf"),
    ({"maximum": 3}, 3, 4, "maximum"),
    ({"exclusiveMaximum": 3}, 2.9, 3, "exclusiveMaximum"),
    ({"minimum": 3}, 3, 2, "minimum"),
    ({"exclusiveMinimum": 3}, 3.1, 3, "exclusiveMinimum"),
    ({"maxLength": 2}, "éé", "abc", "maxLength"),
    ({"minLength": 2}, "😀😀", "😀", "minLength"),
    ({"pattern": "^a+$"}, "aaa", "ab", "pattern"),
    ({"maxItems": 1}, [1], [1, 2], "maxItems"),
    ({"minItems": 1}, [1], [], "minItems"),
    ({"uniqueItems": True}, [1, True], [1, 1.0], "uniqueItems"),
    ({"items": INTEGER}, [1, 2], [1, "2"], "type"),
    ({"contains": STRING}, [1, "a"], [1, 2], "contains"),
    ({"maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}, "maxProperties"),
    ({"minProperties": 1}, {"a": 1}, {}, "minProperties"),
    ({"required": ["a"]}, {"a": None}, {}, "required"),
    ({"properties": {"a": INTEGER}}, {"b": "x"}, {"a": "x"}, "type"),
    ({"patternProperties": {"^n_": INTEGER}}, {"n_a": 1}, {"n_a": "1"}, "type"),
    (
        {"properties": {"a": {}}, "additionalProperties": False},
        {"a": 1},
        {"b": 1},
        "additionalProperties",
    ),
    ({"additionalProperties": INTEGER}, {"a": 1}, {"a": "1"}, "type"),
    ({"propertyNames": {"maxLength": 2}}, {"ab": 1}, {"abc": 1}, "propertyNames"),
    ({"if": INTEGER, "then": {"minimum": 5}}, 5, 4, "minimum"),
    ({"if": INTEGER, "else": STRING}, "a", [], "type"),
    ({"allOf": [INTEGER, {"minimum": 3}]}, 3, 2, "minimum"),
    ({"anyOf": [INTEGER, STRING]}, "a", [], "anyOf"),
    ({"oneOf": [INTEGER, {"minimum": 3}]}, 1, 4, "oneOf"),
    ({"oneOf": [INTEGER, STRING]}, 1, [], "oneOf"),
    ({"not": INTEGER}, "a", 1, "not"),
    ({"properties": {"a": False}}, {}, {"a": 1}, "falseSchema"),
    ({"$ref": "#/$defs/n", "$defs": {"n": INTEGER}}, 1, "1", "type"),
    (
        {"properties": {"next": {"$ref": "#"}}, "required": ["v"]},
        {"v": 1},
        {"v": 1, "next": {}},
        "required",
    ),
    ({"title": "t", "description": "d", "default": 1, "type": "string"}, "a", 1, "type"),
    ({"examples": [1], "$comment": "c", "readOnly": True, "type": "string"}, "a", 1, "type"),
]

ONLY_2020: list[tuple[dict[str, Any], Any, Any, str]] = [
    ({"prefixItems": [INTEGER, STRING]}, [1, "a", None], [1, 2], "type"),
    ({"prefixItems": [INTEGER], "items": False}, [1], [1, 2], "falseSchema"),
    ({"contains": STRING, "minContains": 2}, ["a", "b"], ["a"], "minContains"),
    ({"contains": STRING, "maxContains": 1}, ["a", 1], ["a", "b"], "maxContains"),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 2}, {"a": 1}, "required"),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1, "b": 2}, {"a": 1}, "required"),
    ({"unevaluatedItems": False, "prefixItems": [{}]}, [1], [1, 2], "unevaluatedItems"),
    (
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        {"a": 1},
        {"b": 1},
        "unevaluatedProperties",
    ),
    ({"$ref": "#n", "$defs": {"x": {"$anchor": "n", "type": "integer"}}}, 1, "1", "type"),
    (
        {"$ref": "item", "$id": "https://a.example/s", "$defs": {"x": {"$id": "item", **INTEGER}}},
        1,
        "1",
        "type",
    ),
    (
        {
            "$dynamicRef": "#node",
            "$defs": {"n": {"$dynamicAnchor": "node", "type": "integer"}},
        },
        1,
        "1",
        "type",
    ),
    ({"$ref": "#/$defs/n", "minimum": 3, "$defs": {"n": INTEGER}}, 3, 2, "minimum"),
    ({"deprecated": True, "writeOnly": True, "type": "string"}, "a", 1, "type"),
]

ONLY_07: list[tuple[dict[str, Any], Any, Any, str]] = [
    ({"items": [INTEGER, STRING]}, [1, "a", None], [1, 2], "type"),
    ({"items": [INTEGER], "additionalItems": False}, [1], [1, 2], "additionalItems"),
    ({"items": [INTEGER], "additionalItems": STRING}, [1, "a"], [1, 2], "type"),
    ({"dependencies": {"a": ["b"]}}, {"a": 1, "b": 2}, {"a": 1}, "required"),
    ({"dependencies": {"a": {"required": ["b"]}}}, {"a": 1, "b": 2}, {"a": 1}, "required"),
    ({"$ref": "#/definitions/n", "definitions": {"n": INTEGER}}, 1, "1", "type"),
    ({"$ref": "#n", "definitions": {"x": {"$id": "#n", **INTEGER}}}, 1, "1", "type"),
    ({"contentEncoding": "base64"}, "aGk=", "!!!", "contentEncoding"),
    ({"contentMediaType": "application/json"}, "{}", "{", "contentMediaType"),
]

FORMATS: list[tuple[str, str, str]] = [
    ("date-time", "2026-02-28T12:00:00Z", "2026-02-30T12:00:00Z"),
    ("date", "2024-02-29", "2026-02-29"),
    ("time", "12:00:00Z", "25:00:00Z"),
    ("duration", "P3DT4H", "3 days"),
    ("email", "ann@example.org", "ann at example.org"),
    ("idn-email", "실례@실례.테스트", "no at sign"),
    ("hostname", "www.example.org", "-bad-.example.org"),
    ("idn-hostname", "실례.테스트", "〮한국"),
    ("ipv4", "127.0.0.1", "256.0.0.1"),
    ("ipv6", "::1", "12345::"),
    ("uri", "https://example.org/a?b#c", "no scheme"),
    ("uri-reference", "/a/b#c", "\\\\windows\\share"),
    ("iri", "http://ƒøø.ßår/?∂éœ=πîx", "//no/scheme"),
    ("iri-reference", "/âππ", "\\\\win\\âππ"),
    ("uuid", "2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08"),
    ("uri-template", "http://a.example/{id}", "http://a.example/{id"),
    ("json-pointer", "/a/~1b", "a/~2"),
    ("relative-json-pointer", "1/a", "/a"),
    ("regex", "^(a|b)$", "^(a|b$"),
]

ROWS = [
    pytest.param(draft, *row, id=f"{name}-{next(iter(row[0]))}-{index}")
    for name, draft, table in (
        ("2020-12", DRAFT_2020, BOTH + ONLY_2020),
        ("07", DRAFT_07, BOTH + ONLY_07),
    )
    for index, row in enumerate(table)
]


def errors(schema: Any, value: Any) -> list[Finding]:
    return Contract.of(schema).errors(value, len(str(value)))


@pytest.mark.parametrize(("draft", "schema", "good", "bad", "code"), ROWS)
def test_every_keyword_is_checked(
    draft: str, schema: dict[str, Any], good: Any, bad: Any, code: str
) -> None:
    schema = {"$schema": draft, **schema}
    assert errors(schema, good) == []
    found = errors(schema, bad)
    assert found
    assert all(finding.message and finding.path for finding in found)
    assert [finding.code for finding in found] == [code]


@pytest.mark.parametrize(("draft", "schema", "good", "bad", "code"), ROWS[: len(BOTH + ONLY_2020)])
def test_2020_12_is_the_default(
    draft: str, schema: dict[str, Any], good: Any, bad: Any, code: str
) -> None:
    assert errors(schema, good) == []
    assert errors(schema, bad)


#: draft-07 does not have these two.
FORMATS_07 = [row for row in FORMATS if row[0] not in ("duration", "uuid")]


@pytest.mark.parametrize(
    ("draft", "name", "good", "bad"),
    [(DRAFT_2020, *row) for row in FORMATS] + [(DRAFT_07, *row) for row in FORMATS_07],
)
def test_formats_are_asserted(draft: str, name: str, good: str, bad: str) -> None:
    schema = {"$schema": draft, "format": name}
    assert errors(schema, good) == []
    assert [finding.code for finding in errors(schema, bad)] == ["format"]
    assert errors(schema, 3) == [], "formats apply only to strings"


def test_boolean_schemas() -> None:
    assert errors(True, {}) == []
    assert [finding.code for finding in errors(False, {})] == ["falseSchema"]


PERSON = {
    "type": "object",
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0},
        "pets": {"type": "array", "items": {"type": "object", "required": ["kind"]}},
        "odd key": {"enum": ["a", "b"]},
    },
}


def test_all_errors_are_reported_with_their_places() -> None:
    value = {"age": "31", "pets": [{"kind": "cat"}, {}], "odd key": "c", "extra": 1}
    found = {(f.path, f.code, f.schema_path): f for f in errors(PERSON, value)}
    assert set(found) == {
        ("$.name", "required", "/required"),
        ("$.age", "type", "/properties/age/type"),
        ("$.pets[1].kind", "required", "/properties/pets/items/required"),
        ("$['odd key']", "enum", "/properties/odd key/enum"),
        ("$.extra", "additionalProperties", "/additionalProperties"),
    }
    wrong_type = found["$.age", "type", "/properties/age/type"]
    assert (wrong_type.expected, wrong_type.actual) == ("integer", "31")
    missing = found["$.name", "required", "/required"]
    assert (missing.expected, missing.actual) == ("name", ["age", "extra", "odd key", "pets"])


def test_the_nearest_alternative_is_explained() -> None:
    schema = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["a"]}]}
    [finding] = errors(schema, {})
    assert finding.code == "anyOf"
    assert '"a" is a required property' in finding.message


def test_values_in_findings_are_short() -> None:
    [finding] = errors({"type": "integer"}, {"long": "x" * 10_000})
    assert len(finding.message) <= 300
    assert len(str(finding.actual)) <= 120
    json.dumps(finding.model_dump(mode="json"))


def test_a_lone_surrogate_in_a_key_can_be_stored() -> None:
    result = verify(PERSON, '{"\\ud800": 1}')
    assert result.status is FAIL
    result.model_dump_json()


# -- the verifier ---------------------------------------------------------------------------------


def verify(schema: Any, text: str, finish_reason: str = "stop") -> Any:
    verifier = ContractSchema(ContractSchema.Options.model_validate({"schema": schema}))
    output = Output(text=text, finish_reason=finish_reason)
    return verifier.verify(Candidate(output=output, text=text))


def test_a_value_that_fits_its_contract_passes() -> None:
    result = verify(PERSON, '{"name": "Ann", "age": 3, "pets": []}')
    assert result.status is PASS
    assert set(result.evidence) == {"contract"}
    assert len(result.evidence["contract"]) == 64


def test_the_contracts_hash_does_not_depend_on_the_order_of_keys() -> None:
    one = verify({"type": "object", "minProperties": 1}, "{}")
    two = verify({"minProperties": 1, "type": "object"}, "{}")
    assert one.evidence == two.evidence


def test_coercions_are_recorded() -> None:
    result = verify({"type": "object"}, "```json\n{}\n```")
    assert result.status is PASS
    assert result.evidence["coercions"] == ["fence"]
    assert result.warnings == ("coerced: fence",)


@pytest.mark.parametrize(
    ("text", "finish_reason", "shape"),
    [("", "stop", "empty"), ("sorry", "stop", "prose"), ('{"a": [', "length", "truncated")],
)
def test_text_without_json_fails_with_the_evidence_of_json_object(
    text: str, finish_reason: str, shape: str
) -> None:
    result = verify(PERSON, text, finish_reason)
    assert result.status is FAIL
    assert [error.code for error in result.errors] == ["not_json"]
    assert result.evidence["shape"] == shape
    assert "contract" in result.evidence


def test_null_is_json() -> None:
    assert verify({"type": "null"}, "null").status is PASS


ITEMS = {"items": {"properties": {"id": {"type": "integer"}}}}


def test_errors_over_the_maximum_are_left_out_with_a_warning() -> None:
    schema = {"additionalProperties": {"type": "string"}}
    result = verify(schema, json.dumps({f"k{number}": number for number in range(1000)}))
    assert len(result.errors) == MAX_FINDINGS
    assert result.summary.startswith("1000 errors; first $.k")
    assert "left out" in result.warnings[0]


def test_errors_that_differ_only_in_an_index_are_counted() -> None:
    """Given 300 wrong ids and one wrong item, then the first five places are exact."""
    result = verify(ITEMS | {"type": "array"}, json.dumps([{"id": "x"}] * 300))
    assert [error.path for error in result.errors] == [f"$[{n}].id" for n in range(5)]
    assert [error.count for error in result.errors] == [1, 1, 1, 1, 296]
    assert result.summary.startswith("300 errors; first $[0].id: ")
    assert result.warnings == ()


def test_a_few_errors_keep_their_places() -> None:
    result = verify(ITEMS, json.dumps([{"id": 1}, {"id": "x"}, {"id": 2}, {"id": "y"}]))
    assert [(error.path, error.count) for error in result.errors] == [
        ("$[1].id", 1),
        ("$[3].id", 1),
    ]


def test_ten_thousand_wrong_items_are_small_to_store() -> None:
    result = verify(ITEMS, json.dumps([{"id": "x"}] * 10_000))
    assert sum(error.count for error in result.errors) == 10_000
    assert len(result.model_dump_json(exclude_defaults=True)) < 2_000


def test_ten_thousand_extra_properties_are_cut() -> None:
    schema = {"properties": {"a": {}}, "additionalProperties": False}
    result = verify(schema, json.dumps({f"k{number}": 1 for number in range(10_000)}))
    assert len(result.errors) == MAX_FINDINGS


def test_a_pattern_comes_with_an_example() -> None:
    (error,) = verify({"pattern": "^[A-Z]{2}-[0-9]+$"}, '"ab"').errors
    assert (error.code, error.example) == ("pattern", "AA-1")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "intger"}, "schema.type: "),
        ({"properties": {"a": {"minimum": "x"}}}, "schema.properties.a.minimum: "),
        ({"required": "a"}, "schema.required: "),
        ({"pattern": "["}, "schema.pattern: "),
        ({"$schema": "http://nowhere.example/draft"}, "schema.$schema: "),
        ({"$schema": 3}, "schema.$schema: "),
        ({"$ref": "#/$defs/none"}, "schema: Pointer"),
        ({"$ref": "http://example.com/x.json"}, "schema: Resource 'http://example.com/x.json'"),
        ({"$ref": "file:///etc/passwd"}, "schema: Resource 'file:///etc/passwd'"),
        ({"$schema": DRAFT_07, "items": 3}, "schema.items: "),
        ({"minimum": float("nan")}, "schema"),
        ({"enum": [{1, 2}]}, "schema: not JSON"),
    ],
)
def test_an_invalid_schema_is_refused_where_it_is_wrong(schema: Any, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        ContractSchema(ContractSchema.Options.model_validate({"schema": schema}))
    assert str(caught.value).startswith(problem)


def test_every_error_of_a_schema_is_named() -> None:
    with pytest.raises(BadInput) as caught:
        Contract.of({"type": "x", "required": 3, "properties": {"a": 1}})
    places = sorted(problem.field for problem in caught.value.problems)
    assert places == ["schema.properties.a", "schema.required", "schema.type"]


def test_a_pattern_too_costly_to_match_gives_no_verdict() -> None:
    with pytest.raises(VerifierError, match="too costly"):
        errors({"pattern": r"(x+x+)+y(?!z)"}, "x" * 30_000)
