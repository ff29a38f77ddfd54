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
        ("src/*/a/*.py", "src/*/b/*.py", False),
        ("src/**/test_*.py", "src/**/*.md", False),
        ("src/a/**/b.py", "src/a.py", False),
        ("src/**", "/src", False),
        ("src/*a*b", "src/xaxbb", True),
        ("src/*a*b", "src/xbxa", False),
    ],
)
def test_patterns_meet_where_a_file_matches_both(first: str, second: str, meet: bool) -> None:
    assert can_meet(first, second) is can_meet(second, first) is meet


@given(*[st.text("ab/*?", min_size=1, max_size=6)] * 2)
def test_patterns_meet_if_any_path_matches_both(first: str, second: str) -> None:
    one, two = path_pattern(first), path_pattern(second)
    if any(one.match(path) and two.match(path) for path in _PATHS):
        assert can_meet(first, second)


_names = st.lists(
    st.text("ab*?", min_size=1, max_size=4).filter(lambda each: "**" not in each), max_size=2
)


@given(
    _names,
    st.sampled_from([[], ["**"]]),
    _names,
    st.from_regex(r"[ab]{1,3}(/[ab]{1,3}){0,3}", fullmatch=True),
)
def test_a_plain_path_meets_exactly_the_patterns_that_match_it(
    first: list[str], middle: list[str], last: list[str], path: str
) -> None:
    """Given no more than one ``**``."""
    pattern = "/" + "/".join([*first, *middle, *last])
    assert can_meet(pattern, f"/{path}") is matches([pattern], path)


def test_the_patterns_that_meet_are_named() -> None:
    assert shared_file(["docs/*", "src/a.py"], ["src/*"]) == ("src/a.py", "src/*")
    assert shared_file(["docs/*"], ["src/*"]) is None
    assert shared_file([], ["src/*"]) is None
