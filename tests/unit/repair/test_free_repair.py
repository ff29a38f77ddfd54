"""Free repairs: find the JSON in an answer, never invent any."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.policies.nesting import MAX_DEPTH
from mulligan.policies.repair.free_repair import extract_json, repair_syntax, strip_code_fence

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


@pytest.mark.parametrize(
    ("text", "value", "coercions"),
    [
        # plain JSON
        ('{"a": 1}', {"a": 1}, ()),
        ('\ufeff\n {"a": 1}\n', {"a": 1}, ()),
        ("[1, 2]", [1, 2], ()),
        ("null", None, ()),
        # a duplicate key with the same value is unambiguous
        ('{"a": 1, "a": 1}', {"a": 1}, ()),
        # a fence
        ('```json\n{"a": 1}\n```', {"a": 1}, ("fence",)),
        ('~~~\n{"a": 1}\n~~~', {"a": 1}, ("fence",)),
        ('```{"a": 1}```', {"a": 1}, ("fence",)),
        ('```json\n{"a": 1}```', {"a": 1}, ("fence",)),
        ('```json\r\n{"a": 1}\r\n```', {"a": 1}, ("fence",)),
        ('```json\n{"a": 1}', {"a": 1}, ("fence",)),
        ('Here:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}, ("fence", "prose")),
        # a fence inside a value is part of the value
        ('```json\n{"a": "```py"}\n```', {"a": "```py"}, ("fence",)),
        # prose
        ('Sure! {"a": "x } y"} Bye.', {"a": "x } y"}, ("prose",)),
        ('It\'s "quoted" [1]: {"a": 1}', {"a": 1}, ("prose",)),
        ('{ oops, here it is {"a": 1}', {"a": 1}, ("prose",)),
        ("The list:\n[1, 2]\nok", [1, 2], ("prose",)),
        ('{"a": 1} and again {"a": 1}', {"a": 1}, ("prose",)),
        # syntax slips
        ("{'a': 'b', c: True,}", {"a": "b", "c": True}, ("json_repair",)),
        ('{"a": 1', {"a": 1}, ("json_repair",)),
        ('{"a": {"b": 1}, "c": "x', {"a": {"b": 1}, "c": "x"}, ("json_repair",)),
        ('{"a": "wait..." ,}', {"a": "wait..."}, ("json_repair",)),
        ('```json\n{"a": 1,}\n```', {"a": 1}, ("fence", "json_repair")),
        ('Result: {"a": 1,} ok', {"a": 1}, ("prose", "json_repair")),
        ("[1, 2,]", [1, 2], ("json_repair",)),
    ],
)
def test_json_is_found_and_its_repairs_are_recorded(
    text: str, value: Any, coercions: tuple[str, ...]
) -> None:
    extraction = extract_json(text, truncated=False)
    assert extraction.parsed
    assert extraction.value == value
    assert extraction.coercions == coercions
    assert extraction.shape == ("object" if isinstance(value, dict) else "not_object")
    assert json.loads(extraction.text) == value


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("I cannot do that.", "prose"),
        # brackets that are part of the prose
        ("Use {name} as a placeholder", "prose"),
        ("[see note]", "prose"),
        ("as shown in [1]", "prose"),
        ("as shown in [1, 2", "prose"),
        ("```\nprint('x')\n```", "fence"),
        # two answers: choosing one would be a guess
        ('{"a": 1} {"a": 2}', "object"),
        ('{"a": 1,} {"a": 2,}', "object"),
        ('Either {"a": 1} or {"a": 2,}', "prose"),
        ('{"a": 1, "a": 2}', "object"),
        # gaps that a repair would fill
        ('{"a": }', "object"),
        ('{"a": 1, ...}', "object"),
        ('{"a": NaN}', "object"),
        ("{'a': Infinity}", "object"),
        ('{"a": 1e999}', "object"),
        ("1" * 5000, "prose"),
    ],
)
def test_nothing_is_invented(text: str, shape: str) -> None:
    extraction = extract_json(text, truncated=False)
    assert not extraction.parsed
    assert extraction.value is None
    assert extraction.text == text
    assert extraction.coercions == ()
    assert extraction.shape == shape


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1',
        # the inner object is not the answer
        '{"a": {"b": 1}, "c": "x',
        '[{"a": 1}, {"b"',
        '{"a": 1}\n{"a": ',
        '```json\n{"a": [1, 2',
        "Sure, here is",
    ],
)
def test_truncated_text_is_never_repaired(text: str) -> None:
    extraction = extract_json(text, truncated=True)
    assert not extraction.parsed
    assert extraction.shape == "truncated"


@pytest.mark.parametrize(
    "text", ['{"a": 1}', '```\n{"a": 1}\n```\nThis is bec', 'So {"a": 1} and t']
)
def test_a_whole_value_before_the_truncation_is_found(text: str) -> None:
    assert extract_json(text, truncated=True).value == {"a": 1}


@given(JSON, st.booleans())
def test_strict_json_needs_no_repair(value: Any, truncated: bool) -> None:
    extraction = extract_json(json.dumps(value), truncated=truncated)
    assert extraction.value == value
    assert extraction.coercions == ()


@given(OBJECTS, st.sampled_from(["", "json", "JSON"]))
def test_any_object_is_found_in_a_fence(value: dict[str, Any], tag: str) -> None:
    text = f"```{tag}\n{json.dumps(value, indent=2)}\n```"
    extraction = extract_json(text, truncated=False)
    assert extraction.value == value
    assert extraction.coercions == ("fence",)


@given(OBJECTS, st.from_regex(r"[A-Za-z ,.'\"!?\n]{1,40}", fullmatch=True))
def test_any_object_is_found_in_prose(value: dict[str, Any], prose: str) -> None:
    extraction = extract_json(f"So: {prose}{json.dumps(value)} {prose}", truncated=False)
    assert extraction.value == value
    assert extraction.coercions == ("prose",)


@settings(deadline=None)
@given(st.text(), st.booleans())
def test_any_text_is_handled(text: str, truncated: bool) -> None:
    extraction = extract_json(text, truncated=truncated)
    if extraction.parsed:
        json.loads(extraction.text)
    else:
        assert extraction.text == text
    if not any(bracket in text for bracket in "{["):
        assert extraction.coercions == ()


@given(OBJECTS, st.integers(min_value=1))
def test_a_truncated_object_is_never_accepted(value: dict[str, Any], cut: int) -> None:
    whole = json.dumps(value)
    text = whole[: cut % len(whole)]
    assert not extract_json(text, truncated=True).parsed


SIZE = 200_000


@pytest.mark.parametrize(
    "text",
    [
        "[" * SIZE,
        "{" * SIZE,
        '{"a":' * (SIZE // 5),
        '{"a": "' + 'x" ' * (SIZE // 3),
        "[]" * (SIZE // 2),
        '{"a":1} ' * (SIZE // 8),
        'x{ " ' * (SIZE // 5),
        '\\"' * (SIZE // 2),
        '"' + "\\" * SIZE,
        "`" * SIZE,
        "```\n" * (SIZE // 4),
        "{" + " " * SIZE,
        ": " * (SIZE // 2) + "{",
        ("{" + " " * 5000) * (SIZE // 5000),
        "{a" * (SIZE // 2),
    ],
    ids=lambda text: str(text)[:8],
)
def test_hostile_text_takes_no_quadratic_time(text: str) -> None:
    started = time.process_time()
    extract_json(text, truncated=False)
    strip_code_fence(text)
    # About 0.2 s at worst; a quadratic step over this size would take minutes.
    assert time.process_time() - started < 5


@pytest.mark.parametrize(("depth", "parsed"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_nesting_has_a_limit(depth: int, parsed: bool) -> None:
    assert extract_json("[" * depth + "]" * depth, truncated=False).parsed is parsed


def test_a_repaired_text_can_be_stored() -> None:
    # A lone surrogate has no UTF-8; the repaired text keeps it as an escape.
    extraction = extract_json('{"a": "\\ud800", "b": "ä",}', truncated=False)
    assert extraction.text.encode()
    assert extraction.value == {"a": "\ud800", "b": "ä"}


@pytest.mark.parametrize(
    ("text", "code", "coercions"),
    [
        ("x = 1\n", "x = 1\n", ()),
        ("", "", ()),
        ("```python\nx = 1\n```", "x = 1\n", ("fence",)),
        ("Here:\n```py\nx = 1\n```\nDone", "x = 1\n", ("fence", "prose")),
        # the largest block is the file
        ("```\npip install x\n```\n```python\ndef f():\n    return 1\n```\n",
         "def f():\n    return 1\n", ("fence", "prose")),
        # never closed, or closed on the last line of code
        ("```python\nx = 1\n", "x = 1\n", ("fence",)),
        ("```python\nx = 1```", "x = 1\n", ("fence",)),
        # a longer fence may hold a shorter one
        ("````md\n```\na\n```\n````", "```\na\n```\n", ("fence",)),
        # inline code is not a block
        ("use ```x``` here", "use ```x``` here", ()),
        ("```\n```", "", ("fence",)),
    ],
)  # fmt: skip
def test_code_is_taken_out_of_its_fence(text: str, code: str, coercions: tuple[str, ...]) -> None:
    assert strip_code_fence(text) == (code, coercions)


@pytest.mark.parametrize(
    ("text", "file", "coercions"),
    [
        ("# Use\n```sh\nmake\n```\nDone\n", "# Use\n```sh\nmake\n```\nDone\n", ()),
        ("```sh\nmake\n```\n```sh\nmake test\n```\n",
         "```sh\nmake\n```\n```sh\nmake test\n```\n", ()),
        ("````md\n# Use\n```sh\nmake\n```\n````", "# Use\n```sh\nmake\n```\n", ("fence",)),
    ],
)  # fmt: skip
def test_markdown_keeps_its_own_fences(text: str, file: str, coercions: tuple[str, ...]) -> None:
    assert strip_code_fence(text, markdown=True) == (file, coercions)


@given(st.text())
def test_text_without_a_fence_is_unchanged(text: str) -> None:
    plain = text.replace("`", "").replace("~", "")
    assert strip_code_fence(plain) == (plain, ())


def test_a_text_that_json_repair_fails_on_is_not_repaired() -> None:
    text = '{"```json(```/*”'
    found = extract_json(text, truncated=False, repair=repair_syntax)
    assert (found.text, found.coercions) == (text, ())
