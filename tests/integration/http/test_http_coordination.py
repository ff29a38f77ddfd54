"""Coordination over HTTP: what is shown to whom, orders, overruling, and events."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.console_server import client_of, error_of, get_json, new_token, post_json
from support.ledger_scenario import Scenario, SettingsMaker
from support.loops import ADA, LoopScenario, document, item

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.http.models.job_models import REDACTED
from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.coordination.order import OrderWord
from mulligan.tasks.coordination import orders
from mulligan.tasks.coordination.deadlocks import run_coordination
from mulligan.tasks.loops import change


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    return open_context(settings(allow_inline=True))


@pytest.fixture
def loops(context: ConsoleContext) -> LoopScenario:
    return LoopScenario(Scenario(context.ledger, context.settings))


@pytest.fixture
def client(context: ConsoleContext) -> TestClient:
    return client_of(context)


def caller(context: ConsoleContext, role: str = "ops", **fields: Any) -> TestClient:
    return client_of(context, new_token(context, role=role, **fields))


def create(loops: LoopScenario, name: str, *items: dict[str, Any], **who: str) -> None:
    change.create_loop(loops.context, document(*items, name=name), **{"by": "ada", **who})
    loops.move("start", name)
    loops.plan(name)


def two_with_one_file(loops: LoopScenario) -> None:
    loops.create(item("a", touches=["x.py"]), item("b", touches=["x.py"]))
    loops.plan()


def state(client: TestClient, item: str, loop: str = "alpha") -> str:
    return str(get_json(client, f"/api/loops/{loop}/tests/{item}")["state"])


def decision(client: TestClient, kind: str) -> dict[str, Any]:
    """Return the newest decision of a kind."""
    found = get_json(client, "/api/coordination")["decisions"]
    return next(each for each in found if each["kind"] == kind)


def overrule(client: TestClient, number: int, **headers: str) -> Any:
    return client.post(f"/api/coordination/decisions/{number}/overrule", headers=headers)


# -- what is shown ---------------------------------------------------------------------------------


def test_everything_that_loops_have_to_do_with_each_other_is_shown(
    client: TestClient, loops: LoopScenario
) -> None:
    two_with_one_file(loops)
    create(loops, "beta", item("c", "alpha/b", "gone/x", waits_for=["ready"]))
    create(loops, "gamma", item("d", emits=["ready"]))
    orders.emit(loops.context, "other", tenant="", by="eve")
    found = get_json(client, "/api/coordination")
    (lock,) = found["locks"]
    assert (lock["loop"], lock["test"], lock["files"], lock["expires"]) == (
        "alpha", "a", ["x.py"], None,
    )  # fmt: skip
    assert "token" not in lock
    assert found["denied"] == [
        {"loop": "alpha", "test": "b", "files": "x.py", "holder": "alpha/a", "reserved": False}
    ]
    (waiting,) = found["waiting"]
    assert (waiting["loop"], waiting["test"], waiting["held"]) == ("beta", "c", False)
    assert waiting["waits"] == [
        {"what": "alpha/b", "state": "ready", "by": ["alpha/b"], "more": 0},
        {"what": "gone/x", "state": "", "by": [], "more": 0},
        {"what": "event:ready", "state": "", "by": ["gamma/d"], "more": 0},
    ]
    assert [(each["event"], each["by"]) for each in found["events"]] == [("other", "eve")]
    assert found["totals"] == {"locks": 1, "denied": 1, "waiting": 1, "events": 1, "orders": 0}
    kinds = [(each["kind"], each["test"]) for each in found["decisions"]]
    assert kinds == [("slot", "d"), ("denied", "b"), ("slot", "a")]


def test_an_item_and_its_loop_say_what_they_wait_for(
    client: TestClient, loops: LoopScenario
) -> None:
    two_with_one_file(loops)
    create(loops, "beta", item("c", "alpha/b", waits_for=["ready"], emits=["done"]))
    assert get_json(client, "/api/loops/beta")["waits_for"] == {
        "alpha/b": "ready",
        "event:ready": "",
    }
    c, b = (get_json(client, f"/api/loops/{name}") for name in ("beta/tests/c", "alpha/tests/b"))
    assert (c["waits_for"], c["emits"], c["orders"]) == (["ready"], ["done"], [])
    assert (b["files_held_by"], b["files_seen"]) == ("alpha/a", [])


def test_deadlocks_are_shown_until_they_are_broken(client: TestClient, loops: LoopScenario) -> None:
    create(loops, "alpha", item("x", "beta/x"))
    create(loops, "beta", item("x", "alpha/x"))
    (found,) = get_json(client, "/api/coordination")["deadlocks"]
    assert found == {
        "cycle": ["alpha/x", "beta/x"],
        "test": "beta/x",
        "wait": "alpha/x",
        "rank": "the youngest",
    }
    run_coordination(loops.context)
    assert get_json(client, "/api/coordination")["deadlocks"] == []
    assert decision(client, "deadlock")["overruling"]["order"] == "hold"
    assert get_json(client, "/api/loops/beta/tests/x")["broken_waits"] == ["alpha/x"]


def test_one_loop_is_shown_with_what_was_decided_against_it(
    client: TestClient, loops: LoopScenario
) -> None:
    loops.slots = 1
    loops.create(item("a"), name="alpha", priority=1)
    loops.create(item("b"), name="beta", priority=9)
    loops.create(item("c", waits_for=["never"]), name="gamma")
    for name in ("gamma", "beta", "alpha"):
        loops.plan(name)
    loops.passes("b", name="beta")
    loops.plan("alpha")
    found = get_json(client, "/api/coordination", loop="gamma")
    assert [each["loop"] for each in found["waiting"]] == ["gamma"]
    assert found["decisions"] == []
    own = get_json(client, "/api/coordination", loop="beta", limit=1)
    assert [each["loop"] for each in own["decisions"]] == ["beta"]
    assert error_of(client.get("/api/coordination?loop=nope")) == (404, "not_found")


def test_a_limit_of_rows_is_kept(client: TestClient, loops: LoopScenario) -> None:
    loops.create(*(item(f"i{n}", touches=[f"{n}.py"]) for n in range(4)))
    loops.plan()
    found = get_json(client, "/api/coordination", limit=2)
    assert (len(found["locks"]), len(found["decisions"]), found["totals"]["locks"]) == (2, 2, 4)


def test_changed_files_need_the_right_to_read_texts(
    context: ConsoleContext, client: TestClient, loops: LoopScenario
) -> None:
    loops.create(item("a", touches=["x.py"]), item("b", touches=["secret.*"]))
    loops.plan()
    loops.passes("b")
    record, space = loops.item("a"), loops.loop().space
    files = ("x.py", "/secret.py")
    lock = FileLock(job_id=record.job_id, loop="alpha", item="a", space=space, files=files)
    text = "it changed secret.py, which it did not declare: it declares that from now on"
    seen = ["/secret.py"]
    assert context.ledger.declare_files(lock, seen=seen, new=seen, text=text)
    change.reset(loops.context, "alpha", "b", ADA)
    loops.plan()
    shown = get_json(client, "/api/coordination")
    assert [each["files"] for each in shown["locks"]] == [["x.py", "secret.py"]]
    assert get_json(client, "/api/loops/alpha/tests/a")["files_seen"] == ["secret.py"]
    assert decision(client, "denied")["text"] == "it waits for secret.*: alpha/a changes it"
    blind = caller(context, texts=False)
    pages = ("/api/coordination", "/coordination", "/loops/alpha", "/loops/alpha/items/a")
    for path in pages:
        answer = blind.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 200
        assert "secret.py" not in answer.text, path
    assert get_json(blind, "/api/loops/alpha/tests/a")["files_seen"] == [REDACTED]
    assert decision(blind, "undeclared")["text"].startswith("it changed 1 file that it did not")
    assert decision(blind, "denied")["text"] == "it waits for secret.*: alpha/a changes it"


# -- tenants and producers -------------------------------------------------------------------------


def shown_to(client: TestClient, *names: str) -> str:
    """Return all that a caller is shown about coordination, and about some loops."""
    paths = ["/api/coordination", "/coordination"]
    for each in names:
        paths += [f"/api/loops/{each}", f"/api/loops/{each}/tests/x", f"/loops/{each}"]
        paths += [f"/loops/{each}/items/x", f"/coordination?loop={each}"]
    answers = [client.get(path, headers={"Accept": "text/html"}) for path in paths]
    assert {each.status_code for each in answers} == {200}
    return "\n".join(each.text for each in answers)


def test_names_of_other_tenants_are_hidden(context: ConsoleContext, loops: LoopScenario) -> None:
    loops.slots = 0
    create(loops, "alpha", item("x", emits=["same"]), item("y"), tenant="one")
    create(loops, "foreign", item("x", waits_for=["same"]), item("y"), tenant="two")
    loops.slots = 1
    loops.plan("foreign")
    orders.emit(loops.context, "same", tenant="two", by="foreign/x")
    one, two = caller(context, tenant="one"), caller(context, tenant="two")
    assert "another loop" in shown_to(one, "alpha")
    assert "foreign" not in shown_to(one, "alpha")
    assert "alpha" not in shown_to(two, "foreign")
    assert get_json(one, "/api/coordination")["events"] == []
    for path in ("/api/coordination?loop=foreign", "/coordination?loop=foreign"):
        assert one.get(path).status_code == 404
    everything = shown_to(caller(context), "alpha")
    assert "foreign" in everything


def test_names_of_other_producers_are_hidden(context: ConsoleContext, loops: LoopScenario) -> None:
    """Given two producers of a tenant whose items share a file and wait for each other's events."""
    tokens = {name: caller(context, "producer", name=name, tenant="one") for name in ("ann", "bob")}
    loops.slots = 2
    for name, producer, own, other in (("mine", "ann", "e", "d"), ("theirs", "bob", "d", "e")):
        asked = document(
            item("x", emits=[own], waits_for=[other]),
            item("y", touches=["f"]),
            item("z", emits=[f"{own}-z"]),
            name=name,
        ).model_dump(mode="json", exclude_defaults=True)
        post_json(tokens[producer], "/api/loops", 201, **asked, start=True)
    for name in ("theirs", "mine", "theirs"):
        loops.plan(name)
    text = shown_to(tokens["ann"], "mine")
    assert "theirs" not in text
    assert get_json(tokens["ann"], "/api/coordination")["deadlocks"] == []
    assert run_coordination(loops.context) == 1
    loops.passes("z", name="theirs")
    for name in ("theirs", "mine"):
        loops.plan(name)
    assert "theirs" not in shown_to(tokens["ann"], "mine")
    found = get_json(tokens["ann"], "/api/coordination")
    assert {each["by"] for each in found["events"]} == {"another loop"}
    assert found["denied"] == [
        {"loop": "mine", "test": "y", "files": "f", "holder": "another loop", "reserved": False}
    ]
    assert "mine" not in shown_to(tokens["bob"], "theirs")
    assert "another loop" in decision(tokens["bob"], "deadlock")["text"]


