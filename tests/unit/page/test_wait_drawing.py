"""Who waits for whom, drawn and in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from mulligan.console.page.loops.wait_drawing import MOST_NODES, draw_waits, wait_lines
from mulligan.policies.coordination.wait_graph import Wait, WaitGraph, WaitingNode
from mulligan.policies.loops.spec import EVENT
from mulligan.tasks.coordination.view import CoordinationView, DeniedItem

#: An item, and what it waits for; an event with who gives it off as ("event:name", "loop/item"), an
#: item that was split with its last part.
Waits = Mapping[str, Sequence[str | tuple[str, str]]]


def view_of(waits: Waits, *denied: DeniedItem) -> CoordinationView:
    nodes = {name: _node(name, found) for name, found in waits.items()}
    pairs = [each for found in waits.values() for each in found if not isinstance(each, str)]
    emitters = {
        _event(what): [by for each, by in pairs if each == what and by]
        for what, _ in pairs
        if what.startswith(EVENT)
    }
    graph = WaitGraph(nodes=nodes, emitters=emitters)
    return CoordinationView(
        locks=[],
        denied=denied,
        events=[],
        graph=graph,
        deadlocks=graph.deadlocks(),
        decisions=[],
        states={(n.loop, w.what): "running" for n in nodes.values() for w in n.waits},
    )


def _node(name: str, waits: Sequence[str | tuple[str, str]]) -> WaitingNode:
    loop, _, item = name.partition("/")
    return WaitingNode(
        loop=loop,
        item=item,
        loop_created=1.0,
        since=1.0,
        held=False,
        waits=tuple(_wait(loop, each) for each in waits),
    )


def _wait(loop: str, wait: str | tuple[str, str]) -> Wait:
    if isinstance(wait, str):
        return Wait(what=wait, by=wait, outer=not wait.startswith(f"{loop}/"))
    what, by = wait
    return Wait(what=what, by=_event(what) if what.startswith(EVENT) else by, outer=True)


def _event(name: str) -> str:
    return name.replace(EVENT, f"{EVENT}/")


def drawing(waits: Waits, *denied: DeniedItem) -> str:
    found = draw_waits(view_of(waits, *denied)).svg
    assert found is not None
    return str(found)


def boxes(svg: str) -> dict[str, tuple[str, int, int]]:
    """Return the class and the place of each node."""
    found = re.findall(
        r'<a id="wait-([^"]+)".*?class="node ([^"]*)".*?<rect x="(\d+)" y="(\d+)"', svg
    )
    return {name: (kind, int(x), int(y)) for name, kind, x, y in found}


def paths(svg: str, kind: str) -> str:
    found = re.search(rf'<path class="{kind}" d="([^"]*)"', svg)
    assert found
    return found[1]


def test_items_are_to_the_right_of_what_they_wait_for() -> None:
    svg = drawing({"a/x": ["b/y", ("event:go", "c/z")], "b/y": ["b/first"]})
    places = boxes(svg)
    assert sorted(places) == ["a/x", "b/first", "b/y", "c/z", "event:go"]
    assert places["b/first"][1] < places["b/y"][1] < places["a/x"][1]
    assert places["c/z"][1] < places["event:go"][1] < places["a/x"][1]
    assert places["event:go"][0] == "event"
    assert 'aria-label="a/x (pending) waits for b/y, the event go"' in svg
    assert 'aria-label="the event go is given off by c/z"' in svg
    assert paths(svg, "cycle") == ""


def test_items_that_only_wait_in_their_own_loop_are_left_out() -> None:
    assert draw_waits(view_of({"a/x": ["a/y"]})).nodes == 0
    assert wait_lines(view_of({"a/x": ["a/y"]})) == []


@pytest.mark.parametrize(
    "waits",
    [
        {"a/x": ["b/x"], "b/x": ["a/x"]},
        {"a/x": ["b/x"], "b/x": ["c/x"], "c/x": ["a/x"]},
        {"a/x": [("event:e", "b/x")], "b/x": [("event:f", "a/x")]},
        {"a/x": ["b/x", "c/x"], "b/x": ["c/x"], "c/x": ["a/x"]},
        {"a/x": [("b/x", "b/x.2")], "b/x.2": ["b/x.1"], "b/x.1": ["a/x"]},
    ],
)
def test_cycles_are_marked(waits: Waits) -> None:
    svg = drawing(waits)
    cycle = {name for each in view_of(waits).deadlocks for name in each.cycle}
    marked = {name for name, (kind, _, _) in boxes(svg).items() if kind.endswith(" cycle")}
    assert cycle
    assert cycle <= marked
    steps = len(marked)
    assert paths(svg, "cycle").count("M") == steps, "an arrow for each that is part of it"
    assert paths(svg, "heads cycle").count("M") == steps
    lines = {f"{each.loop}/{each.item}": each.in_cycle for each in wait_lines(view_of(waits))}
    assert {name for name, in_cycle in lines.items() if in_cycle} == cycle


def test_who_waits_for_files_is_drawn_with_who_has_them() -> None:
    denied = DeniedItem(loop="a", item="x", holder="another loop", files="f")
    svg = drawing({}, denied)
    assert set(boxes(svg)) == {"a/x", "another loop"}
    assert 'href="/loops/a/items/x"' in svg
    assert "/loops/another" not in svg


def test_too_many_are_only_listed() -> None:
    waits = {f"a/i{n:02}": ["b/y"] for n in range(MOST_NODES - 1)}
    assert draw_waits(view_of(waits)).svg is not None
    more = view_of({**waits, "a/z": ["b/y"]})
    assert (draw_waits(more).svg, draw_waits(more).nodes) == (None, MOST_NODES + 1)
    assert len(wait_lines(more)) == MOST_NODES


def test_words_say_what_is_waited_for() -> None:
    view = view_of({"a/x": ["b/y", ("event:go", "")]})
    (line,) = wait_lines(view)
    assert line.text == "b/y (running), the event go"
    assert line.address == "/loops/a/items/x"
    held = replace(view.graph.nodes["a/x"], held=True)
    (line,) = wait_lines(replace(view, graph=WaitGraph(nodes={"a/x": held})))
    assert line.text.endswith("; a person holds it")


def test_names_are_escaped() -> None:
    denied = DeniedItem(loop="a", item="x", holder='<img src=x onerror="alert(1)">', files="f")
    assert "<img" not in drawing({}, denied)
