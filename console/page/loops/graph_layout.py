"""Where the items of a loop are drawn: columns by depth, few crossings, nothing on top of another.

Pure. A vertex is an item in its column, or a place where the line of an item passes through a
later column. All lines of an item share one way until they part.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise

#: An item, and a column: its own, or one that its line passes through.
Vertex = tuple[str, int]
Link = tuple[Vertex, Vertex]
#: An item, and what must pass before it.
Dependencies = Mapping[str, Sequence[str]]

#: Items in a column. More of one depth take several columns.
_ROWS = 24
#: Passes over all columns to take out crossings, and to straighten lines.
_SWEEPS = 8
_STRAIGHTENINGS = 4
#: The height of a line in rows; an item has 1.
_LINE = 0.3


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Places in columns and rows. Every link leads to the next column."""

    #: The column of each item that depends on another or is needed by one.
    columns: Mapping[str, int]
    #: The row of each vertex, which is its middle.
    rows: Mapping[Vertex, float]
    links: Sequence[Link]
    #: Items that nothing connects with others.
    single: Sequence[str]

    @property
    def width(self) -> int:
        return max(self.columns.values(), default=-1) + 1

    @property
    def height(self) -> float:
        return max(self.rows.values(), default=-1.0) + 1.0

    def is_item(self, vertex: Vertex) -> bool:
        return self.columns[vertex[0]] == vertex[1]

    def route(self, source: str, target: str) -> list[Link]:
        """Return the links from an item to one that depends on it."""
        return _route(source, target, self.columns)


def lay_out(depends: Dependencies) -> Layout:
    """Place the items. The same items are always placed alike."""
    edges = direct_dependencies(depends)
    needed = {each for found in edges.values() for each in found}
    linked = [item for item in depends if edges[item] or item in needed]
    layers = _split(linked, depths(edges))
    columns = {item: index for index, layer in enumerate(layers) for item in layer}
    links = list(
        dict.fromkeys(
            link for item in linked for each in edges[item] for link in _route(each, item, columns)
        )
    )
    order = _ordered(_with_lines(layers, links, columns), links)
    return Layout(
        columns=columns,
        rows=_rows(order, links, columns),
        links=links,
        single=[item for item in depends if item not in columns],
    )


def depths(depends: Dependencies) -> dict[str, int]:
    """Return the length of the longest chain before each item."""
    found: dict[str, int] = {}
    for item in _sorted(depends):
        found[item] = 1 + max((found[each] for each in _known(depends, item)), default=-1)
    return found


def direct_dependencies(depends: Dependencies) -> dict[str, list[str]]:
    """Leave out what others imply: if C needs A and B, and B needs A, only B is drawn before C."""
    bits = {item: 1 << place for place, item in enumerate(depends)}
    before: dict[str, int] = {}
    direct: dict[str, list[str]] = {}
    for item in _sorted(depends):
        implied = 0
        for each in _known(depends, item):
            implied |= before[each]
        direct[item] = [each for each in _known(depends, item) if not implied & bits[each]]
        before[item] = implied
        for each in direct[item]:
            before[item] |= bits[each]
    return direct


def _sorted(depends: Dependencies) -> list[str]:
    order = TopologicalSorter({item: _known(depends, item) for item in depends})
    return list(order.static_order())


def _known(depends: Dependencies, item: str) -> list[str]:
    return [each for each in dict.fromkeys(depends[item]) if each in depends]


# -- columns ---------------------------------------------------------------------------------------


def _split(items: Iterable[str], depth: Mapping[str, int]) -> list[list[str]]:
    """Return the columns: the items of each depth, in as many columns as they need."""
    layers: dict[int, list[str]] = {}
    for item in items:
        layers.setdefault(depth[item], []).append(item)
    return [
        layers[each][start : start + _ROWS]
        for each in sorted(layers)
        for start in range(0, len(layers[each]), _ROWS)
    ]


def _route(source: str, target: str, columns: Mapping[str, int]) -> list[Link]:
    way = [(source, column) for column in range(columns[source], columns[target])]
    return list(pairwise([*way, (target, columns[target])]))