def test_waits_of_two_tenants_are_no_deadlock(
    client: TestClient, context: ConsoleContext, loops: LoopScenario
) -> None:
    create(loops, "alpha", item("x", "beta/x"), tenant="one")
    create(loops, "beta", item("x", "alpha/x"), tenant="two")
    assert get_json(client, "/api/coordination")["deadlocks"] == []
    assert run_coordination(loops.context) == 0


def test_a_tenant_overrules_only_decisions_about_its_own_loops(
    context: ConsoleContext, loops: LoopScenario
) -> None:
    loops.slots = 0
    create(loops, "alpha", item("a"), tenant="one")
    create(loops, "beta", item("b"), tenant="two")
    loops.slots = 1
    loops.plan("beta")
    mine, others = caller(context, tenant="one"), caller(context, tenant="two")
    (slot,) = get_json(mine, "/api/coordination")["decisions"]
    assert "another loop" in slot["text"]
    assert slot["overruling"] is None
    refused = overrule(mine, slot["number"])
    assert error_of(refused) == (409, "conflict")
    assert "beta" not in refused.text
    assert error_of(overrule(others, slot["number"])) == (404, "not_found")
    path = "/api/loops/alpha/tests/a/order"
    assert error_of(others.put(path, json={"order": "hold"})) == (404, "not_found")
    assert get_json(caller(context), "/api/coordination")["decisions"][0]["overruling"] == {
        "text": "beta/b goes first", "loop": "beta", "test": "b", "order": "first", "ends": None,
    }  # fmt: skip


