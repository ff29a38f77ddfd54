"""The page of coordination without a browser: who may do what, and what others wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from support.console_server import client_of, new_token
from support.ledger_scenario import Scenario, SettingsMaker
from support.loops import LoopScenario, item

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.coordination import orders
from mulligan.tasks.ports.ledger import Requester

HTML = {"Accept": "text/html"}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def context(settings: SettingsMaker) -> Iterator[ConsoleContext]:
    opened = open_context(settings(allow_inline=True))
    yield opened
    opened.close()


@pytest.fixture
def loops(context: ConsoleContext) -> LoopScenario:
    return LoopScenario(Scenario(context.ledger, context.settings))


def page(context: ConsoleContext, path: str, **token: str) -> str:
    client = client_of(context, new_token(context, **token) if token else None)
    response = client.get(path, headers=HTML)
    assert response.status_code == 200, response.text
    return response.text


def test_only_operators_may_overrule_and_order(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    asked = {"name": "alpha", "runner": {"kind": "scripted", "answers": ["{}"]}, "concurrency": 2}
    producer = client_of(context, new_token(context, role="producer", name="ann"))
    items = [item("a", touches=["x"]), item("b", touches=["x"])]
    answer = producer.post("/api/loops", json={"loop": asked, "items": items, "start": True})
    assert answer.status_code == 201, answer.text
    loops.plan()
    for path, button in (("/coordination", "Overrule"), ("/loops/alpha/items/b", "Go first")):
        shown = producer.get(path, headers=HTML).text
        assert "alpha/a" in shown
        assert f">{button}</button>" not in shown
        assert f">{button}</button>" in page(context, path, role="ops")
    # Nor what would change that: neither a program nor the board is offered it.
    why = "/api/loops/alpha/why?test=b"
    assert producer.get(why).json()["remedy"] is None
    assert client_of(context, new_token(context, role="ops")).get(why).json()["remedy"]
    assert 'id="remedy"' not in producer.get("/loops/alpha", headers=HTML).text


def test_what_others_wrote_is_escaped(context: ConsoleContext, loops: LoopScenario) -> None:
    loops.create(item("a", touches=[HOSTILE]), item("b", touches=[HOSTILE]))
    loops.plan()
    orders.emit(loops.context, "ready", tenant="", by=HOSTILE)
    orders.give_order(loops.context, "alpha", "b", "hold", Requester(by=HOSTILE))
    for path in ("/coordination", "/loops/alpha", "/loops/alpha/items/b"):
        shown = page(context, path)
        assert "<img" not in shown
        assert "&lt;img src=x" in shown


def test_lists_and_boards_lead_to_it(context: ConsoleContext, loops: LoopScenario) -> None:
    loops.create(item("a"))
    assert 'href="/coordination"' in page(context, "/loops")
    assert 'href="/coordination?loop=alpha"' in page(context, "/loops/alpha")
    empty = re.sub(r"<[^>]+>", " ", page(context, "/coordination?loop=alpha"))
    assert "No item waits for another loop, an event or files." in empty
    assert "Nothing was decided yet." in empty


def test_a_card_shows_the_order_and_the_files(context: ConsoleContext, loops: LoopScenario) -> None:
    loops.create(item("a", "beta/x", touches=["x", "y", "z"], waits_for=["ready"]))
    loops.plan()
    orders.give_order(loops.context, "alpha", "a", "hold", Requester(by="ann"))
    card = re.search(r'<li class="card.*?</li>', page(context, "/loops/alpha"), re.DOTALL)
    assert card
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", card[0]))
    assert "a held ← beta/x, the event ready files x, y and 1 more" in text


def test_an_event_of_a_person_can_be_withdrawn(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    loops.create(item("a", emits=["built"]))
    loops.plan()
    loops.passes("a")
    loops.plan()
    orders.emit(loops.context, "ready", tenant="", by="ada")
    assert re.findall(r'aria-label="(Withdraw [^"]+)"', page(context, "/coordination")) == [
        "Withdraw ready"
    ]


def test_control_characters_are_shown_as_their_codes(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    orders.emit(loops.context, "ready", tenant="a\x1b]0;x\x07\x9b", by="ada")
    text = page(context, "/coordination")
    assert "a⟨U+001B⟩]0;x⟨U+0007⟩⟨U+009B⟩" in text
    assert re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", text) is None


def test_only_orders_that_change_something_are_offered(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    loops.slots = 0
    loops.create(item("a", waits_for=["ready"]))
    loops.plan()
    path = "/loops/alpha/items/a"
    assert ">Do not wait</button>" in page(context, path)
    orders.give_order(loops.context, "alpha", "a", "first", Requester(by="ada"))
    orders.emit(loops.context, "ready", tenant="", by="ada")
    loops.plan()
    shown = page(context, path)
    for button, is_offered in (
        ("Do not wait", False), ("Go first", False), ("Hold", True), ("Usual rules", True),
    ):  # fmt: skip
        assert (f'aria-label="{button}: a"' in shown) == is_offered, button
