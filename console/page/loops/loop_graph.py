"""The dependency graph of a loop as accessible SVG: a link for each item, a shape by its state."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from urllib.parse import quote

from markupsafe import Markup

from mulligan.console.page.loops.graph_layout import (
    Dependencies,
    Layout,
    Link,
    Vertex,
    depths,
    lay_out,
)
from mulligan.console.page.loops.loop_board import WAITING, BoardItems, BoardState
from mulligan.console.reports.charts import Column, stacked_bars
from mulligan.policies.figures.format import shortened
from mulligan.policies.loops.end_estimate import longest_chain
from mulligan.policies.loops.loop import DONE, LoopRecord

#: Items and dependencies up to which a graph can be read and is drawn at once.
_MOST_ITEMS = 600
_MOST_DEPENDENCIES = 6000
#: Layouts that are kept: a page asks for its graph again every few seconds.
_KEPT = 20
#: Pixels: a box, the way between two columns, a row, and the margin.
_BOX, _TALL, _GAP, _ROW, _MARGIN = 132, 22, 40, 28, 8
#: Items beside each other that nothing connects, at least.
_ACROSS = 6
#: Characters of an id in its box. The label of the link has all of it.
_LABEL = 15
#: Items of a chain that are named.
_NAMED = 8
#: The mark of each state within 12 by 12 pixels, so that colour is never the only sign.
_SHAPES: Mapping[BoardState, str] = {
    "pending": "M6 1a5 5 0 1 0 .01 0z",
    "ready": "M1.5 1.5h9v9h-9z",
    "waiting": "M2 1h8L6 6l4 5H2l4-5z",
    "running": "M2 1l9 5-9 5z",
    "verifying": "M5 1a4 4 0 1 0 .01 0zM8 8l3.5 3.5",
    "passed": "M1 6.5l3.5 4L11 2",
    "failed": "M1.5 1.5l9 9M10.5 1.5l-9 9",
    "quarantined": "M6 1l5.5 10H.5z",
    "blocked": "M6 .5L11.5 6 6 11.5.5 6z",
    "skipped": "M1 6h10",
}
_NODE = Markup(
    '<a id="node-%s" href="%s" class="node %s" aria-label="%s"><title>%s</title>'
    '<rect x="%s" y="%s" width="%s" height="%s" rx="4"/><use href="#shape-%s" x="%s" y="%s"/>'
    '<text x="%s" y="%s">%s</text></a>'
)
_BARS: tuple[tuple[str, frozenset[BoardState]], ...] = (
    ("done", frozenset({"passed", "skipped"})),
    ("running", frozenset({"running", "verifying", "waiting"})),
    ("failed or blocked", frozenset({"failed", "quarantined", "blocked"})),
    ("left", frozenset({"pending", "ready"})),
)


@dataclass(frozen=True, kw_only=True)
class LoopGraph:
    """What the page shows of the dependencies of a loop."""

    #: The drawing; of very many items, their number by depth.
    svg: Markup
    is_drawn: bool
    items: int
    #: How many items come one after the other.
    depth: int
    #: The longest chain of items that are not done, and the names of some.
    chain: Sequence[str]
    states: Sequence[BoardState]

    @property
    def chain_words(self) -> str:
        more = len(self.chain) - _NAMED
        if more <= 0:
            return " → ".join(self.chain)
        return " → ".join([*self.chain[: _NAMED - 1], "…", self.chain[-1]])

    @property
    def bars(self) -> list[str]:
        return [name for name, _ in _BARS]


class GraphLayouts:
    """Keeps the last layouts by the content address of the items."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Layout] = OrderedDict()
        self._lock = Lock()

    def of(self, loop: LoopRecord, depends: Dependencies) -> Layout:
        with self._lock:
            if (known := self._kept.get(loop.spec)) is not None:
                self._kept.move_to_end(loop.spec)
                return known
        found = lay_out(depends)
        with self._lock:
            self._kept[loop.spec] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


def loop_graph(items: BoardItems, layouts: GraphLayouts) -> LoopGraph | None:
    """Return the graph of a loop; None if no item depends on another."""
    snapshot = items.view.snapshot
    depends = {spec.id: spec.depends_on for spec in snapshot.specs}
    if not any(depends.values()):
        return None
    states = {spec.id: items.state(spec.id) for spec in snapshot.specs}
    chain = longest_chain(snapshot, {each for each in depends if states[each] not in DONE})
    drawn = len(depends) <= _MOST_ITEMS and sum(map(len, depends.values())) <= _MOST_DEPENDENCIES
    depth = depths(depends)
    svg = (
        _draw(layouts.of(snapshot.loop, depends), items, states, chain)
        if drawn
        else _levels(depth, states)
    )
    return LoopGraph(
        svg=svg,
        is_drawn=drawn,
        items=len(depends),
        depth=max(depth.values()) + 1,
        chain=chain,
        states=[each for each in _SHAPES if each in states.values()],
    )