def test_producers_read_and_emit_but_do_not_overrule(
    context: ConsoleContext, client: TestClient, loops: LoopScenario
) -> None:
    two_with_one_file(loops)
    number = decision(client, "denied")["number"]
    producer, client = caller(context, "producer", tenant="one"), caller(context)
    assert error_of(overrule(producer, number)) == (403, "forbidden")
    refused = producer.put("/api/loops/alpha/tests/b/order", json={"order": "first"})
    assert error_of(refused) == (403, "forbidden")
    assert get_json(producer, "/api/coordination")["decisions"] == []
    assert post_json(producer, "/api/loop-events", event="ready")["emitted"]
    refused = producer.post("/api/loop-events", json={"event": "x", "tenant": "two"})
    assert error_of(refused) == (403, "other_tenant")
    (event,) = get_json(client, "/api/coordination")["events"]
    assert (event["event"], event["tenant"]) == ("ready", "one")
    assert get_json(caller(context, tenant="two"), "/api/coordination")["events"] == []


def test_a_producer_without_a_tenant_gives_events_off_only_where_it_has_a_loop(
    context: ConsoleContext,
) -> None:
    producer = caller(context, "producer", name="ann")
    assert post_json(producer, "/api/loop-events", event="ready")["emitted"]
    refused = producer.post("/api/loop-events", json={"event": "ready", "tenant": "one"})
    assert error_of(refused) == (403, "other_tenant")
    asked = document(item("x")).model_dump(mode="json", exclude_defaults=True)
    post_json(producer, "/api/loops", 201, **asked, tenant="one")
    assert post_json(producer, "/api/loop-events", event="ready", tenant="one")["emitted"]


