"""What a prompt says after the real verifiers have found an error: true, and easy to follow."""

from __future__ import annotations

import json
from datetime import date
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Output, VerifierSpec
from mulligan.policies.repair.instruction import corrections_of, reduce_failure_to_repair
from mulligan.policies.repair.prompt import build_corrected_prompt
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

INTEGER = {"type": "integer"}
OBJECT = {"type": "object", "required": ["a"], "properties": {"a": INTEGER}}
WORDS = [f"word {n}" for n in range(40)]


def prompt(answer: str, *specs: dict[str, Any] | str, constrained: bool = False) -> str:
    """Return the corrected prompt after the checks of an answer."""
    candidate = Candidate(output=Output(text=answer, finish_reason="stop"), text=answer)
    built = [VerifierRegistry().build(VerifierSpec.model_validate(spec)) for spec in specs]
    results = [verifier.verify(candidate) for verifier in built]
    failed = next(result for result in results if result.status == "fail")
    return build_corrected_prompt(
        task_text="Do it.",
        contract=None,
        last_answer=answer,
        results=results,
        instruction=reduce_failure_to_repair(classify_failure(failed, source="verify")),
        constrained=constrained,
    )


def said(answer: str, *specs: dict[str, Any] | str, constrained: bool = False) -> str:
    text = prompt(answer, *specs, constrained=constrained)
    return text.partition("Do this now:\n")[2]


def contract(schema: dict[str, Any]) -> dict[str, Any]:
    return {"id": "contract.schema", "schema": {"type": "object", "properties": {"n": schema}}}


@pytest.mark.parametrize(
    ("schema", "value", "sentence"),
    [
        # An optional object: the wrong field, not "it is not null".
        (
            {"anyOf": [{"type": "null"}, OBJECT]},
            {"a": "1"},
            "$.n does not fit the schema: it fits none of the alternatives; the closest says:"
            ' $.n.a: "1" is not of type "integer". It is {"a": "1"}.',
        ),
        (
            {"anyOf": [INTEGER, {"type": "null"}]},
            "x",
            '$.n must be an integer or null. It is "x".',
        ),
        (
            {"contains": {"const": "x"}},
            ["a"],
            '$.n must have an item that fits {"const": "x"}. It is ["a"].',
        ),
        (
            {"contains": INTEGER, "minContains": 2},
            [1],
            '$.n must have more items that fit {"type": "integer"}. It is [1].',
        ),
        (
            {"contains": INTEGER, "maxContains": 1},
            [1, 2],
            '$.n must have fewer items that fit {"type": "integer"}. It is [1, 2].',
        ),
        ({"const": [1, 2]}, [1], "$.n must be exactly [1, 2]. It is [1]."),
        ({"const": "a  b"}, "a b", '$.n must be exactly "a  b". It is "a b".'),
        (
            {"enum": ["a", None, True]},
            "b",
            '$.n must be exactly one of these: "a", null, true. It is "b".',
        ),
        (
            {"enum": [1, 2]},
            "1",
            '$.n must be exactly one of these: 1, 2. It is "1". Write the value without quotes.',
        ),
        ({"enum": WORDS}, "b", '$.n must be exactly one of the allowed values. It is "b".'),
        ({"not": {"const": "x"}}, "x", '$.n must not fit {"const": "x"}. It is "x".'),
        (False, 1, "$.n is not allowed by the schema. Remove it."),
        (
            {"propertyNames": {"maxLength": 2}},
            {"abc": 1},
            'The name of a field in $.n is not allowed: "abc" is longer than 2 characters.'
            " Rename it.",
        ),
        (
            {"pattern": r"^\d+$"},
            "x",
            r'$.n must match the pattern "^\d+$", as "1" does. It is "x".',
        ),
    ],
)
def test_the_sentence_about_a_value(schema: Any, value: Any, sentence: str) -> None:
    assert said(json.dumps({"n": value}), contract(schema)) == sentence


def test_a_long_list_is_not_called_a_string() -> None:
    sentence = said(json.dumps({"n": WORDS}), contract({"type": "string"}))
    assert sentence.startswith('$.n must be a string. It is ["word 0", "word 1", ')
    assert sentence.endswith('"…"].')


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        ('{"a": NaN}', "Write a number or null instead."),
        ('{"a": 1, "a": 2}', "Write every name only once."),
        ('{"a": 1}\n{"b": 2}', "Write only one."),
        ('{"a": 1' + "0" * 5000 + "}", "Write a smaller number."),
        ("[" * 300, "Use fewer levels."),
    ],
)
def test_advice_fits_what_is_wrong_with_the_json(answer: str, advice: str) -> None:
    sentence = said(answer, "json.object")
    assert advice in sentence
    assert "double quotes" not in sentence


