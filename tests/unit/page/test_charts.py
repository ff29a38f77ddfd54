"""Charts of the page: valid XML, no style attribute, every value also as text."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.console.reports import charts

VALUES = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=40)


def parsed(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)  # noqa: S314 - generated here
    assert not [each for each in root.iter() if "style" in each.attrib]
    return root


@given(VALUES)
def test_a_sparkline_stays_inside_its_box(values: list[float | None]) -> None:
    drawn = charts.sparkline(values, label="a < b")
    if all(value is None for value in values):
        assert drawn == ""
        return
    root = parsed(drawn)
    assert root.attrib["aria-label"] == "a < b"
    for line in root.iter("polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 88
            assert 0 <= y <= 20


def test_a_gap_breaks_the_line() -> None:
    drawn = parsed(charts.sparkline([1, 2, None, 3, 4], label="gaps"))
    assert len(list(drawn.iter("polyline"))) == 2


def test_columns_are_stacked_from_the_bottom_with_their_numbers() -> None:
    columns = [
        charts.Column(title="14:00", parts=(3, 1, 0)),
        charts.Column(title="14:01", parts=(0, 0, 0), mark="settings changed"),
    ]
    drawn = parsed(charts.stacked_bars(columns, label="outcomes", names=("a", "b", "c"), height=42))
    titles = [each.text for each in drawn.iter("title")]
    assert titles == ["14:00: a 3, b 1", "14:01: nothing; settings changed"]
    parts = [r.attrib for r in drawn.iter("rect") if r.attrib["class"] != "ground"]
    # 40 px for 4: 30 at the bottom, 10 above them.
    assert [(p["class"], p["y"], p["height"]) for p in parts] == [
        ("part0", "12", "30"),
        ("part1", "2", "10"),
    ]
    assert len(list(drawn.iter("line"))) == 1


@pytest.mark.parametrize(
    ("share", "width", "name"),
    [(0.5, "44", "share"), (1.7, "88", "share full"), (-1.0, "0", "share")],
)
def test_a_bar_over_its_limit_is_marked_as_full(share: float, width: str, name: str) -> None:
    drawn = parsed(charts.share_bar(share, label="budget", limit=True))
    assert drawn.attrib["class"] == name
    assert [r.attrib["width"] for r in drawn.iter("rect")] == ["88", width]


@pytest.mark.parametrize(
    ("value", "most", "expected"), [(0, 10, 0), (0, 0, 0), (0.01, 10, 1), (3, 10, 3), (10, 10, 5)]
)
def test_a_shade_grows_with_the_value(value: float, most: float, expected: int) -> None:
    assert charts.shade(value, most) == expected