def _with_lines(
    layers: Sequence[Sequence[str]], links: Iterable[Link], columns: Mapping[str, int]
) -> list[list[Vertex]]:
    """Return the columns with the lines that pass through them, at first in their middle."""
    found: list[list[Vertex]] = [
        [(item, index) for item in layer] for index, layer in enumerate(layers)
    ]
    passing = dict.fromkeys(end for _, end in links if columns[end[0]] != end[1])
    for vertex in passing:
        found[vertex[1]].insert(len(layers[vertex[1]]) // 2, vertex)
    return found


# -- the order within columns: the barycentre method -----------------------------------------------


def _ordered(columns: list[list[Vertex]], links: Sequence[Link]) -> list[list[Vertex]]:
    """Sort each column by where its neighbours are, to and fro, and keep the best order found."""
    left, right = _neighbours(links)
    best, fewest = columns, _crossings(columns, right)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        sides, step = (left, 1) if sweep % 2 == 0 else (right, -1)
        place = {each: float(n) for column in columns for n, each in enumerate(column)}
        moved = list(columns)
        for index in range(len(columns))[::step]:
            keys = {each: _mean(place, sides.get(each, ()), place[each]) for each in moved[index]}
            moved[index] = sorted(moved[index], key=keys.__getitem__)
            place |= {each: float(n) for n, each in enumerate(moved[index])}
        columns = moved
        if (crossings := _crossings(columns, right)) < fewest:
            best, fewest = columns, crossings
    return best


def _neighbours(
    links: Iterable[Link],
) -> tuple[dict[Vertex, list[Vertex]], dict[Vertex, list[Vertex]]]:
    left: dict[Vertex, list[Vertex]] = {}
    right: dict[Vertex, list[Vertex]] = {}
    for start, end in links:
        left.setdefault(end, []).append(start)
        right.setdefault(start, []).append(end)
    return left, right


def _mean(at: Mapping[Vertex, float], of: Sequence[Vertex], otherwise: float) -> float:
    return sum(at[each] for each in of) / len(of) if of else otherwise


def _crossings(
    columns: Sequence[Sequence[Vertex]], right: Mapping[Vertex, Sequence[Vertex]]
) -> int:
    total = 0
    for column, following in pairwise(columns):
        place = {each: n for n, each in enumerate(following)}
        seen: list[int] = []
        for vertex in column:
            ends = sorted(place[each] for each in right.get(vertex, ()))
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


# -- rows ------------------------------------------------------------------------------------------


def _rows(
    columns: Sequence[Sequence[Vertex]], links: Iterable[Link], of: Mapping[str, int]
) -> dict[Vertex, float]:
    """Place each vertex as near to its neighbours as its column allows."""
    left, right = _neighbours(links)
    offsets = [_offsets(column, of) for column in columns]
    at = {
        vertex: offset
        for column, places in zip(columns, offsets, strict=True)
        for vertex, offset in zip(column, places, strict=True)
    }
    for number in range(_STRAIGHTENINGS):
        sides, step = (left, 1) if number % 2 == 0 else (right, -1)
        for index in range(len(columns))[::step]:
            column = columns[index]
            wanted = [_mean(at, sides.get(each, ()), at[each]) for each in column]
            at |= zip(column, _spaced(wanted, offsets[index]), strict=True)
    top = min(at.values(), default=0.0)
    return {vertex: row - top for vertex, row in at.items()}


def _offsets(column: Sequence[Vertex], of: Mapping[str, int]) -> list[float]:
    """Return the rows of a column whose vertices are as close to each other as they may be."""
    sizes = [1.0 if of[item] == index else _LINE for item, index in column]
    found, edge = [], 0.0
    for size in sizes:
        found.append(edge + size / 2)
        edge += size
    return found


def _spaced(wanted: Sequence[float], offsets: Sequence[float]) -> list[float]:
    """Return the rows nearest to the wanted ones that keep the order and the distances.

    Least squares: neighbours that would be too close move together (pool adjacent violators).
    """
    pools: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        total, size = want - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / size:
            before = pools.pop()
            total, size = total + before[0], size + before[1]
        pools.append((total, size))
    moved = [total / size for total, size in pools for _ in range(size)]
    return [shift + offset for shift, offset in zip(moved, offsets, strict=True)]