def test_an_array_instead_of_an_object_is_named_once() -> None:
    sentence = said("[1]", "json.object", {"id": "contract.schema", "schema": {"type": "object"}})
    assert sentence.startswith("Your last answer is JSON, but not an object.")
    assert "must be an object" not in sentence


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('"status": "ok"', """'"status": "ok"'"""),
        (r"C:\dir", r'"C:\dir"'),
        ("a  b", '"a  b"'),
        ('it\'s "it"', '`it\'s "it"`'),
        ("a\nb", r'"a\nb" (\n is a line break)'),
        ("word " * 60, '"' + "word " * 60 + '"'),
    ],
)
def test_a_text_to_copy_is_shown_as_it_must_be_written(text: str, shown: str) -> None:
    assert f"this text: {shown}." in said("no", {"id": "text.match", "contains": text})
    assert f"this text: {shown}." in said("no", {"id": "text.match", "contains": ["other", text]})


def test_an_exit_code_that_should_have_been_another() -> None:
    sentence = said("x", {"id": "command.subprocess", "argv": ["true"], "expect_exit": 3})
    assert sentence.startswith("The check `true` failed with exit code 0 instead of 3.")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        {"type": "object", "patternProperties": {"^a": {"type": "string"}}},
        {"allOf": [{"required": ["b"]}]},
    ],
)
def test_a_rule_that_no_grammar_enforces_is_named_to_a_constrained_answer(
    schema: dict[str, Any],
) -> None:
    check = {"id": "contract.schema", "schema": schema}
    assert said('{"a": 1}', check, constrained=True)
    assert not said("{}", {"id": "contract.schema", "schema": OBJECT}, constrained=True)


def test_a_field_called_then_is_no_condition() -> None:
    schema = {"type": "object", "properties": {"then": INTEGER}}
    check = {"id": "contract.schema", "schema": schema}
    assert not said('{"then": "1"}', check, constrained=True)


def test_an_error_without_a_line_has_no_advice_about_a_line() -> None:
    where = {"status": "fail", "verifier_id": "pytest.subprocess"}
    for message, advice in {
        "NameError: name 'x' is not defined (m.py, line 2)": "Correct the line that raises it.",
        "AttributeError: module 'm' has no attribute 'f'": "Correct the code so that it raises"
        " no error.",
    }.items():
        error = {"message": message, "code": "exception", "path": "test_m.py::test_a"}
        result = VerificationResult.model_validate({**where, "errors": [error]})
        (correction,) = corrections_of(classify_failure(result, source="verify"))
        assert correction.advice == advice


class Guest(BaseModel):
    age: int = Field(ge=18)
    size: float = Field(gt=0)
    name: str = Field(max_length=5)
    tags: list[str] = Field(max_length=1)
    kind: Literal["a", "b"]
    day: date
    step: int

    @field_validator("step")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("it must be even")
        return value


def test_the_sentences_about_a_pydantic_error() -> None:
    answer = {"age": 3, "size": 0, "name": "abcdef", "tags": ["x", "y"], "kind": "c"}
    with pytest.raises(ValidationError) as caught:
        Guest.model_validate(answer | {"day": "soon", "step": 3})
    record = classify_failure(caught.value, source="verify")
    assert [correction.fact for correction in corrections_of(record)] == [
        "$.age must be 18 or more. It is 3.",
        "$.size must be more than 0.0. It is 0.",
        '$.name must have at most 5 characters. It is "abcdef".',
        '$.tags must have at most 1 item. It is ["x", "y"].',
        '$.kind must be exactly one of these: "a" or "b". It is "c".',
        "$.day has the wrong format: Input should be a valid date or datetime, input is too short."
        ' It is "soon".',
        "$.step does not fit the schema: it must be even. It is 3.",
    ]


def test_an_exit_code_is_named_once() -> None:
    (correction,) = corrections_of(classify_failure(SystemExit(2), source="verify"))
    assert correction.fact == "The last attempt failed with exit code 2."
