"""weigh_items: the longest chain after each item, and the most urgent loop behind it."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from support.loop_snapshots import snapshot

from mulligan.policies.coordination.critical_path import WaitingLoop, Weight, weigh_items
from mulligan.policies.loops.admission import LEAST_URGENT

_Shape = Mapping[str, tuple[str, ...]]


@st.composite
def _shapes(draw: st.DrawFn) -> _Shape:
    names = [f"i{n}" for n in range(draw(st.integers(1, 6)))]
    return {
        name: tuple(
            draw(st.lists(st.sampled_from(names[:n]), unique=True, max_size=3)) if n else ()
        )
        for n, name in enumerate(names)
    }


def _after(shape: _Shape, item: str, left: set[str]) -> list[str]:
    return [each for each, before in shape.items() if item in before and each in left]


def _chain(shape: _Shape, item: str, left: set[str]) -> int:
    """Follow every path."""
    return max((1 + _chain(shape, each, left) for each in _after(shape, item, left)), default=0)


def _urgency(shape: _Shape, item: str, left: set[str], urgent: Mapping[str, int]) -> int:
    behind = [_urgency(shape, each, left, urgent) for each in _after(shape, item, left)]
    return min([urgent.get(item, LEAST_URGENT), *behind])


@given(_shapes(), st.data())
def test_each_item_weighs_what_waits_for_it(shape: _Shape, data: st.DataObject) -> None:
    names = st.sampled_from(sorted(shape))
    done = data.draw(st.sets(names, max_size=2))
    urgent = data.draw(st.dictionaries(names, st.integers(1, 9), max_size=2))
    left = shape.keys() - done
    waiting = [
        WaitingLoop(loop=f"other{n}", tenant="", asks={f"alpha/{item}": priority})
        for n, (item, priority) in enumerate(urgent.items())
    ]
    weights = weigh_items(snapshot(shape, dict.fromkeys(done, "passed")), waiting)
    assert weights == {
        item: Weight(
            chain=_chain(shape, item, set(left)), urgency=_urgency(shape, item, set(left), urgent)
        )
        for item in left
    }


def test_loops_of_other_tenants_and_the_loop_itself_make_nothing_urgent() -> None:
    found = snapshot({"a": ()}, {})
    waiting = [
        WaitingLoop(loop="other", tenant="two", asks={"alpha/a": 1}),
        WaitingLoop(loop="alpha", tenant="", asks={"alpha/a": 1}),
    ]
    assert weigh_items(found, waiting) == {"a": Weight()}