def test_few_of_many_that_give_an_event_off_are_named(
    client: TestClient, loops: LoopScenario
) -> None:
    create(loops, "alpha", *(item(f"i{n:02}", emits=["ready"]) for n in range(12)))
    create(loops, "beta", item("x", waits_for=["ready"]))
    (waiting,) = get_json(client, "/api/coordination")["waiting"]
    (wait,) = waiting["waits"]
    assert (wait["by"], wait["more"]) == ([f"alpha/i{n:02}" for n in range(10)], 2)
    for n in range(12):
        change.skip(loops.context, "alpha", f"i{n:02}", ADA)
    loops.plan()
    (event,) = get_json(client, "/api/coordination", loop="beta")["events"]
    assert (event["by"].count("alpha/"), event["more"]) == (10, 2)
    assert "and 2 more" in client.get("/coordination", headers={"Accept": "text/html"}).text


# -- overruling, orders and events -----------------------------------------------------------------


def test_a_denial_is_overruled_once_for_each_key(client: TestClient, loops: LoopScenario) -> None:
    two_with_one_file(loops)
    found = decision(client, "denied")
    assert found["overruling"]["text"] == "alpha/b need not wait for the files"
    key = {"Idempotency-Key": "k1"}
    first, again = (overrule(client, found["number"], **key) for _ in "12")
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    assert first.json() == {
        "number": found["number"], "overruled": True, "done": found["overruling"],
    }  # fmt: skip
    assert get_json(client, "/api/loops/alpha/tests/b")["orders"] == ["ignore_locks"]
    assert error_of(overrule(client, found["number"])) == (409, "conflict")
    loops.plan()
    assert state(client, "b") == "running"
    done = decision(client, "denied")
    assert (done["overruled_by"], done["overruling"]) == ("loopback", None)


def test_what_has_begun_is_not_offered_to_be_overruled(
    client: TestClient, loops: LoopScenario
) -> None:
    two_with_one_file(loops)
    loops.passes("a")
    loops.plan()
    loops.passes("b")
    found = decision(client, "denied")
    assert found["overruling"] is None
    assert error_of(overrule(client, found["number"])) == (409, "conflict")


def test_an_order_is_given_and_ended(client: TestClient, loops: LoopScenario) -> None:
    loops.create(item("a"), item("b"))
    path = "/api/loops/alpha/tests/a/order"
    key = {"Idempotency-Key": "k1"}
    for _ in "12":
        answer = client.put(path, json={"order": "hold"}, headers=key)
        assert (answer.status_code, answer.json()["orders"]) == (200, ["hold"])
    assert get_json(client, "/api/loops/alpha")["orders"] == {"a": ["hold"]}
    assert error_of(client.put(path, json={"order": None}, headers=key)) == (409, "key_in_use")
    assert loops.admitted() == ["b"]
    assert client.put(path, json={"order": None}).json()["orders"] == []
    assert loops.admitted() == ["a"]


