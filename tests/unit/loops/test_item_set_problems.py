"""Problems of many items at once are named without taking long."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError
from support.loops import document, item

from mulligan.policies.loops.spec import PLAIN_LINE, item_set_problems
from mulligan.policies.problem import MOST_FOUND


def test_hints_are_given_for_the_first_unknown_ids_only() -> None:
    made = document(item("alpha"), *(item(f"b{n}", "alpa") for n in range(50)))
    problems = [problem.message for problem in item_set_problems(made.items)]
    assert len(problems) == 50
    assert [message.endswith("did you mean 'alpha'?") for message in problems] == [True] * 5 + [
        False
    ] * 45


def test_the_first_cycles_are_named() -> None:
    pairs = [each for n in range(20) for each in (item(f"a{n}", f"b{n}"), item(f"b{n}", f"a{n}"))]
    problems = list(item_set_problems(document(*pairs).items))
    assert len(problems) == 5
    assert problems[0].message == "the dependencies form a cycle: a0 → b0 → a0"
    more = [each.message.endswith("; there are more cycles") for each in problems]
    assert more == [False] * 4 + [True]
    few = list(item_set_problems(document(*pairs[:10]).items))
    assert not any("more" in each.message for each in few)


def test_the_search_for_problems_ends() -> None:
    made = document(item("a"), *(item(f"b{n}", "x1", "x2") for n in range(MOST_FOUND)))
    assert len(list(item_set_problems(made.items))) == MOST_FOUND


@pytest.mark.parametrize(
    "config",
    [
        {"weight": 1e-17},  # shares would grow beyond what a float can count
        {"weight": 0.0009},
        {"budget": {"loop": {"tokens": 10**400}}},
        {"budget": {"loop": {"money": 1e13}}},
        {"budget": {"day": {"seconds": 1e10}}},
    ],
)
def test_extreme_numbers_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        document(item("a"), **config)


@pytest.mark.parametrize(
    "character",
    ["\x1b", "\n", "\x85", "\u061c", "\u200b", "\u200e", "\u200f", "\u2028", "\u2029", "\u202e",
     "\u2060", "\u2066", "\u206f", "\ufeff"],
    ids=ascii,
)  # fmt: skip
def test_a_title_is_one_plain_line(character: str) -> None:
    with pytest.raises(ValidationError):
        document(item("a", title=f"a{character}b"))
    assert re.fullmatch(PLAIN_LINE, f"a{character}b") is None


@pytest.mark.parametrize("title", ["Größe: 5 | ok", "می\u200cخواهم", "👩\u200d💻", "日本語"])
def test_a_title_may_be_in_any_language(title: str) -> None:
    assert document(item("a", title=title)).items[0].label == title
    assert re.fullmatch(PLAIN_LINE, title)
