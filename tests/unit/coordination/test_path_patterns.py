"""Whether two patterns of files can match the same one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.path_patterns import can_meet, matches, path_pattern, shared_file

#: Every path of up to five characters that a pattern of these characters can tell apart.
_PATHS = [
    "".join(each) for length in range(1, 6) for each in itertools.product("ab/", repeat=length)
]


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        ("src/a.py", "src/a.py", True),
        ("src/a.py", "src/b.py", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/sub/a.py", False),
        ("src/**", "src/sub/a.py", True),
        ("src/", "src/sub/a.py", True),  # a directory is all that is below it
        ("src/", "srcs/a.py", False),
        ("a.py", "src/deep/a.py", True),  # without a slash: in every directory
        ("a.py", "src/ba.py", False),
        ("/a.py", "src/a.py", False),
        ("src/**/test_*.py", "src/api/*_cart.py", True),  # src/api/test_cart.py
        ("src/**/x.py", "lib/**", False),
        ("a?c", "abd", False),
        ("*.md", "docs/*.txt", False),
    ],
)
def test_patterns_meet_where_a_file_matches_both(first: str, second: str, meet: bool) -> None:
    assert can_meet(first, second) is can_meet(second, first) is meet


@given(*[st.text("ab/*?", min_size=1, max_size=6)] * 2)
def test_patterns_meet_if_any_path_matches_both(first: str, second: str) -> None:
    one, two = path_pattern(first), path_pattern(second)
    if any(one.match(path) and two.match(path) for path in _PATHS):
        assert can_meet(first, second)


@given(
    st.text("ab/*?", min_size=1, max_size=6),
    st.from_regex(r"[ab]([ab/]{0,4}[ab])?", fullmatch=True),
)
def test_a_plain_path_meets_exactly_the_patterns_that_match_it(pattern: str, path: str) -> None:
    assert can_meet(pattern, f"/{path}") is matches([pattern], path)


def test_the_patterns_that_meet_are_named() -> None:
    assert shared_file(["docs/*", "src/a.py"], ["src/*"]) == ("src/a.py", "src/*")
    assert shared_file(["docs/*"], ["src/*"]) is None
    assert shared_file([], ["src/*"]) is None
