"""Who waits for whom, as accessible SVG: items and events, with arrows to what they wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from mulligan.console.page.elements import MARKS
from mulligan.console.page.loops.graph_layout import (
    Dependencies,
    Layout,
    Link,
    direct_dependencies,
    lay_out,
)
from mulligan.console.page.loops.loop_graph import item_address
from mulligan.policies.coordination.outer_waits import wait_words
from mulligan.policies.figures.format import shortened
from mulligan.policies.loops.spec import EVENT
from mulligan.tasks.coordination.view import CoordinationView

#: Items and events up to which a drawing can be read.
MOST_NODES = 60
#: Pixels: a box, the way between two columns, a row, the margin, and the room for lines back.
_BOX, _TALL, _GAP, _ROW, _MARGIN, _BACK = 150, 36, 52, 46, 10, 40
#: Characters of a name in its box. The label of the link has all of it.
_LABEL = 16
_NODE = Markup(
    '<a id="wait-{}"{} class="node {}" aria-label="{}"><title>{}</title>'
    '<rect x="{}" y="{}" width="{}" height="{}" rx="{}"/><text class="of" x="{}" y="{}">{}</text>'
    '<text x="{}" y="{}">{}</text></a>'
)
_DRAWING = Markup(
    '<svg class="graph waits" role="group" aria-label="{}" width="{}" height="{}"'
    ' viewBox="0 0 {} {}"><g class="links" aria-hidden="true"><path d="{}"/>'
    '<path class="cycle" d="{}"/><path class="heads" d="{}"/><path class="heads cycle" d="{}"/>'
    "</g>{}</svg>"
)


@dataclass(frozen=True, kw_only=True)
class WaitLine:
    """An item and what it waits for, in words."""

    loop: str
    item: str
    since: float
    text: str
    #: Whether it waits for itself in the end.
    in_cycle: bool

    @property
    def address(self) -> str:
        return item_address(self.loop, self.item)


@dataclass(frozen=True, kw_only=True)
class WaitDrawing:
    #: None: too many to draw.
    svg: Markup | None
    nodes: int


def wait_lines(view: CoordinationView) -> list[WaitLine]:
    """Return who waits for other loops, for events or for files, the longest wait first."""
    waits = _waits(view)
    cycles = _in_cycles(view)
    return [
        WaitLine(
            loop=node.loop,
            item=node.item,
            since=node.since,
            text=", ".join(
                wait_words(each.what, view.states.get((node.loop, each.what), ""))
                for each in node.waits
            )
            + ("; a person holds it" if node.held else ""),
            in_cycle=node.name in cycles,
        )
        for node in sorted(view.graph.nodes.values(), key=lambda each: (each.since, each.name))
        if node.name in waits
    ]


def draw_waits(view: CoordinationView) -> WaitDrawing:
    """Draw the waits that lead out of loops, and what these wait for in the end."""
    waits = _waits(view)
    names = list(dict.fromkeys([*waits, *(each for found in waits.values() for each in found)]))
    if not names or len(names) > MOST_NODES:
        return WaitDrawing(svg=None, nodes=len(names))
    depends = {name: waits.get(name, []) for name in names}
    between = waits.keys() - view.graph.nodes.keys()
    cycles = [{*pairwise([*each.cycle, each.cycle[0]])} for each in view.deadlocks]
    return WaitDrawing(
        svg=_Drawing(view, depends, _steps(cycles, waits, between)).draw(), nodes=len(names)
    )


def _waits(view: CoordinationView) -> dict[str, list[str]]:
    """Return what items and events wait for: of items that wait for others, and what follows."""
    nodes = view.graph.nodes
    files = {each.name: each.holder for each in view.denied}
    found, enders = dict[str, list[str]](), dict[str, Sequence[str]]()
    first = [name for name, node in nodes.items() if any(each.outer for each in node.waits)]
    queue = [*files, *first]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        node = nodes.get(name)
        waits = node.waits if node is not None else ()
        found[name] = [
            *(each.what for each in waits),
            *filter(None, [files.get(name)]),
            *enders.get(name, ()),
        ]
        for each in waits:
            if each.by != each.what:  # an event, or an item that was split
                enders.setdefault(each.what, view.graph.enders(each.by))
        queue += found[name]
    return {name: list(dict.fromkeys(each)) for name, each in sorted(found.items()) if each}


def _in_cycles(view: CoordinationView) -> set[str]:
    return {name for each in view.deadlocks for name in each.cycle}


def _steps(
    cycles: Iterable[set[tuple[str, str]]],
    waits: Mapping[str, Sequence[str]],
    between: Collection[str],
) -> set[tuple[str, str]]:
    """Return the arrows of cycles. One item may wait for the next one by something between them."""
    found = set[tuple[str, str]]()
    for one, other in (step for cycle in cycles for step in cycle):
        if other in waits.get(one, ()):
            found.add((one, other))
        for each in waits.get(one, ()):
            if each in between and other in waits[each]:
                found |= {(one, each), (each, other)}
    return found


def _without_cycles(depends: Dependencies) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Return the dependencies that can be laid out, and those that lead back."""
    kept: dict[str, list[str]] = {name: [] for name in depends}
    back = list[tuple[str, str]]()
    done, path = set[str](), dict[str, Iterator[str]]()
    for start in depends:
        if start in done:
            continue
        path[start] = iter(depends[start])
        while path:
            name = next(reversed(path))
            following = next(path[name], None)
            if following is None:
                done.add(name)
                path.popitem()
            elif following in path:
                back.append((name, following))
            else:
                kept[name].append(following)
                if following not in done:
                    path[following] = iter(depends[following])
    return kept, [each for each in back if each[0] != each[1]]


