"""Markdown checklists: what they say as items, what is not understood, and the way back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.console.loopfiles.markdown_lines import split_id
from mulligan.console.loopfiles.read_markdown import Checklist, read_markdown
from mulligan.console.loopfiles.write_markdown import write_markdown
from mulligan.policies.loops.spec import ItemSpec, SpecDocument
from mulligan.tasks.ports.errors import BadInput


def items(text: str) -> list[dict[str, Any]]:
    return [item for _, spec in read_markdown(text).specs() for item in spec["items"]]


def states(found: Checklist) -> dict[str, str]:
    return {
        name: state for _, spec in found.specs() for name, state in spec.get("states", {}).items()
    }


CHECKLIST = """\
# Parse durations

Some words about the work.

- [x] CP-SPEC-001: Read numbers
- [ ] CP-SPEC-005 Parse durations
  Write it in app/duration.py.
  - depends on: CP-SPEC-001, CP-SPEC-004
  - touches: app/duration.py, `docs/**`
  - Pass criteria:
    - accepts 20s, 10m
      and 1h
    - `pytest tests/test_duration.py` passes
- [-] Old things
"""


def test_a_checklist_is_read_as_items() -> None:
    first, second, third = items(CHECKLIST)
    assert first == {"id": "CP-SPEC-001", "title": "Read numbers", "prompt": "Read numbers"}
    assert second == {
        "id": "CP-SPEC-005",
        "title": "Parse durations",
        "prompt": "Parse durations\n\nWrite it in app/duration.py.",
        "depends_on": ["CP-SPEC-001", "CP-SPEC-004"],
        "touches": ["app/duration.py", "docs/**"],
        "pass_criteria": [
            "accepts 20s, 10m and 1h",
            "`pytest tests/test_duration.py` passes",
        ],
        "verifiers": [{"id": "pytest.subprocess", "args": ["tests/test_duration.py"]}],
    }
    assert third["id"] == "old-things"


def test_boxes_are_states_and_what_is_left_out_is_named_by_line() -> None:
    found = read_markdown(CHECKLIST)
    assert found.name == "Parse durations"
    assert states(found) == {"CP-SPEC-001": "passed", "old-things": "skipped"}
    assert found.notes == [
        "line 3: is not part of an item: left out",
        "line 6: 'pytest tests/test_duration.py' became a verifier of CP-SPEC-005",
    ]


OVERVIEW = """\
# Loop 1: critical path

| id | what |
|---|---|
| CP-SPEC-001 | numbers |

## CP-SPEC-001: Numbers
**Status:** passed

Implement them.

### Pass Criteria
- [x] accepts 1
- [ ] refuses x

## Parser

