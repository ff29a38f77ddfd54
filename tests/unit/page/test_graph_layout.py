"""Where the items of a loop are drawn."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mulligan.console.page.loops.graph_layout import (
    Dependencies,
    Layout,
    depths,
    direct_dependencies,
    lay_out,
)

#: Rows between the middles of two items of one column, a bit less than exactly 1.
ONE = 1 - 1e-6


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Items that depend on others anywhere in the list, without a cycle."""
    size = draw(st.integers(0, 40))
    names = draw(st.permutations([f"i{n}" for n in range(size)]))
    found: dict[str, list[str]] = {f"i{n}": [] for n in range(size)}
    for place, name in enumerate(names[1:], 1):
        count = draw(st.integers(0, min(3, place)))
        found[name] = [names[draw(st.integers(0, place - 1))] for _ in range(count)]
    return found


def items_by_column(layout: Layout) -> dict[int, list[float]]:
    found = defaultdict(list)
    for item, column in layout.columns.items():
        found[column].append(layout.rows[item, column])
    return found


def crossings(layout: Layout) -> int:
    lines = [(a[1], layout.rows[a], layout.rows[b]) for a, b in layout.links]
    return sum(
        column == other and (left - left2) * (right - right2) < -1e-9
        for n, (column, left, right) in enumerate(lines)
        for other, left2, right2 in lines[n + 1 :]
    )


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_every_layout_is_readable(depends: Dependencies) -> None:
    layout = lay_out(depends)
    assert {*layout.columns, *layout.single} == set(depends)
    for rows in items_by_column(layout).values():
        assert all(b - a >= ONE for a, b in pairwise(sorted(rows))), "two items overlap"
    for start, end in layout.links:
        assert end[1] == start[1] + 1, "a line leads elsewhere than to the next column"
        assert {start, end} <= set(layout.rows)
    for item, needed in direct_dependencies(depends).items():
        for each in needed:
            assert layout.columns[each] < layout.columns[item]
            assert set(layout.route(each, item)) <= set(layout.links)
    assert min(layout.rows.values(), default=0.0) >= 0
    assert lay_out(depends) == layout


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_what_is_left_out_is_implied(depends: Dependencies) -> None:
    direct = direct_dependencies(depends)

    def before(edges: Dependencies, item: str) -> set[str]:
        found = set(edges[item])
        return found.union(*(before(edges, each) for each in found))

    for item in depends:
        assert before(direct, item) == before(depends, item)
        for each in direct[item]:
            assert not any(each in before(direct, other) for other in direct[item])


def test_an_implied_dependency_is_not_drawn() -> None:
    assert direct_dependencies({"a": [], "b": ["a"], "c": ["a", "b"]})["c"] == ["b"]


def test_a_dependency_that_does_not_exist_is_not_drawn() -> None:
    assert lay_out({"a": ["nobody"]}).single == ["a"]


def test_items_that_nothing_connects_are_kept_apart() -> None:
    layout = lay_out({"a": [], "b": ["a"], "alone": []})
    assert layout.single == ["alone"]
    assert layout.columns == {"a": 0, "b": 1}


def test_lines_that_need_not_cross_do_not() -> None:
    """Given two trees whose leaves are listed crosswise, when drawn, then nothing crosses."""
    depends = {"a": [], "b": [], "b1": ["b"], "a1": ["a"], "b2": ["b"], "a2": ["a"]}
    depends |= {"b3": ["b1"], "a3": ["a1"]}
    assert crossings(lay_out(depends)) == 0


def test_a_chain_is_straight() -> None:
    layout = lay_out({f"i{n}": [f"i{n - 1}"] if n else [] for n in range(6)})
    assert len({round(row, 6) for row in layout.rows.values()}) == 1


def test_many_items_of_one_depth_take_several_columns() -> None:
    """Given 300 items after one, when drawn, then the drawing is neither a tower nor a thread."""
    layout = lay_out({"root": []} | {f"i{n}": ["root"] for n in range(300)})
    assert layout.height < 30
    assert 10 < layout.width < 20
    assert len(layout.links) < 330, "lines of one item share their way"


def test_the_depth_is_the_longest_chain_before_an_item() -> None:
    found = depths({"a": [], "b": ["a"], "c": ["a", "b"], "x": []})
    assert found == {"a": 0, "b": 1, "c": 2, "x": 0}
