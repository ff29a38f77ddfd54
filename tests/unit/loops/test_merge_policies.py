"""Which merges are made at once, and how many verifications it takes to find what fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mulligan.policies.loops.merge_batches import MOST_WINDOW, land_good, next_window
from mulligan.policies.loops.merge_groups import merge_group
from mulligan.policies.loops.spec import ItemSpec


@pytest.mark.parametrize(
    ("window", "good", "following"),
    [
        (1, True, 2),
        (2, True, 3),
        (19, True, 20),
        (MOST_WINDOW, True, MOST_WINDOW),
        (20, False, 10),
        (5, False, 2),
        (2, False, 1),
        (1, False, 1),
    ],
)
def test_the_window_grows_with_success_and_shrinks_with_failure(
    window: int, good: bool, following: int
) -> None:
    assert next_window(window, good=good) == following


class Model:
    """Lands what is good, and counts the verifications."""

    def __init__(self, *bad: int) -> None:
        self.bad, self.landed, self.verified = set(bad), list[int](), list[list[int]]()

    def land(self, members: Sequence[int]) -> bool:
        self.verified.append(list(members))
        good = self.bad.isdisjoint(members)
        self.landed += members if good else []
        return good


@pytest.mark.parametrize(
    ("count", "bad", "verifications"),
    [
        (1, [], 1),
        (8, [], 1),
        (1, [0], 1),
        # all; 0-3 pass, so that 4-7 fail; 4-5 pass; 6 passes: 7 fails
        (8, [7], 4),
        # all; 0-3; 0-1; 0 fails, and 1 is tried; 2-3; 4-7
        (8, [0], 7),
        (8, [3], 5),
        (2, [0, 1], 3),
        (4, [0, 1, 2, 3], 7),
        # all; 0-9 pass; 10-14; 10-12; 10-11; 10 passes: 11 fails; 12; 13-14; 15-19
        (20, [11], 9),
    ],
)
def test_a_batch_that_fails_is_halved(count: int, bad: list[int], verifications: int) -> None:
    model = Model(*bad)
    members = list(range(count))
    assert land_good(members, model.land) == bad
    assert model.landed == [each for each in members if each not in bad]
    assert len(model.verified) == verifications


@pytest.mark.parametrize("count", range(2, 21))
def test_one_culprit_costs_two_verifications_for_each_halving(count: int) -> None:
    halvings = (count - 1).bit_length()
    for bad in range(count):
        model = Model(bad)
        assert land_good(range(count), model.land) == [bad]
        assert len(model.verified) <= 1 + 2 * halvings


def specs(**touches: Sequence[str]) -> list[ItemSpec]:
    return [
        ItemSpec.model_validate(
            {"id": name, "prompt": "Do it.", "verifiers": ["json.object"], "touches": list(files)}
        )
        for name, files in touches.items()
    ]


@pytest.mark.parametrize(
    ("touches", "groups"),
    [
        ({"a": ["src/a.py"], "b": ["src/b.py"]}, {"a": "a", "b": "b"}),
        # the third one meets both
        ({"a": ["a/**"], "b": ["b/**"], "c": ["a/x", "b/x"]}, {"a": "", "b": "", "c": ""}),
        ({"a": ["a/**"], "b": ["b/**"], "c": ["a/x"]}, {"a": "a", "b": "b", "c": "a"}),
        # a name without a slash is in every directory
        ({"a": ["src/a.py"], "b": ["a.py"], "c": ["docs/*.md"]}, {"a": "a", "b": "a", "c": "c"}),
        # an item that does not say what it touches may change everything
        ({"a": ["a/**"], "b": ["b/**"], "c": []}, {"a": "", "b": "", "c": ""}),
        ({"a": ["src/*.py"], "b": ["*.md"], "c": ["src/x.py"]}, {"a": "a", "b": "b", "c": "a"}),
        ({"a": ["*.py"], "b": ["src/**"]}, {"a": "", "b": ""}),
    ],
)
def test_items_that_can_change_the_same_file_are_one_group(
    touches: dict[str, list[str]], groups: dict[str, str]
) -> None:
    found = specs(**touches)
    assert {each.id: merge_group(found, each.id) for each in found} == groups


def test_an_item_that_is_not_known_is_in_the_group_of_all() -> None:
    assert merge_group(specs(a=["a"], b=["b"]), "c") == ""


def test_a_thousand_items_with_directories_of_their_own_are_a_thousand_groups() -> None:
    found = specs(**{f"i{n}": [f"src/part{n}/**", f"docs/part{n}.md"] for n in range(1000)})
    assert len({merge_group(found, each.id) for each in found[::100]}) == 10


def test_a_hundred_thousand_files_are_compared_with_their_neighbours_only() -> None:
    """Who looks at all that follow for each of them needs half a minute."""
    found = specs(
        **{f"i{n}": [f"src/part{n:04}/{name}.py" for name in range(20)] for n in range(5000)}
    )
    assert merge_group(found, "i4999") == "i4999"


def test_patterns_that_are_too_many_to_compare_are_one_group() -> None:
    found = specs(**{f"i{n}": [f"file{n}.py"] for n in range(300)})
    assert len({merge_group(found, each.id) for each in found}) == 300
    found = specs(**{f"i{n}": [f"file{n}.py"] for n in range(1000)})
    assert merge_group(found, "i1") == ""