class _Drawing:
    """Items to the right of what they wait for; what closes a cycle leads back above them."""

    def __init__(
        self, view: CoordinationView, depends: Dependencies, cycle: set[tuple[str, str]]
    ) -> None:
        self._view = view
        self._depends = depends
        self._cycle = cycle
        kept, back = _without_cycles(depends)
        self._layout: Layout = lay_out(kept)
        self._direct = direct_dependencies(kept)
        hidden = [each for each in cycle if each[1] not in self._direct[each[0]]]
        self._back = list(dict.fromkeys([*back, *sorted(hidden)]))
        self._below = {each for each in self._back if self._is_below(*each)}
        self._top = _MARGIN + (_BACK if len(self._below) < len(self._back) else 0)

    def draw(self) -> Markup:
        layout = self._layout
        marked = {
            link
            for one, other in self._cycle
            if other in self._direct[one]
            for link in layout.route(other, one)
        }
        plain = [each for each in layout.links if each not in marked]
        curves = {each: self._curve(*each) for each in self._back}
        lines = [*map(self._line, plain), *(v for k, v in curves.items() if k not in self._cycle)]
        red = [*map(self._line, marked), *(v for k, v in curves.items() if k in self._cycle)]
        wide = self._left(layout.width) - _GAP + _MARGIN
        bottom = _MARGIN + (_BACK if self._below else 0)
        high = round(self._top + layout.height * _ROW + bottom)
        label = "Items and events, each to the right of what it waits for"
        return _DRAWING.format(
            *(label, wide, high, wide, high),
            "".join(lines),
            "".join(sorted(red)),
            "".join(self._heads(plain, marked=False)),
            "".join(self._heads(sorted(marked), marked=True)),
            Markup("").join(self._box(name) for name in layout.columns),
        )

    def _left(self, column: int) -> int:
        return _MARGIN + column * (_BOX + _GAP)

    def _middle(self, vertex: tuple[str, int]) -> int:
        return round(self._top + (self._layout.rows[vertex] + 0.5) * _ROW)

    def _place(self, name: str) -> tuple[int, int]:
        column = self._layout.columns[name]
        return self._left(column), self._middle((name, column))

    def _line(self, link: Link) -> str:
        start, end = link
        x1, x2 = self._left(start[1]) + _BOX, self._left(end[1])
        y1, y2, bend = self._middle(start), self._middle(end), _GAP // 2
        through = "" if self._layout.is_item(end) else f"H{x2 + _BOX}"
        return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}{through}"

    def _curve(self, one: str, other: str) -> str:
        """Draw an arrow from an item to one that is not on its left, above or below both."""
        (x1, y1), (x2, y2) = self._place(one), self._place(other)
        is_below = (one, other) in self._below
        edge, side = (_TALL // 2, _BACK) if is_below else (-_TALL // 2, -_BACK)
        turn = (max(y1, y2) if is_below else min(y1, y2)) + edge + side
        start, end = x1 + _BOX // 2 + 8, x2 + _BOX // 2 - 8
        return f"M{start} {y1 + edge}C{start} {turn} {end} {turn} {end} {y2 + edge}"

    def _is_below(self, one: str, other: str) -> bool:
        """Whether fewer items are below the two than above them."""
        balance = 0
        for name in (one, other):
            column = self._layout.columns[name]
            own = self._layout.rows[name, column]
            rows = [row for (_, each), row in self._layout.rows.items() if each == column]
            balance += sum(row > own for row in rows) - sum(row < own for row in rows)
        return balance < 0

    def _heads(self, links: Iterable[Link], *, marked: bool) -> Iterator[str]:
        """Draw the points of arrows: at the right edge of what is waited for, or at its top."""
        for start in dict.fromkeys(link[0] for link in links if self._layout.is_item(link[0])):
            yield f"M{self._left(start[1]) + _BOX} {self._middle(start)}l9 -5v10z"
        for one, other in self._back:
            if ((one, other) in self._cycle) == marked:
                x, y = self._place(other)
                edge, long = (_TALL // 2, 9) if (one, other) in self._below else (-_TALL // 2, -9)
                yield f"M{x + _BOX // 2 - 8} {y + edge}l-5 {long}h10z"

    def _box(self, name: str) -> Markup:
        x, y = self._place(name)
        top, is_event = y - _TALL // 2, name.startswith(EVENT)
        loop, slash, item = name.partition("/")
        of, label = ("event", name.removeprefix(EVENT)) if is_event else (loop, item or loop)
        state = self._state(name)
        marked = any(name in each for each in self._cycle)
        kinds = ("event" if is_event else state or "unknown", "cycle" if marked else "")
        words = self._words(name, state)
        link = Markup(' href="{}"').format(item_address(loop, item)) if slash else ""
        return _NODE.format(
            *(name, link, " ".join(filter(None, kinds)), words, words),
            *(x, top, _BOX, _TALL, _TALL // 2 if is_event else 4),
            *(x + 12, y - 4, shortened(of if slash or is_event else "", _LABEL + 3)),
            *(x + 12, y + 11, f"{MARKS.get(state, '')} {shortened(label, _LABEL)}".strip()),
        )

    def _state(self, name: str) -> str:
        if name in self._view.graph.nodes:
            return "pending"
        if any(each.name == name for each in self._view.denied):
            return "ready"
        if any(each.holder == name for each in self._view.denied):
            return "running"
        return next((v for (_, what), v in self._view.states.items() if what == name), "")

    def _words(self, name: str, state: str) -> str:
        waits = self._depends[name]
        what = wait_words(name, state) if "/" in name or name.startswith(EVENT) else name
        if not waits:
            return what
        verb = "is given off by" if name.startswith(EVENT) else "waits for"
        names = ", ".join(each.replace(EVENT, "the event ") for each in waits)
        return f"{what} {verb} {names}"
