"""The pages of loops without a browser: content, access and cost."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, new_token
from support.ledger_scenario import Scenario, SettingsMaker
from support.loops import LoopScenario, document, item

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.loops import change

HTML = {"Accept": "text/html"}


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
    return re.sub(r"\s+", " ", response.text)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_the_list_says_how_far_each_loop_is(context: ConsoleContext, loops: LoopScenario) -> None:
    client = client_of(context)
    assert "mulligan loops create loop.yaml" in page(client, "/loops")
    loops.create(item("one"), item("two", "one"))
    loops.plan()
    loops.passes("one")
    loops.plan()
    loops.create(item("x"), name="beta", priority=2)
    shown = text_of(page(client, "/loops"))
    assert re.search(r"alpha ◔ running p5, .* 1 of 2 passed 1 of 2 ● healthy", shown), shown
    assert "two waits for a worker" in shown
    loops.claim("two")
    shown = text_of(page(client, "/loops"))
    assert re.search(r"1 of 2 ● healthy 10 tokens two on worker", shown), shown
    assert re.search(r"beta ◔ running p2", shown), shown
    stopped = page(client, "/loops?state=stopped")
    assert "No loop is stopped." in stopped


def test_a_loop_shows_its_items_and_what_may_be_done(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    loops.create(item("one"), item("two", "one"), item("three"), budget={"loop": {"tokens": 1000}})
    loops.plan()
    loops.fails("one")
    loops.plan()
    client = client_of(context)
    html = page(client, "/loops/alpha")
    shown = text_of(html)
    assert "✗ failed max attempts" in shown
    assert "blocked dependency one failed (max_attempts," in shown
    assert "tokens of the loop" in shown
    assert f'href="/jobs/{loops.item("one").job_id}"' in html
    assert 'data-call="/api/loops/alpha/pause"' in html
    assert 'data-call="/api/loops/alpha/start"' not in html
    assert 'data-call="/api/loops/alpha/tests/one/reset"' in html
    assert 'data-call="/api/loops/alpha/tests/two/reset"' not in html
    assert 'data-url="/api/loops/alpha/tests/two/skip"' in html
    assert "one got a slot" in shown
    only = page(client, "/loops/alpha?state=failed")
    assert "item-one" in only
    assert "item-three" not in only
    assert client.get("/loops/beta", headers=HTML).status_code == 404


def test_a_thousand_items_come_in_pages_at_the_cost_of_one(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    loops.create(*(item(f"i{n:04}") for n in range(1000)))
    loops.create(item("x"), name="beta")
    client = client_of(context)

    def cost(path: str) -> int:
        before = context.ledger.round_trips
        page(client, path)
        return context.ledger.round_trips - before

    html = page(client, "/loops/alpha")
    assert "1 to 100 of 1,000" in text_of(html)
    assert 'href="/loops/alpha?start=100#items"' in html
    last = page(client, "/loops/alpha?start=900")
    assert "901 to 1,000 of 1,000" in text_of(last)
    assert 'rel="next"' not in last
    page(client, "/loops/beta")
    assert cost("/loops/alpha") <= cost("/loops/beta") + 2


def test_a_tenant_sees_only_its_own_loops(context: ConsoleContext, loops: LoopScenario) -> None:
    change.create_loop(loops.context, document(item("one")), tenant="acme", by="ada")
    acme = client_of(context, new_token(context, role="ops", tenant="acme"))
    other = client_of(context, new_token(context, role="ops", tenant="globex"))
    assert "alpha" in page(acme, "/loops")
    assert "was not started" in page(acme, "/loops/alpha")
    assert "alpha" not in page(other, "/loops")
    assert other.get("/loops/alpha", headers=HTML).status_code == 404
