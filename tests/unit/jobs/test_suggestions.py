from __future__ import annotations

import pytest

from mulligan.policies.suggestions import did_you_mean, name_hint, nearest_name

KNOWN = ["json.object", "contract.schema", "pytest.subprocess"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("json.objet", "json.object"),
        ("object", "json.object"),
        ("yaml", None),
        ("", None),
        ("json.object" * 100, None),
    ],
)
def test_the_nearest_name_is_a_misspelling_or_a_last_part(name: str, nearest: str | None) -> None:
    assert nearest_name(name, KNOWN) == nearest


def test_of_two_names_with_the_same_last_part_the_shorter_is_suggested() -> None:
    assert did_you_mean("m", ["A.Inner.m", "A.m"]) == "; did you mean 'A.m'?"


def test_a_hint_lists_the_known_names_when_none_is_near() -> None:
    assert name_hint("yaml", KNOWN) == f"; there are: {', '.join(KNOWN)}"
    assert name_hint("yaml", map(str, range(20))).endswith("10, 11 and 8 more")
    assert name_hint("yaml", []) == "; there are none"
