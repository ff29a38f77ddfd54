"""Repair instructions: one for each kind and cause, with the place, without a model call."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.failures.classify import classify_failure
from mulligan.policies.failures.failure import (
    FailureKind,
    FailureRecord,
    Finding,
    VerificationResult,
)
from mulligan.policies.repair.instruction import (
    RepairInstruction,
    in_words,
    one_line,
    reduce_failure_to_repair,
    repair_instruction_from_dict,
    repair_instruction_to_dict,
)
from mulligan.policies.repair.recipes import FALLBACKS, RECIPES, TECHNIQUES, recipe_for


def repair(verifier_id: str, **fields: Any) -> RepairInstruction:
    data = {"status": "fail", "verifier_id": verifier_id, **fields}
    result = VerificationResult.model_validate(data)
    return reduce_failure_to_repair(classify_failure(result, source="verify"))


def schema(code: str, **finding: Any) -> RepairInstruction:
    error = {"message": "m", "code": code, "path": "$.a.b", "schema_path": "/x", **finding}
    return repair("contract.schema", evidence={"contract": "c"}, errors=[error])


def broken_test(code: str, **finding: Any) -> RepairInstruction:
    error = {"message": "m", "code": code, "path": "test_a.py::test_b", **finding}
    return repair("pytest.subprocess", evidence={"exit_code": 1}, errors=[error])


def text(code: str, **finding: Any) -> RepairInstruction:
    return repair("text.match", errors=[{"message": "m", "code": code, **finding}])


def other(payload: object) -> RepairInstruction:
    return reduce_failure_to_repair(classify_failure(payload, source="task"))


@pytest.mark.parametrize(
    ("instruction", "action", "phrases"),
    [
        # schema: the place, the expected and the actual value
        (schema("required"), "add_missing_field", ["$.a.b", "missing"]),
        (schema("type", expected="integer", actual="31"), "fix_type",
         ["$.a.b", "integer", '"31"', "without quotes"]),
        (schema("type", expected="string", actual=31), "fix_type", ["31", "double quotes"]),
        (schema("type", expected=["string", "null"], actual=3), "fix_type", ["string or null"]),
        (schema("uniqueItems", expected=True, actual=[1, 1]), "fix_size",
         ["$.a.b", "Remove the repeated items"]),
        (schema("additionalProperties"), "remove_extra_field", ["$.a.b", "Remove"]),
        (schema("enum", expected=["red", "blue"], actual="rot"), "choose_allowed_value",
         ['"red", "blue"', '"rot"']),
        (schema("const", expected=3, actual=4), "choose_allowed_value", ["3", "4"]),
        (schema("pattern", expected="^a", actual="b"), "fix_format", ['"^a"', '"b"']),
        (schema("format", expected="date", actual="b"), "fix_format", ['"date"']),
        (schema("minimum", expected=3, actual=1), "fix_range", ["3 or more", "1"]),
        (schema("maxItems", expected=3, actual=[1]), "fix_size", ["at most 3 items"]),
        (schema("oneOf", message="none fits"), "fix_value", ["$.a.b", "none fits"]),
        # not JSON
        (repair("json.object", evidence={"shape": "fence"}), "drop_fence", ["```", "{"]),
        (repair("json.object", evidence={"shape": "prose"}), "drop_prose", ["no other words"]),
        (repair("json.object", evidence={"shape": "empty"}), "answer_at_all", ["empty"]),
        (repair("json.object", evidence={"shape": "not_object"}), "answer_with_object", ["object"]),
        (repair("json.object", evidence={"shape": "object", "decoder": "Expecting value"}),
         "fix_json_syntax", ["a value is missing"]),
        (repair("json.object", evidence={"shape": "truncated", "truncated": True}),
         "raise_token_cap", ["cut off"]),
        # a contract may require an array, so braces are not mentioned
        (repair("contract.schema", evidence={"shape": "prose"}, errors=[
            {"message": "m", "code": "not_json", "path": "$"}]), "drop_prose", ["schema"]),
        # tests
        (broken_test("assertion", message="assert 2 == 0"), "fix_assertion",
         ["test_a.py::test_b", "assert 2 == 0"]),
        (broken_test("exception", message="TypeError: x"), "fix_exception", ["TypeError: x"]),
        (broken_test("import_error", message="no module named y"), "fix_import", ["named y"]),
        (broken_test("syntax_error", message="invalid syntax"), "fix_syntax", ["invalid syntax"]),
        (broken_test("collection_error"), "fix_collection", ["test_a.py"]),
        (broken_test("no_tests"), "keep_tests_collectable", ["whole file"]),
        (broken_test("switched_off"), "keep_tests_running", ["as it did before"]),
        (broken_test("forged"), "remove_tampering", ["exit handlers"]),
        (broken_test("early_exit", message="the run ended early"), "remove_tampering",
         ["the run ended early"]),
        (repair("pytest.subprocess", errors=[
            {"message": "no tests", "code": "collection_error"},
            {"message": "No module named y", "code": "import_error", "path": "t.py"}]),
         "fix_import", ["t.py", "No module named y"]),
        (repair("pytest.subprocess", evidence={"failed": [
            {"nodeid": "t.py::a", "exception": "AssertionError", "assertion": "assert 1 == 2"}]}),
         "fix_assertion", ["t.py::a", "assert 1 == 2"]),
        # commands
        (repair("pytest.subprocess", evidence={"timed_out": True}, errors=[
            {"message": "m", "code": "timeout", "path": "t.py::slow"}]), "make_it_finish",
         ["t.py::slow", "endless loop"]),
        (repair("command.subprocess", evidence={"argv": ["make", "x"], "exit_code": 2,
                                                "stderr_tail": "a\nno rule\n"}),
         "fix_exit", ["`make x`", "exit code 2", "no rule"]),
        (repair("command.subprocess", evidence={"argv": ["make", "x"], "exit_code": 2,
                                                "stderr_tail": "no rule"}, errors=[
            {"message": "m", "code": "exit_code", "path": "make", "expected": 0, "actual": 2}]),
         "fix_exit", ["`make x` failed with exit code 2: no rule."]),
        (repair("command.subprocess", evidence={"argv": ["a"], "signal": 11}), "fix_crash",
         ["`a` was killed by SIGSEGV."]),
        (repair("command.subprocess", evidence={"argv": ["a"], "exit_code": 127}),
         "name_existing_program", ["`a`"]),
        # text
        (text("missing", expected="Hello"), "include_text", ['"Hello"']),
        (text("forbidden", actual="sorry"), "remove_text", ['"sorry"']),
        (text("pattern", expected="^(bug|feature)$", actual="It is a bug"), "match_pattern",
         ['"^(bug|feature)$"', "Do not write the pattern itself"]),
        (text("equality", expected="yes", actual="Yes!"), "write_exact_text",
         ['exactly this text: "yes". Write nothing before or after it.']),
        (text("pattern", expected="[0-9]{3}", example="111"), "match_pattern",
         ['For example, "111" does.']),
        (text("forbidden_pattern", expected="a+", actual="aa"), "avoid_pattern",
         ['pattern "a+". This does: "aa".']),
        (text("choice", expected=["bug", "feature"]), "choose_one_text", ['"bug", "feature"']),
        (text("too_long", expected=3, actual=9), "shorten_answer",
         ["at most 3 characters", "has 9", "shorter"]),
        (text("too_short", expected=9, actual=3), "lengthen_answer", ["at least 9", "longer"]),
        # other kinds
        (other({"kind": "reasoning_error", "cause": "low_score"}), "improve_quality", ["letter"]),
        (other({"kind": "reasoning_error", "message": "off by one"}), "reconsider", ["off by one"]),
        (other(KeyError("town")), "add_missing_key", ["The field town is missing. Add it."]),
        (other({"kind": "unsafe_request", "message": "secret"}), "stay_safe", ["not allowed"]),
        (other({"kind": "repeated_failure"}), "change_approach", ["another way"]),
        (other({"code": "context_length_exceeded"}), "shorten_context", ["briefly"]),
        (other({"status": 503, "message": "overloaded"}), "ask_again", ["as it is written"]),
        (repair("acme.lint", summary="too many words"), "fix_reported_problem", ["too many words"]),
        (other(RuntimeError("odd")), "fix_reported_problem", ["odd"]),
    ],
)  # fmt: skip
def test_each_cause_has_its_instruction(
    instruction: RepairInstruction, action: str, phrases: list[str]
) -> None:
    assert instruction.action == action
    for phrase in phrases:
        assert phrase in instruction.prompt_suffix
    assert instruction.minimal_next_step


@pytest.mark.parametrize(
    ("expected", "actual", "advised"),
    [
        ("integer", "31", True),
        ("integer", "thirty", False),
        ("integer", "3.5", False),
        ("number", "3.5", True),
        ("number", "true", False),
        ("boolean", "true", True),
        ("boolean", "yes", False),
        ("null", "null", True),
        (["integer", "null"], "31", True),
        ("object", "31", False),
    ],
)
def test_quotes_are_mentioned_only_around_a_value_that_is_right_without_them(
    expected: Any, actual: str, advised: bool
) -> None:
    suffix = schema("type", expected=expected, actual=actual).prompt_suffix
    assert suffix.endswith("Write the value without quotes.") is advised


@pytest.mark.parametrize(
    ("instruction", "constrained", "cooler", "larger_cap", "shows_last"),
    [
        (schema("type", expected="integer", actual="1"), True, True, False, True),
        (repair("json.object", evidence={"shape": "prose"}), True, True, False, True),
        (repair("json.object", evidence={"shape": "empty"}), True, True, False, False),
        # truncation needs a larger cap, and half an answer does not help
        (repair("json.object", evidence={"truncated": True}), True, False, True, False),
        # code is not JSON, and a lower temperature repeats the answer
        (broken_test("assertion"), False, False, False, True),
        (text("missing", expected="x"), False, True, False, True),
        (other({"kind": "repeated_failure"}), False, False, False, False),
    ],
)
def test_each_cause_changes_the_decoding(
    instruction: RepairInstruction,
    constrained: bool,
    cooler: bool,
    larger_cap: bool,
    shows_last: bool,
) -> None:
    assert instruction.constrained is constrained
    assert (instruction.temperature_factor < 1) is cooler
    assert (instruction.token_cap_factor > 1) is larger_cap
    assert instruction.show_last_answer is shows_last


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ('"b" fits no schema', '$.a.b does not fit the schema: "b" fits no schema.'),
        ("none fits", '$.a.b does not fit the schema: none fits. It is "b".'),
    ],
)
def test_a_value_that_the_message_quotes_is_not_repeated(message: str, sentence: str) -> None:
    assert schema("oneOf", message=message, actual="b").prompt_suffix == sentence


def test_truncated_code_gets_a_larger_cap_but_no_schema() -> None:
    data = {"status": "fail", "verifier_id": "pytest.subprocess"}
    result = VerificationResult.model_validate(data)
    record = classify_failure(result, source="verify", truncated=True)
    instruction = reduce_failure_to_repair(record)
    assert instruction.action == "raise_token_cap"
    assert instruction.token_cap_factor == 2.5
    assert not instruction.constrained


def test_nothing_about_a_provider_reaches_the_prompt() -> None:
    record = classify_failure(
        {"status": 429, "provider": "acme", "message": "slow down, key sk-123"}, source="task"
    )
    suffix = reduce_failure_to_repair(record).prompt_suffix
    assert "429" not in suffix
    assert "acme" not in suffix
    assert "sk-123" not in suffix


def test_every_kind_has_a_recipe_and_every_action_a_name() -> None:
    assert set(FALLBACKS) == set(FailureKind)
    for kind in FailureKind:
        for cause in (None, "no such cause", "truncated", *RECIPES.get(kind, {})):
            recipe = recipe_for(kind, cause)
            assert TECHNIQUES[recipe.action] == recipe.technique
            assert re.fullmatch(r"[a-z_]{1,40}", recipe.action)
            # Techniques are passed on to other jobs, so they have no placeholders.
            assert "{" not in recipe.technique


def test_an_instruction_survives_its_serialisation() -> None:
    instruction = schema("type", expected="integer", actual="31")
    assert repair_instruction_from_dict(repair_instruction_to_dict(instruction)) == instruction


VALUES = st.none() | st.text(max_size=2000) | st.integers() | st.lists(st.text(), max_size=5)


@given(
    st.sampled_from(list(FailureKind)),
    st.none() | st.sampled_from(sorted({c for table in RECIPES.values() for c in table})),
    st.text(max_size=3000),
    st.none() | st.text(max_size=3000),
    VALUES,
    VALUES,
)
def test_any_record_gives_a_short_instruction(
    kind: FailureKind, cause: str | None, message: str, path: str | None, expected: Any, actual: Any
) -> None:
    record = FailureRecord(
        kind=kind,
        cause=cause,
        classification_signature="v1:a",
        coarse_signature="v1:b",
        message=message,
        source="task",
        findings=(
            Finding(message=message, path=path, expected=expected, actual=actual, code=cause),
        ),
    )
    instruction = reduce_failure_to_repair(record)
    assert len(instruction.prompt_suffix) < 1500
    # No text from outside can start a new line in the prompt.
    assert "\n" not in instruction.prompt_suffix


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x", '"x"'),
        (3, "3"),
        (None, "null"),
        (["a", 1], '["a", 1]'),
        ("two  spaces", '"two  spaces"'),
        ({"a": 1}, '{"a": 1}'),
        ("ä" * 500, '"' + "ä" * 158 + "…"),
    ],
)
def test_a_value_is_shown_in_one_line(value: Any, words: str) -> None:
    assert in_words(value) == words


def test_one_line_joins_and_shortens() -> None:
    assert one_line(" a\n\tb ") == "a b"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
