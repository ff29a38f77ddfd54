"""The report of a loop over HTTP: its formats, who may read it, and that it runs nothing."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, error_of, get_json, new_token, post_json
from support.ledger_scenario import SettingsMaker
from support.loops import item, work_on_loop

from mulligan.console.http.context import ConsoleContext, open_context

PATH = "/api/loops/alpha/report"


def answers(*texts: str) -> dict[str, Any]:
    found = [{"text": text, "usage": {"total_tokens": 10}} for text in texts]
    return {"kind": "scripted", "answers": found}


SECRETS = {"id": "text.match", "contains": "SECRETS"}
ITEMS = [
    item("a"),
    item("b", "a", runner=answers("SECRET", "{}")),
    item("c", "b", title="<b>bold</b>", runner=answers(*["SECRET"] * 3), verifiers=[SECRETS]),
    item("d", "c"),
]


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True))


def run_loop(context: ConsoleContext, client: TestClient, **fields: Any) -> None:
    budget = {"loop": {"tokens": 100_000}}
    loop = {"name": "alpha", "runner": answers("{}"), "budget": budget}
    post_json(client, "/api/loops", 201, loop=loop, items=ITEMS, start=True, **fields)
    work_on_loop(context)


def test_a_report_says_what_was_done_and_what_is_left(context: ConsoleContext) -> None:
    """Given a loop in which one item was repaired and one failed, the report has both."""
    client = client_of(context)
    run_loop(context, client)
    found = get_json(client, PATH)
    assert (found["id"], found["status"], found["total"]) == ("alpha", "blocked", 4)
    assert found["counts"] == {"passed": 2, "failed": 1, "blocked": 1}
    assert [found["burn_down"][0]["left"], found["burn_down"][-1]["left"]] == [4, 2]
    assert found["estimate"]["text"] == "no item is left to run: 2 items are blocked or failed"
    tokens = next(each for each in found["cost"] if each["resource"] == "tokens")
    assert (tokens["scope"], tokens["limit"]) == ("loop", 100_000)
    assert tokens["per_passed_item"] == tokens["used"] / 2
    (gave_up,) = found["gave_up"]
    assert (gave_up["state"], gave_up["examples"]) == ("failed", ["c"])
    failures = {tuple(each["examples"]): each for each in found["failures"]}
    assert (failures["b",]["attempts"], failures["b",]["passed"]) == (1, 1)
    assert failures["c",]["passed"] == 0
    assert (found["runs_read"], found["runs"]) == (3, 3)
    assert [(each["id"], each["cause"]) for each in found["left"]] == [
        ("c", "failure"),
        ("d", "dependency"),
    ]
    assert found["left"][0]["command"] == "mulligan loops reset alpha c"
    assert found["critical_path"] == ["c", "d"]
    assert [(each["item"], each["action"]) for each in found["heals"]] == [("c", "escalate")]
    assert found["healed"] == [{"action": "escalate", "outcomes": {"pending": 1}}]


def test_the_page_runs_nothing_and_needs_no_other_file(context: ConsoleContext) -> None:
    client = client_of(context)
    run_loop(context, client)
    page = client.get(PATH, params={"format": "html"})
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    assert "<b>bold" not in page.text
    assert "&lt;b&gt;bold" in page.text
    assert "src=" not in page.text
    assert "<link" not in page.text
    assert 'aria-label="Items left: 4 at' in page.text


def test_markdown_has_a_table_of_what_is_left(context: ConsoleContext) -> None:
    client = client_of(context)
    run_loop(context, client)
    answer = client.get(PATH, params={"format": "md"})
    assert answer.headers["content-type"].startswith("text/markdown")
    assert "# Loop alpha" in answer.text
    assert "| d |  | blocked for" in answer.text
    assert r"\<b\>bold" in answer.text


def test_lists_have_at_most_as_many_rows_as_asked_for(context: ConsoleContext) -> None:
    client = client_of(context)
    run_loop(context, client)
    found = get_json(client, PATH, limit=1)
    assert (len(found["left"]), found["left_total"]) == (1, 2)
    assert (len(found["failures"]), found["critical_path_length"]) == (1, 2)
    text = client.get(PATH, params={"limit": 1, "format": "md"}).text
    assert "1 more item left, not listed." in text


def test_without_texts_no_failure_is_quoted(context: ConsoleContext) -> None:
    admin = client_of(context, new_token(context, role="admin"))
    ops = client_of(context, new_token(context, role="ops", texts=False))
    run_loop(context, admin)
    assert "SECRET" in admin.get(PATH).text
    for form in ("json", "md", "html"):
        answer = ops.get(PATH, params={"format": form})
        assert (answer.status_code, "SECRET" in answer.text) == (200, False), form
    assert {each["message"] for each in get_json(ops, PATH)["failures"]} == {None}


def test_only_those_who_see_the_loop_get_its_report(context: ConsoleContext) -> None:
    ours, theirs = (
        client_of(context, new_token(context, role="admin", tenant=name))
        for name in ("acme", "zeta")
    )
    run_loop(context, ours)
    assert ours.get(PATH).status_code == 200
    assert error_of(theirs.get(PATH)) == (404, "not_found")
    other = client_of(context, new_token(context, role="producer", name="bob", tenant="acme"))
    assert error_of(other.get(PATH)) == (404, "not_found")
    assert client_of(context).get(PATH).status_code == 401


def test_an_unknown_format_and_too_many_rows_are_refused(context: ConsoleContext) -> None:
    client = client_of(context)
    for query in ("format=pdf", "limit=0", "limit=1001"):
        assert client.get(f"{PATH}?{query}").status_code == 422, query
    assert error_of(client.get(PATH)) == (404, "not_found")