def shape(state: BoardState, id: str = "") -> Markup:
    """Draw the mark of a state within 12 by 12 pixels."""
    named = Markup(' id="{}"').format(id) if id else ""
    return Markup('<path{} class="shape {}" d="{}"/>').format(named, state, _SHAPES[state])


def _levels(depth: Mapping[str, int], states: Mapping[str, BoardState]) -> Markup:
    """Draw how many items of each depth are done, run, failed or are left."""
    counts = Counter((depth[item], state) for item, state in states.items())
    columns = [
        Column(
            title=f"level {level + 1}",
            parts=tuple(float(sum(counts[level, each] for each in bar)) for _, bar in _BARS),
        )
        for level in range(max(depth.values()) + 1)
    ]
    label = f"Items by how many others come before them, in {len(columns)} levels"
    return stacked_bars(columns, label=label, names=[name for name, _ in _BARS])


# -- drawing ---------------------------------------------------------------------------------------


def _draw(
    layout: Layout, items: BoardItems, states: Mapping[str, BoardState], chain: Sequence[str]
) -> Markup:
    thick = {link for before, after in pairwise(chain) for link in layout.route(before, after)}
    top = layout.height * _ROW + 2 * _MARGIN if layout.columns else _MARGIN
    across = max(layout.width, _ACROSS)
    chained = frozenset(chain)
    boxes = [
        _box(items, item, states[item], x, y, critical=item in chained)
        for item, x, y in _places(layout, top, across)
    ]
    wide = _left(max(layout.width, min(across, len(layout.single)))) - _GAP + _MARGIN
    high = round(top + -(-len(layout.single) // across) * _ROW + _MARGIN)
    return Markup(
        '<svg class="graph" role="group" aria-label="{}" width="{}" height="{}"'
        ' viewBox="0 0 {} {}"><defs>{}</defs><g class="links" aria-hidden="true"><path d="{}"/>'
        '<path class="critical" d="{}"/></g>{}</svg>'
    ).format(
        "Items, each to the right of those that it depends on",
        wide,
        high,
        wide,
        high,
        Markup("").join(shape(each, id=f"shape-{each}") for each in dict.fromkeys(states.values())),
        "".join(_line(layout, link) for link in layout.links if link not in thick),
        "".join(_line(layout, link) for link in layout.links if link in thick),
        Markup("").join(boxes),
    )


def _places(layout: Layout, top: float, across: int) -> Iterator[tuple[str, int, int]]:
    """Yield where each item is drawn: its left edge and its middle. Single ones are below."""
    for item, column in layout.columns.items():
        yield item, _left(column), _middle(layout, (item, column))
    for number, item in enumerate(layout.single):
        yield item, _left(number % across), round(top + (number // across + 0.5) * _ROW)


def _left(column: int) -> int:
    return _MARGIN + column * (_BOX + _GAP)


def _middle(layout: Layout, vertex: Vertex) -> int:
    return round(_MARGIN + (layout.rows[vertex] + 0.5) * _ROW)


def _line(layout: Layout, link: Link) -> str:
    """Draw the way from one column to the next, and through it unless it ends there."""
    start, end = link
    x1, x2 = _left(start[1]) + _BOX, _left(end[1])
    y1, y2, bend = _middle(layout, start), _middle(layout, end), _GAP // 2
    through = "" if layout.is_item(end) else f"H{x2 + _BOX}"
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}{through}"


def _box(
    items: BoardItems, item: str, state: BoardState, x: int, y: int, *, critical: bool
) -> Markup:
    words, top = _words(items, item, state), y - _TALL // 2
    return _NODE % (
        item,
        item_address(items.view.snapshot.loop.name, item),
        f"{state} critical" if critical else state,
        words,
        words,
        *(x, top, _BOX, _TALL),
        *(state, x + 6, top + 5),
        *(x + 24, y + 4),
        shortened(item, _LABEL),
    )


def _words(items: BoardItems, item: str, state: BoardState) -> str:
    """Say what an item is and why it is in its state."""
    spec, live = items.view.snapshot.spec(item), items.live(item)
    title = f" {spec.title}" if spec and spec.title else ""
    reason = items.reason(item) if live is None else f"attempt {live.attempt}"
    after: Iterable[str] = spec.depends_on if spec and state in WAITING else ()
    needs = f"; after {', '.join(after)}" if after else ""
    return f"{item}{title}: {state}" + (f", {reason}" if reason else "") + needs


def item_address(loop: str, item: str) -> str:
    """Return the page of an item."""
    return f"/loops/{quote(loop, safe='')}/items/{quote(item, safe='')}"
