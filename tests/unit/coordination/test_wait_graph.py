"""The wait-for graph: exactly those that can never begin are found, and nobody is blamed twice."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.coordination.wait_graph import Wait, WaitGraph, WaitingNode

_NAMES = [f"loop{n}/i{k}" for n in range(3) for k in range(2)]
#: Names that are not in the graph: they run, so that what waits for them goes on some time.
_RUNNING = ["other/runs", "loop0/runs"]


@dataclass(frozen=True)
class _For:
    """A wait of an item for others: for an item, or for an event that any of some can give off."""

    what: str
    by: tuple[str, ...]
    outer: bool

    def wait(self, name: str) -> Wait:
        by = self.what if self.by == (self.what,) else f"event:{name}/{self.what}"
        return Wait(what=self.what, by=by, outer=self.outer)


def _wait(name: str, *by: str, what: str = "", outer: bool | None = None) -> _For:
    """Return a wait of an item; it leads out of its loop if one of the others is there."""
    loop = name.partition("/")[0]
    leads_out = any(each.partition("/")[0] != loop for each in by)
    return _For(what=what or by[0], by=by, outer=leads_out if outer is None else outer)


@dataclass(frozen=True)
class _Item:
    node: WaitingNode
    emitters: dict[str, tuple[str, ...]]


def _node(name: str, *waits: _For, created: float = 0.0, held: bool = False) -> _Item:
    loop, _, item = name.partition("/")
    made = tuple(each.wait(name) for each in waits)
    return _Item(
        WaitingNode(loop=loop, item=item, loop_created=created, since=0.0, held=held, waits=made),
        {one.by: each.by for one, each in zip(made, waits, strict=True) if one.by != one.what},
    )


def _graph(*items: _Item) -> WaitGraph:
    return WaitGraph(
        nodes={each.node.name: each.node for each in items},
        emitters={event: by for each in items for event, by in each.emitters.items()},
    )


@st.composite
def _graphs(draw: st.DrawFn, *, holds: bool = False) -> WaitGraph:
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, unique=True))
    places = {name: place for place, name in enumerate(_NAMES)}
    nodes = []
    for name in names:
        # As plans have no cycles, items wait for earlier ones of their own loop only.
        others = [
            each
            for each in (*_NAMES, *_RUNNING)
            if each.partition("/")[0] != name.partition("/")[0]
            or each in _RUNNING
            or places[each] < places[name]
        ]
        waits = [
            _wait(name, *draw(st.lists(st.sampled_from(others), min_size=1, max_size=2)), what=w)
            for w in draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=2, unique=True))
        ]
        created = float(draw(st.integers(0, 3)))
        nodes.append(_node(name, *waits, created=created, held=holds and draw(st.booleans())))
    return _graph(*nodes)


def _never_begin(graph: WaitGraph) -> Collection[str]:
    """Return the items that never begin, by letting begin what can until nothing changes."""
    left = dict(graph.nodes)
    while True:
        begins = [
            name
            for name, node in left.items()
            if all(any(by not in left for by in graph.enders(w.by)) for w in node.waits)
        ]
        if not begins:
            return left.keys()
        for name in begins:
            del left[name]


def _broken(graph: WaitGraph) -> WaitGraph:
    """Return the graph without the waits that its deadlocks break."""
    gone = {(each.victim.name, each.wait) for each in graph.deadlocks()}
    nodes = (
        replace(node, waits=tuple(w for w in node.waits if (name, w.what) not in gone))
        for name, node in graph.nodes.items()
    )
    return replace(graph, nodes={each.name: each for each in nodes if each.waits})


@given(_graphs())
def test_a_deadlock_is_found_exactly_if_something_can_never_begin(graph: WaitGraph) -> None:
    never, deadlocks = _never_begin(graph), graph.deadlocks()
    assert bool(deadlocks) == bool(never)
    assert _never_begin(_broken(graph)) == set()


@given(_graphs(holds=True))
def test_only_items_that_wait_for_each_other_are_blamed(graph: WaitGraph) -> None:
    never = set(_never_begin(graph))
    for each in graph.deadlocks():
        assert set(each.cycle) <= never  # nothing that runs, and nothing that could
        for name, after in zip(each.cycle, (*each.cycle[1:], each.cycle[0]), strict=True):
            assert any(after in graph.enders(wait.by) for wait in graph.nodes[name].waits)


@given(_graphs(holds=True))
def test_the_youngest_that_nobody_holds_is_broken_once(graph: WaitGraph) -> None:
    deadlocks = graph.deadlocks()
    broken = [(each.victim.name, each.wait) for each in deadlocks]
    assert len(broken) == len(set(broken))
    for each in deadlocks:
        assert each.victim.name in each.cycle
        assert not each.victim.held
        (wait,) = (wait for wait in each.victim.waits if wait.what == each.wait)
        assert wait.outer
        for name, after in zip(each.cycle, (*each.cycle[1:], each.cycle[0]), strict=True):
            node = graph.nodes[name]
            in_cycle = [wait for wait in node.waits if after in graph.enders(wait.by)]
            is_older = node.age <= each.victim.age
            assert is_older or node.held or not all(wait.outer for wait in in_cycle)


@given(_graphs(holds=True))
def test_deadlocks_depend_on_who_waits_and_not_on_the_order_of_reading(graph: WaitGraph) -> None:
    other = replace(graph, nodes=dict(reversed([*graph.nodes.items()])))
    assert other.deadlocks() == graph.deadlocks()


A, B, C = "alpha/x", "beta/x", "gamma/x"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([], []),
        ([_node(A, _wait(A, B))], []),  # beta/x runs
        ([_node(A, _wait(A, B)), _node(B, _wait(B, A), created=1)], [(B, A)]),
        ([_node(A, _wait(A, B), created=2), _node(B, _wait(B, A), created=1)], [(A, B)]),
        # one of two that can give off an event still runs
        ([_node(A, _wait(A, B, "other/runs", what="event:e")), _node(B, _wait(B, A))], []),
        # nobody is known who gives off the event: a person may
        ([_node(A, _For("event:e", (), outer=True))], []),
        # a person holds the youngest: the next one is broken
        ([_node(A, _wait(A, B)), _node(B, _wait(B, A), created=1, held=True)], [(A, B)]),
        # all are held: they wait for people
        ([_node(A, _wait(A, B), held=True), _node(B, _wait(B, A), held=True)], []),
        # two cycles with one item in both: one wait of it ends one cycle only
        (
            [_node(A, _wait(A, B), _wait(A, C), created=9), _node(B, _wait(B, A)),
             _node(C, _wait(C, A))],
            [(A, B), (A, C)],
        ),
        # who waits for a cycle is not part of it
        (
            [_node(A, _wait(A, B)), _node(B, _wait(B, A)), _node(C, _wait(C, A), created=9)],
            [(B, A)],
        ),
    ],
)  # fmt: skip
def test_which_wait_is_broken(nodes: list[_Item], expected: list[tuple[str, str]]) -> None:
    found = _graph(*nodes).deadlocks()
    assert [(each.victim.name, each.wait) for each in found] == expected


def test_a_cycle_is_named_in_the_order_of_its_waits() -> None:
    nodes = (_node(A, _wait(A, B)), _node(B, _wait(B, C)), _node(C, _wait(C, A)))
    (found,) = _graph(*nodes).deadlocks()
    assert str(found) == "alpha/x → beta/x → gamma/x → alpha/x"


def _chained(name: str, other: str, **fields: Any) -> _Item:
    """Return an item that waits for the one before it in its own loop."""
    return _node(name, _wait(name, other, outer=False), **fields)


@pytest.mark.parametrize(
    ("items", "rank"),
    [
        ([_node(A, _wait(A, B)), _node(B, _wait(B, A), created=1)], "the youngest"),
        (
            [_node(A, _wait(A, B)), _node(B, _wait(B, A), created=1, held=True)],
            "the youngest that nobody holds",
        ),
        (
            [_node(A, _wait(A, "beta/y")), _node(B, _wait(B, A), created=1),
             _chained("beta/y", B, created=2)],
            "the youngest that waits for another loop or an event",
        ),
        (
            [_node(A, _wait(A, "beta/y")), _node(B, _wait(B, A), created=1, held=True),
             _chained("beta/y", B, created=2)],
            "the youngest that nobody holds and that waits for another loop or an event",
        ),
    ],
)  # fmt: skip
def test_what_is_said_about_the_victim_is_true(items: list[_Item], rank: str) -> None:
    (found,) = _graph(*items).deadlocks()
    assert found.rank == rank


def test_a_long_cycle_is_named_in_part() -> None:
    names = [f"l{n:02}/x" for n in range(30)]
    items = (_node(one, _wait(one, two)) for one, two in pairwise([*names, names[0]]))
    (found,) = _graph(*items).deadlocks()
    assert str(found).endswith("l19/x → 10 more → l00/x")


@given(_graphs(holds=True))
def test_deadlocks_of_a_graph_with_a_long_way_to_them_are_the_same(graph: WaitGraph) -> None:
    """Given items that wait for one of the graph, one after the other."""
    first = min(graph.nodes)
    way = [f"a/{n}" for n in range(4)]
    more = _graph(*(_chained(one, two) for one, two in pairwise([*way, first])))
    longer = replace(graph, nodes={**graph.nodes, **more.nodes})
    found = {(each.victim.name, each.wait) for each in longer.deadlocks()}
    assert found == {(each.victim.name, each.wait) for each in graph.deadlocks()}


class _Counted(dict[str, Any]):
    """A graph's nodes that count how often they are looked up."""

    looked = 0

    def __contains__(self, name: object) -> bool:
        _Counted.looked += 1
        return super().__contains__(name)


def test_an_event_of_many_is_looked_at_once_for_each_of_them() -> None:
    """Given 300 items that give an event off and wait for that of 300 others."""
    sides = {side: [f"{side}/{n:03}" for n in range(300)] for side in ("one", "two")}
    emitters = {f"event:/{side}": names for side, names in sides.items()}
    nodes = {
        node.name: node
        for side, other in (("one", "two"), ("two", "one"))
        for node in (
            replace(
                _node(name).node,
                waits=(Wait(what=f"event:{other}", by=f"event:/{other}", outer=True),),
            )
            for name in sides[side]
        )
    }
    _Counted.looked = 0
    assert WaitGraph(nodes=_Counted(nodes), emitters=emitters).deadlocks()
    assert _Counted.looked <= 2 * len(nodes)
