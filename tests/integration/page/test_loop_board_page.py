"""The board of a loop without a browser: what it shows, to whom, and at what size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, new_token
from support.ledger_scenario import Scenario, SettingsMaker
from support.loops import ADA, LoopScenario, document, item

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.loop import LoopChange
from mulligan.tasks.loops import change
from mulligan.tasks.ports.ledger import LoopWrite

HTML = {"Accept": "text/html"}
HOSTILE = '"><img src=x onerror=alert(1)>'


@pytest.fixture
def context(settings: SettingsMaker) -> Iterator[ConsoleContext]:
    opened = open_context(settings(allow_inline=True))
    yield opened
    opened.close()


@pytest.fixture
def loops(context: ConsoleContext) -> LoopScenario:
    return LoopScenario(Scenario(context.ledger, context.settings))


def page(client: TestClient, path: str) -> str:
    response = client.get(path, headers=HTML)
    assert response.status_code == 200, response.text
    return response.text


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def column(html: str, state: str) -> str:
    """Return the text of a column of the board."""
    found = re.search(rf'<section class="column {state}.*?</section>', html, re.DOTALL)
    assert found, f"the board has no column {state}"
    return text_of(found[0])


def node(html: str, name: str) -> str:
    found = re.search(rf'<a id="node-{name}".*?</a>', html, re.DOTALL)
    assert found, f"the graph has no node {name}"
    return found[0]


def heal(loops: LoopScenario, **fields: Any) -> None:
    found = HealRecord(**{"number": 1, "at": 1.0, "item": "one", "action": "rollback", **fields})
    written = LoopWrite(reading=loops.read(), change=LoopChange(heals=[found]), caller=ADA)
    loops.context.ledger.write_loop(written)


def test_each_item_is_in_the_column_of_its_state(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    later = (item("four", priority=2), item("five"))
    loops.create(item("one"), item("two", "one"), *later, concurrency=3)
    loops.plan()
    loops.fails("one")
    loops.claim("four")
    loops.plan()
    html = page(client_of(context), "/loops/alpha")
    assert "failed 1 one max attempts" in column(html, "failed")
    assert "← one" in column(html, "blocked")
    assert re.search(r"four p2 ● healthy , \d+ s", column(html, "running")), column(html, "running")
    assert "five ○ waits for a worker" in column(html, "running")
    assert column(html, "verifying").strip() == "◑ verifying 0"
    assert 'class="column skipped' not in html
    change.skip(loops.context, "alpha", "one", ADA, reason="not needed")
    assert "one not needed" in column(page(client_of(context), "/loops/alpha"), "skipped")


def test_work_that_is_verified_has_its_own_column(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    """Given an answer with a slow verifier, when a worker runs that, then the item is verifying."""
    loops.create(item("one"))
    loops.plan()
    job_id = loops.item("one").job_id
    loops.scenario.hand_over(job_id, verifications=[0])
    loops.scenario.claim_verification(job_id, 0)
    html = page(client_of(context), "/loops/alpha")
    assert "one ● verifying" in column(html, "verifying")
    assert "one" not in column(html, "running")
    assert "item-one" in page(client_of(context), "/loops/alpha?state=verifying")


def test_long_columns_name_the_rest(context: ConsoleContext, loops: LoopScenario) -> None:
    loops.create(item("CP-000"), *(item(f"CP-{n:03}", "CP-000") for n in range(1, 300)))
    html = page(client_of(context), "/loops/alpha")
    pending = column(html, "pending")
    assert "pending 300" in pending
    assert "CP-006 … CP-299 294 more" in pending
    assert html.count('id="card-CP-') == html.count('<li class="card pending') == 6
    assert html.count('class="node pending') == 300
    assert 'href="/loops/alpha?state=pending#items"' in html


def test_the_graph_says_why_and_shows_the_longest_chain(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    loops.create(item("a"), item("b", "a"), item("c", "b"), item("x"), item("y", "x"), item("z"))
    loops.plan()
    loops.fails("x")
    loops.plan()
    html = page(client_of(context), "/loops/alpha")
    assert 'href="/loops/alpha/items/c"' in node(html, "c")
    assert 'class="node pending critical"' in node(html, "c")
    assert 'class="node failed"' in node(html, "x")
    assert "<title>y: blocked, dependency x failed (max_attempts," in node(html, "y")
    assert 'class="node running"' in node(html, "z")
    assert "the longest chain that is left has 3" in text_of(html)
    assert html.count('class="critical" d="M') == 1 + 1, "one line of the graph, one of its key"


def test_too_many_items_are_summed_up(context: ConsoleContext, loops: LoopScenario) -> None:
    loops.create(item("a"), item("b"), name="beta")
    assert 'id="graph"' not in page(client_of(context), "/loops/beta"), "nothing depends"
    loops.create(*(item(f"i{n:04}", *([f"i{n - 10:04}"] if n > 9 else [])) for n in range(1000)))
    html = page(client_of(context), "/loops/alpha")
    shown = text_of(html)
    assert "1,000 items are too many to draw" in shown
    assert "in 100 levels" in html
    assert "i0000 → i0010 → i0020" in shown
    assert 'class="node' not in html
    assert len(html) < 150_000


def test_healings_are_listed_with_their_reason_and_outcome(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    loops.create(item("one"), auto_heal=True)
    client = client_of(context)
    assert "Nothing had to be healed yet." in page(client, "/loops/alpha")
    heal(
        loops,
        action="change_strategy",
        reason="KeyError: x ×3",
        outcome="passed",
        pattern="the same error each time",
    )
    loops.plan()
    loops.fails("one")
    item_page = page(client, "/loops/alpha/items/one")
    assert 'data-call="/api/loops/alpha/tests/one/heal"' in item_page
    assert "What may help: mulligan loops" in text_of(item_page)
    for path in ("/loops/alpha", "/loops/alpha/items/one"):
        assert "change strategy KeyError: x ×3 → ✓ passed" in text_of(page(client, path))
    blind = page(client_of(context, new_token(context, role="ops", texts=False)), "/loops/alpha")
    assert "the same error each time → ✓ passed" in text_of(blind)
    assert "KeyError" not in blind


def test_texts_of_others_cannot_become_markup(context: ConsoleContext, loops: LoopScenario) -> None:
    loops.create(item("one", title=HOSTILE), item("two", "one"))
    heal(loops, reason=HOSTILE + "\u202e", parameter=HOSTILE, result=HOSTILE, by=HOSTILE)
    change.skip(loops.context, "alpha", "one", ADA, reason=HOSTILE)
    client = client_of(context)
    for path in ("/loops", "/loops/alpha", "/loops/alpha/items/one"):
        html = page(client, path)
        assert "<img" not in html
        assert "\u202e" not in html
        assert " style=" not in html, "the content security policy refuses inline styles"
        assert "<script>" not in html


def test_the_remedy_is_a_button_for_those_who_may(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    change.create_loop(loops.context, document(item("one")), tenant="acme", by="ada")
    ops = client_of(context, new_token(context, role="ops"))
    acme = client_of(context, new_token(context, role="ops", tenant="acme"))
    for client in (ops, acme):
        for path in ("/loops", "/loops/alpha"):
            assert 'data-call="/api/loops/alpha/start"' in page(client, path)
    loops.move("start")
    loops.slots = 0
    context.ledger.set_loop_slots(0)
    loops.plan()
    assert "0 of 0 slots" in text_of(page(ops, "/loops"))
    assert 'data-call="/api/loop-slots"' in page(ops, "/loops")
    assert 'data-call="/api/loop-slots"' not in page(acme, "/loops")


def test_only_producers_are_offered_to_create_and_add(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    loops.create(item("one"))
    ops = client_of(context, new_token(context, role="ops"))
    admin = client_of(context, new_token(context, role="admin"))
    for path, button in (("/loops", 'id="create"'), ("/loops/alpha", 'id="add-item"')):
        assert button in page(admin, path)
        assert button not in page(ops, path)
    assert ops.post("/loops/document", json={"text": "a: 1"}).status_code == 403


def test_a_document_of_a_form_is_read_or_refused_with_its_problem(context: ConsoleContext) -> None:
    client = client_of(context)
    for text in ("a: [1, two]", '{"a": [1, "two"]}'):
        assert client.post("/loops/document", json={"text": text}).json() == {"a": [1, "two"]}
    for text, problem in (
        ("b: 1\na: [1", "line:2: broken YAML"),
        ("- 1", "must be a JSON object"),
        ("", "is empty"),
        ("a: .nan", "nan cannot be kept as JSON"),
        ("x" * 60_001, "60000"),
    ):
        answer = client.post("/loops/document", json={"text": text})
        assert answer.status_code == 422
        assert problem in answer.text


def test_the_spent_share_is_of_the_limit_that_is_nearest(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    budget = {"loop": {"tokens": 1000}, "day": {"tokens": 40}, "item": {"tokens": 20}}
    loops.create(item("one"), item("two"), budget=budget)
    loops.plan()
    loops.passes("one", tokens=20)
    client = client_of(context)
    assert "20 / 40 tokens today" in text_of(page(client, "/loops"))
    board = page(client, "/loops/alpha")
    assert "50% used, " in board
    assert 'class="reserved"' not in board
    loops.claim("two")
    assert "reserved now 20" in text_of(page(client, "/loops/alpha"))
    assert 'class="reserved"' in page(client, "/loops/alpha")