def test_orders_are_listed_as_long_as_they_are_in_force(
    client: TestClient, loops: LoopScenario
) -> None:
    loops.create(item("a"), item("b"))
    orders.give_order(loops.context, "alpha", "a", "hold", ADA)
    for n in range(5):
        orders.give_order(loops.context, "alpha", "b", "hold" if n % 2 else None, ADA)
        orders.give_order(loops.context, "alpha", "b", "first", ADA)
    found = get_json(client, "/api/coordination", limit=2)
    rows = [(each["test"], each["order"], each["by"]) for each in found["orders"]]
    assert rows == [("a", "hold", "ada"), ("b", "first", "ada")]
    assert found["totals"]["orders"] == 2
    assert "End all orders for alpha/a" in client.get("/coordination").text
    orders.give_order(loops.context, "alpha", "a", None, ADA)
    assert [each["test"] for each in get_json(client, "/api/coordination")["orders"]] == ["b"]


def test_only_what_would_be_accepted_is_offered(client: TestClient, loops: LoopScenario) -> None:
    two_with_one_file(loops)
    loops.passes("a")
    loops.plan()
    assert state(client, "b") == "running"
    loops.create(item("e", waits_for=["go"]), item("f", waits_for=["go"]), name="beta")
    words: tuple[tuple[str, OrderWord | None], ...] = (
        ("e", "hold"), ("e", "first"), ("f", "hold"), ("f", None),
    )  # fmt: skip
    for name, word in words:
        orders.give_order(loops.context, "beta", name, word, ADA)
    found = get_json(client, "/api/coordination")["decisions"]
    offered = [each for each in found if each["overruling"] is not None]
    assert [(each["test"], each["text"]) for each in offered] == [
        ("e", "it gets the next free slot: by ada")
    ]
    assert overrule(client, offered[0]["number"]).status_code == 200
    assert error_of(overrule(client, decision(client, "denied")["number"])) == (409, "conflict")


def test_an_event_lets_items_go_on(client: TestClient, loops: LoopScenario) -> None:
    loops.create(item("a", waits_for=["ready"]))
    loops.plan()
    assert get_json(client, "/api/loops/alpha")["status"] == "waiting"
    assert post_json(client, "/api/loop-events", event="ready") == {
        "event": "ready",
        "emitted": True,
        "withdrawn": False,
        "waiting": 1,
    }
    assert not post_json(client, "/api/loop-events", event="ready")["emitted"]
    assert post_json(client, "/api/loop-events", event="ready", withdraw=True)["withdrawn"]
    assert loops.admitted() == []
    assert post_json(client, "/api/loop-events", event="ready")["waiting"] == 1
    assert loops.admitted() == ["a"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("put", "/api/loops/alpha/tests/a/order", {"order": "later"}, 422),
        ("put", "/api/loops/alpha/tests/a/order", {}, 422),
        ("put", "/api/loops/alpha/tests/a/order", {"order": "hold", "why": "x"}, 422),
        ("put", "/api/loops/alpha/tests/nope/order", {"order": "hold"}, 404),
        ("put", "/api/loops/nope/tests/a/order", {"order": "hold"}, 404),
        ("put", "/api/loops/alpha/tests/done/order", {"order": "hold"}, 409),
        ("post", "/api/coordination/decisions/99/overrule", None, 404),
        ("post", "/api/coordination/decisions/1e9/overrule", None, 422),
        ("post", "/api/loop-events", {"event": "two words"}, 422),
        ("post", "/api/loop-events", {"event": "x" * 81}, 422),
        ("post", "/api/loop-events", {"event": "a/b"}, 422),
        ("post", "/api/loop-events", {}, 422),
        ("post", "/api/loop-events", {"event": "x", "tenant": "\u001b[31m"}, 422),
        ("get", "/api/coordination?limit=0", None, 422),
        ("get", "/api/coordination?limit=1001", None, 422),
    ],
)
def test_bad_requests_are_refused(
    client: TestClient,
    loops: LoopScenario,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    status: int,
) -> None:
    loops.create(item("a"), item("done"))
    change.skip(loops.context, "alpha", "done", ADA, reason="")
    answer = client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