### CP-SPEC-002: Parser
**Depends on:** CP-SPEC-001
**Verifiers:**
- guard: `make check`
- `python tools/check.py`
"""


def test_an_overview_has_its_items_as_headings() -> None:
    """Given a text for people, then headings with ids are items, and the rest is named."""
    found = read_markdown(OVERVIEW)
    assert items(OVERVIEW) == [
        {
            "id": "CP-SPEC-001",
            "title": "Numbers",
            "prompt": "Numbers\n\nImplement them.",
            "pass_criteria": ["accepts 1", "refuses x"],
        },
        {
            "id": "CP-SPEC-002",
            "title": "Parser",
            "prompt": "Parser",
            "depends_on": ["CP-SPEC-001"],
            "verifiers": [
                {"id": "command.subprocess", "argv": ["make", "check"], "role": "guard"},
                {"id": "command.subprocess", "argv": ["python", "tools/check.py"]},
            ],
        },
    ]
    assert states(found) == {"CP-SPEC-001": "passed"}
    assert [title for title, _ in found.specs()] == ["", "Parser"]
    assert [each.split(":")[0] for each in found.notes] == ["line 3", "line 4", "line 5"]


def test_an_item_depends_on_what_is_nested_in_it() -> None:
    text = "- [ ] whole\n  - [ ] part\n    - [ ] small\n  - [ ] part\n- [ ] next\n"
    found = {each["id"]: each.get("depends_on") for each in items(text)}
    assert found == {
        "whole": ["part", "part-2"], "part": ["small"], "small": None, "part-2": None, "next": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name", "title"),
    [
        ("CP-SPEC-005: Title", "CP-SPEC-005", "Title"),
        ("CP-SPEC-005 Title", "CP-SPEC-005", "Title"),
        ("**CP-1** Title", "CP-1", "Title"),
        ("**CP-1:** Title", "CP-1", "Title"),
        ("**CP-1: Title**", "CP-1", "Title"),
        ("`any.id`: Title", "any.id", "Title"),
        ("`CP-1` – Title", "CP-1", "Title"),
        ("CP-1 – Title", "CP-1", "Title"),
        ("UTF-8 is read", "", "UTF-8 is read"),
        ("Python3 is used", "", "Python3 is used"),
        ("`pytest` passes", "", "`pytest` passes"),
        ("utf-8: is read", "", "utf-8: is read"),
    ],
)
def test_what_is_an_id(text: str, name: str, title: str) -> None:
    assert split_id(text) == (name, title)


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("  - depends on: A-001 or so!", "'so!' is no id of an item: left out"),
        ("  - verifiers: `pytest 'x`", "is no command of a verifier: left out"),
        ("  - priority: high", "is no priority: left out"),
        ("  - fields: [1]", "is no fields: left out"),
    ],
)
def test_what_is_not_understood_is_named(line: str, note: str) -> None:
    assert f"line 2: {note}" in read_markdown(f"- [ ] A-001 x\n{line}\n").notes


@pytest.mark.parametrize("text", ["", "# only a title", "- no box", "|a|b|"])
def test_a_text_without_items_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="has no items"):
        read_markdown(text)


@pytest.mark.parametrize(
    "text",
    [
        "- [ ] x\n" * 6000,
        "- [ ] `" + "`" * 100_000,
        "- [ ] " + "A-" * 50_000,
        "\n".join(f"{' ' * n}- [ ] x" for n in range(2000)),
        "```" + "\n" * 100_000,
        "- [ ] x\n  - fields: " + "[" * 100_000,
        "#" * 100_000 + "\n- [ ] \x1b]0;owned\x07 \u202e",
        "- [ ] x\n" * 5000 + "# group\n" * 200_000,
        "- [ ] x\n  - criteria:\n    - a\n" + "      b\n" * 200_000,
        "- [ ] x\n  " + " ".join(f"`pytest a{n}`" for n in range(50_000)),
    ],
)
def test_a_hostile_text_is_read_or_refused(text: str) -> None:
    with suppress(BadInput):
        assert read_markdown(text).items


def test_what_one_item_gets_of_its_texts_is_bounded() -> None:
    found = read_markdown(
        "- [ ] x\n  "
        + " ".join(f"`pytest a{n}`" for n in range(60))
        + "\n  - criteria:\n    - a\n"
        + "      bcd\n" * 5100
    )
    (item,) = found.items
    assert len(item.fields["verifiers"]) == 50
    assert len(item.fields["pass_criteria"][0]) <= 20_000
    assert "line 1: x has more commands: they became no verifiers" in found.notes
    assert "line 5004: makes the entry too long: left out" in found.notes


# -- the way back ----------------------------------------------------------------------------------

_LINE = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="\u061c\u200b"
                  "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\ufeff"
                  + "".join(map(chr, range(0x2060, 0x2070)))),
    max_size=40,
)  # fmt: skip
_MARKED = st.sampled_from(
    ["depends on: X", "- [x] no", "`pytest x`", "# no", "a `b` c", '"q"', "```", "**b**: c", " x ",
     "x\ny", "1. y", "\u00a0x", "[ ] z", "Pass criteria:", "{}", "\tx", "x\r\ny", "\x1b[0m"]
)  # fmt: skip
_TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60), _MARKED
)
_VERIFIERS = st.lists(
    st.sampled_from(
        [
            {"id": "pytest.subprocess", "args": ["tests/test_a.py", "-k", "a b"]},
            {"id": "pytest.subprocess", "role": "guard"},
            {"id": "pytest.subprocess", "args": ["x`y"], "timeout": 5},
            {"id": "command.subprocess", "argv": ["pytest", "a\nb"]},
            {"id": "command.subprocess", "argv": ["{", "it's"], "role": "guard"},
            {"id": "command.subprocess", "command": "named"},
            {"id": "json.object", "name": "a `name`", "weight": 2.0},
        ]
    ),
    min_size=1,
    max_size=3,
)
_ITEM = st.fixed_dictionaries(
    {
        "title": st.one_of(_LINE, _MARKED.filter(lambda text: text.isprintable())),
        "prompt": _TEXT,
        "depends_on": st.lists(
            st.sampled_from(["i0", "X-1", "none", "and", "a.", "other/X-1"]), max_size=2
        ),
        "waits_for": st.lists(st.sampled_from(["ready", "none"]), max_size=2, unique=True),
        "emits": st.lists(st.sampled_from(["done", "a.b"]), max_size=2, unique=True),
        "touches": st.lists(_TEXT, max_size=2),
        "pass_criteria": st.lists(_TEXT, max_size=3),
        "verifiers": _VERIFIERS,
        "priority": st.integers(1, 9),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_ITEM, min_size=1, max_size=4), st.sampled_from(["", "passed", "skipped"]))
def test_what_is_written_is_read_as_the_same_items(raws: list[dict[str, Any]], state: str) -> None:
    specs = [ItemSpec.model_validate({"id": f"i{n}", **raw}) for n, raw in enumerate(raws)]
    done = {"i0": state} if state else {}
    found = read_markdown(write_markdown("loop", specs, done))
    assert states(found) == done
    read = [spec for _, each in found.specs() for spec in SpecDocument.model_validate(each).items]
    assert [each.model_dump() for each in read] == [each.model_dump() for each in specs]
    assert found.notes == []


def test_fields_without_words_of_their_own_come_back() -> None:
    spec = ItemSpec.model_validate(
        {"id": "a", "prompt": "x", "verifiers": ["json.object"], "runner": "coder",
         "task_type": "code"}
    )  # fmt: skip
    (raw,) = items(write_markdown("loop", [spec], {}))
    assert ItemSpec.model_validate(raw) == spec


@pytest.mark.parametrize(
    "fields",
    ['{"verifiers": 3}', '{"depends_on": 3}', '{"id": "b"}', '{"pass_criteria": [3]}',
     '{"nested": 1}', '{"unknown": 1}'],
)  # fmt: skip
def test_fields_that_have_words_of_their_own_are_left_out(fields: str) -> None:
    found = read_markdown(f"- [ ] a: Do it.\n  - Fields: {fields}\n")
    assert any("is none of these fields: left out" in each for each in found.notes)


def test_fields_that_are_nested_too_deeply_are_left_out() -> None:
    found = read_markdown(
        '- [ ] a: Do it.\n  - Fields: {"runner": ' + "[" * 900 + "]" * 900 + "}\n"
    )
    assert any("is no fields: left out" in each for each in found.notes)
