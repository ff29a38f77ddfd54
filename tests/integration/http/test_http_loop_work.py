"""The work of loops in repositories over HTTP: checkpoints, changes, rollbacks and sessions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.coding_console import console_of
from support.coding_loop import LOOP, CodingLoop, coding_document, item, push
from support.console_server import (
    RunningConsole,
    client_of,
    error_of,
    get_json,
    new_token,
    post_json,
)
from support.git_repositories import UserRepository
from support.jobs import make_job
from support.waiting import wait_for

from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.models.job_models import REDACTED
from mulligan.console.http.models.loop_models import repo_of
from mulligan.console.http.routes import loop_work_routes
from mulligan.console.reports.job_document import shown_job
from mulligan.policies.loops.spec import LoopConfig
from mulligan.tasks.loops import change
from mulligan.tasks.ports.ledger import Entry
from mulligan.testing import real_models

pytestmark = pytest.mark.real_models("command")

API = f"/api/loops/{LOOP}"
CODE = "write(f'{item}.txt', 'done\\n')\nprint(f'made {item}')"
ITEMS = [item("A"), item("B", "A"), item("C")]


def run_loop(folder: Path) -> CodingLoop:
    fleet = CodingLoop(folder, UserRepository.make(folder / "user").path)
    with real_models("command"):
        assert set(fleet.run_all(*ITEMS, code=CODE).values()) == {"passed"}
    return fleet


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> CodingLoop:
    """A loop whose items have passed, for tests that change nothing."""
    return run_loop(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> ConsoleContext:
    """The same, and a console with tokens."""
    return console_of(run_loop(tmp_path_factory.mktemp("guarded")))


@pytest.fixture
def client(finished: CodingLoop) -> TestClient:
    return client_of(console_of(finished))


def rows(client: TestClient, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get_json(client, f"{API}/checkpoints", **params)["checkpoints"]
    return found


def session_path(fleet: CodingLoop, name: str = "A", attempt: int = 1) -> str:
    job_id = fleet.snapshot.record(name).job_id
    return f"{API}/tests/{name}/transcripts/{job_id}/{attempt}"


# -- reading ---------------------------------------------------------------------------------------


def test_a_loop_shows_its_repository(client: TestClient, finished: CodingLoop) -> None:
    found = get_json(client, API)
    assert (found["repo"], found["branch"]) == (str(finished.repository), f"mulligan/{LOOP}")
    assert (found["rollback"], found["delivered"], found["delivery_problem"]) == (None, None, None)


def test_credentials_are_not_shown() -> None:
    for repo, shown in (
        ("https://ada:secret@git.example/shop.git", "https://git.example/shop.git"),
        ("ssh://git@git.example/shop.git", "ssh://git@git.example/shop.git"),
        ("http://ada:secret@[no", "http://[no"),
        ("shop", "shop"),
    ):
        assert repo_of(LoopConfig(name="a", repo=repo)) == shown
        job = make_job(workspace={"git": repo})
        assert job.workspace is not None
        assert shown_job(job).model_dump()["workspace"]["git"] == shown


def test_checkpoints_are_listed_newest_first(client: TestClient) -> None:
    found = rows(client)
    assert [each["kind"] for each in found] == ["merge"] * 3 + ["other"]
    assert {each["item"] for each in found} == {"A", "B", "C", None}
    assert [each["parent"] for each in found[:-1]] == [each["commit"] for each in found[1:]]
    assert found[0]["subject"].startswith(f"{found[0]['item']}: ")
    assert found[0]["attempt"] == 1
    assert not any(each["undone"] for each in found)


def test_checkpoints_come_in_pages(client: TestClient) -> None:
    every = rows(client)
    first = get_json(client, f"{API}/checkpoints", limit=3)
    assert (first["checkpoints"], first["total"]) == (every[:3], 4)
    rest = get_json(client, f"{API}/checkpoints", limit=3, cursor=first["cursor"])
    assert (rest["checkpoints"], rest["cursor"]) == (every[3:], None)
    assert client.get(f"{API}/checkpoints", params={"cursor": "abcd"}).status_code == 422


def test_an_item_and_its_checkpoint_have_the_same_changes(client: TestClient) -> None:
    found = get_json(client, f"{API}/tests/B/diff")
    assert found["merged"] is True
    assert found["files"] == [{"path": "B.txt", "kind": "added", "added": 1, "removed": 0}]
    assert "+done" in found["diff"]
    (merge,) = [each for each in rows(client) if each["item"] == "B"]
    assert found["new"] == merge["commit"]
    of_checkpoint = get_json(client, f"{API}/checkpoints/{merge['commit'][:12]}/diff")
    assert of_checkpoint == found


@pytest.mark.parametrize(
    "path",
    ["/checkpoints/ffffffff/diff", "/tests/X/diff", "/tests/X/transcripts/j/1"],
)
def test_what_does_not_exist_is_not_found(client: TestClient, path: str) -> None:
    assert error_of(client.get(API + path)) == (404, "not_found")


def test_a_loop_without_a_repository_has_no_checkpoints(finished: CodingLoop) -> None:
    client = client_of(console_of(finished))
    loop = {"name": "plain", "runner": {"kind": "scripted", "answers": ["{}"]}}
    one = {"id": "A", "prompt": "p", "verifiers": ["json.object"]}
    post_json(client, "/api/loops", 201, loop=loop, items=[one])
    refused = client.get("/api/loops/plain/checkpoints")
    assert error_of(refused) == (409, "conflict")
    assert refused.json()["error"]["message"] == "the loop has no repository, and so no checkpoints"
    found = get_json(client, "/api/loops/plain")
    assert (found["repo"], found["branch"]) == (None, None)


def test_a_repository_that_is_gone_is_unavailable(guarded: ConsoleContext) -> None:
    """Given a folder that was moved, only those who run the fleet learn where it was."""
    producer = client_of(guarded, new_token(guarded, role="producer", name="ada", tenant="acme"))
    ops = client_of(guarded, new_token(guarded, role="ops"))
    place = Path(get_json(ops, API)["repo"])
    document = coding_document(place, *ITEMS, name="of-ada")
    change.create_loop(guarded.services.loops, document, by="ada", owner="acme/ada", tenant="acme")
    place.rename(place.with_name("moved"))
    try:
        for path in ("/checkpoints", "/checkpoints/abcd/diff", "/tests/A/diff"):
            answer = producer.get(f"/api/loops/of-ada{path}")
            assert error_of(answer) == (503, "unavailable"), answer.text
            assert str(place) not in answer.text
            assert answer.headers["retry-after"]
            assert "does not exist" in ops.get(API + path).text
        asked = ops.post(f"{API}/rollback", json={"test": "A"})
        assert error_of(asked) == (503, "unavailable")
        assert get_json(ops, API)["repo"] == str(place)
    finally:
        place.with_name("moved").rename(place)


# -- rollback --------------------------------------------------------------------------------------


def test_a_loop_is_rolled_back(tmp_path: Path) -> None:
    """First one item with a key, once; then everything."""
    fleet = run_loop(tmp_path)
    client = client_of(console_of(fleet))
    assert post_json(client, f"{API}/rollback", test="A", dry_run=True)["reopens"] == ["A", "B"]
    key = {"Idempotency-Key": "back-1"}
    asked = client.post(f"{API}/rollback", json={"test": "B"}, headers=key)
    assert (asked.status_code, asked.json()["rollback"]["item"]) == (202, "B")
    again = client.post(f"{API}/rollback", json={"to": rows(client)[-1]["commit"]})
    assert error_of(again) == (409, "conflict")
    message = "another rollback of this loop is not finished yet"
    assert again.json()["error"]["message"] == message
    fleet.sweep()
    states = fleet.states(LOOP)
    assert (states["A"], states["C"]) == ("passed", "passed")
    assert states["B"] in ("pending", "ready")
    undone = get_json(client, f"{API}/tests/B/diff")
    assert (undone["merged"], undone["attempt"]) == (False, 1), "its work was undone, and is kept"
    repeated = client.post(f"{API}/rollback", json={"test": "B"}, headers=key)
    assert (repeated.status_code, repeated.json()["rollback"]) == (202, None)
    other = client.post(f"{API}/rollback", json={"test": "A"}, headers=key)
    assert error_of(other) == (409, "key_in_use")

    base = rows(client)[-1]["commit"]
    pushed = push(Path(fleet.repository), "user.txt")
    plan = post_json(client, f"{API}/rollback", to=base[:10], dry_run=True)
    assert (plan["to"], sorted(plan["reopens"])) == (base, ["A", "C"])
    assert [each["commit"] for each in plan["removes"]] == [pushed]
    assert (plan["returns"], plan["interrupts"]) == ([], [])
    assert get_json(client, API)["rollback"] is None, "nothing was changed"
    pending = post_json(client, f"{API}/rollback", 202, to=base[:10])["rollback"]
    assert (pending["to"], pending["item"], pending["by"]) == (base, None, "loopback")
    fleet.sweep()
    assert get_json(client, API)["rollback"] is None
    assert set(fleet.states(LOOP).values()) <= {"pending", "ready"}
    found = rows(client)
    assert [each["kind"] for each in found[:3]] == ["rollback", "other", "rollback"]
    assert len(found[0]["undoes"]) == 3
    assert all(each["undone"] for each in found if each["kind"] == "merge")


def test_merged_work_is_not_reset(client: TestClient) -> None:
    answer = client.post(f"{API}/tests/A/reset")
    assert error_of(answer) == (409, "conflict")
    assert f"mulligan loops rollback {LOOP} --item A" in answer.text
    assert f"{API}/tests/A/reset" not in client.get(f"/loops/{LOOP}").text


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 422, "name a checkpoint (to) or an item (test)"),
        ({"to": "HEAD"}, 422, "to: must match"),
        ({"to": "abcd", "force": True}, 422, "force: there is no such field"),
        ({"to": "ffffffff"}, 409, "no checkpoint of the loop begins with 'ffffffff'"),
        ({"test": "X"}, 409, "the loop has no item 'X'"),
    ],
)
def test_a_rollback_that_cannot_be_made_says_why(
    client: TestClient, body: dict[str, Any], status: int, message: str
) -> None:
    answer = client.post(f"{API}/rollback", json=body)
    assert answer.status_code == status, answer.text
    assert message in json.dumps(answer.json()["error"])


def test_there_is_nothing_after_the_newest(client: TestClient) -> None:
    answer = client.post(f"{API}/rollback", json={"to": rows(client)[0]["commit"]})
    assert error_of(answer) == (409, "conflict")
    assert "there is nothing to roll back" in answer.text


# -- sessions --------------------------------------------------------------------------------------


def test_the_session_of_an_attempt_is_kept(client: TestClient, finished: CodingLoop) -> None:
    found = get_json(client, session_path(finished))
    assert (found["item"], found["attempt"], found["ended"]) == ("A", 1, True)
    assert any("made A" in each["text"] for each in found["events"])
    assert [each["seq"] for each in found["events"]] == list(range(1, found["last"] + 1))
    assert get_json(client, session_path(finished), after=found["last"])["events"] == []
    first = get_json(client, session_path(finished), limit=1)
    if found["last"] > 1:
        assert (first["more"], first["ended"], first["last"]) == (True, False, 1)


def test_a_session_is_read_only_by_its_item_s_own_jobs(
    client: TestClient, finished: CodingLoop
) -> None:
    other = finished.snapshot.record("B").job_id
    for path in (f"/tests/A/transcripts/{other}/1", "/tests/A/transcripts/p00-x/1"):
        assert error_of(client.get(API + path)) == (404, "not_found")
    assert error_of(client.get(session_path(finished, attempt=2))) == (404, "not_found")


@pytest.fixture
def running(tmp_path: Path) -> CodingLoop:
    """A loop whose only item is being attempted."""
    fleet = CodingLoop(tmp_path, UserRepository.make(tmp_path / "user").path)
    fleet.start(item("A"))
    fleet.run(until=lambda: fleet.states(LOOP)["A"] == "running")
    job_id = fleet.snapshot.record("A").job_id
    fleet.ledger.claim(Entry("attempt", job_id, 1), worker="host:1")
    return fleet


@pytest.fixture
def emit(running: CodingLoop) -> Callable[..., None]:
    """``emit("said")`` is what the agent does: people see it at once."""
    job_id, seq = running.snapshot.record("A").job_id, count(1)

    def say(*texts: str) -> None:
        lines = [event(next(seq), text) for text in texts]
        running.ledger.live_transcripts.add(job_id, 1, lines)

    return say


def event(seq: int, text: str, at: float = 1.0) -> str:
    return json.dumps({"seq": seq, "at": at, "kind": "text", "text": text})


def test_a_running_session_can_be_polled(running: CodingLoop, emit: Callable[..., None]) -> None:
    client = client_of(console_of(running))
    emit("one", "two")
    found = get_json(client, session_path(running))
    assert [each["text"] for each in found["events"]] == ["one", "two"]
    assert (found["last"], found["ended"]) == (2, False)
    emit("three")
    found = get_json(client, session_path(running), after=2)
    assert [each["text"] for each in found["events"]] == ["three"]


def test_a_new_worker_begins_its_session_anew(running: CodingLoop) -> None:
    """Given a worker that was lost, of whose session the tail still has the end."""
    job_id = running.snapshot.record("A").job_id
    lines = [*(event(seq, "old") for seq in (1, 2, 3)), event(1, "new", 2.0)]
    running.ledger.live_transcripts.add(job_id, 1, lines)
    found = get_json(client_of(console_of(running)), session_path(running))
    assert [each["text"] for each in found["events"]] == ["new"]


def test_what_is_no_event_is_left_out(running: CodingLoop) -> None:
    job_id = running.snapshot.record("A").job_id
    lines = [
        json.dumps({"seq": 1, "at": "soon", "kind": []}),
        '{"seq": 2, "at": 1.0, "kind": "text", "text": "\\ud800"}',
        event(3, "good"),
    ]
    running.ledger.live_transcripts.add(job_id, 1, lines)
    found = get_json(client_of(console_of(running)), session_path(running))
    assert [each["text"] for each in found["events"]] == ["good"]


def frames(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def test_a_session_streams_until_its_agent_has_ended(
    running: CodingLoop, emit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_work_routes, "POLL", 0.05)
    job_id = running.snapshot.record("A").job_id
    emit("one", "two")
    console = RunningConsole(console_of(running))
    console.start()
    try:
        with (
            console.client() as http,
            http.stream("GET", f"{session_path(running)}/stream?after=1") as answer,
        ):
            assert answer.headers["content-type"].startswith("text/event-stream")
            stream = frames(answer.iter_lines())
            assert next(stream)[1]["text"] == "two"
            emit("three")
            assert next(stream)[1]["seq"] == 3
            assert console.context.broadcast.count == 1
            running.ledger.cancel(job_id)
            assert next(stream) == ("end", {})
        wait_for(lambda: console.context.broadcast.count == 0, "the listener to be gone")
    finally:
        console.stop()


def test_streams_of_sessions_count_as_listeners(finished: CodingLoop) -> None:
    context = console_of(finished)
    capped = ConsoleContext(
        services=context.services,
        app=context.app,
        rate=context.rate,
        broadcast=type(context.broadcast)(
            finished.ledger, finished.settings.model_copy(update={"listeners_cap": 0})
        ),
    )
    refused = client_of(capped).get(f"{session_path(finished)}/stream")
    assert error_of(refused) == (429, "too_many_listeners")


# -- roles, tenants and texts ----------------------------------------------------------------------


def test_without_texts_only_numbers_are_shown(guarded: ConsoleContext) -> None:
    ops = client_of(guarded, new_token(guarded, role="ops", texts=False))
    every = client_of(guarded, new_token(guarded, role="ops", texts=True))
    (merge,) = [each for each in rows(ops) if each["item"] == "A"]
    session = f"{API}/tests/A/transcripts/{merge['job_id']}/1"
    for path, secret in (
        (f"{API}/checkpoints", "make A.txt"),
        (f"{API}/checkpoints/{merge['commit']}/diff", "A.txt"),
        (f"{API}/tests/A/diff", "+done"),
        (session, "made A"),
        (f"{session}/stream", "made A"),
    ):
        assert secret in every.get(path).text, path
        assert secret not in ops.get(path).text, path
        assert REDACTED in ops.get(path).text, path
    (changed,) = get_json(ops, f"{API}/tests/A/diff")["files"]
    assert (changed["path"], changed["added"]) == (REDACTED, 1)


def test_another_tenant_sees_nothing(guarded: ConsoleContext) -> None:
    ops = client_of(guarded, new_token(guarded, role="ops"))
    other = client_of(guarded, new_token(guarded, role="admin", tenant="zeta"))
    merge = rows(ops)[0]
    session = f"/tests/{merge['item']}/transcripts/{merge['job_id']}/1"
    for path in (
        "/checkpoints",
        f"/checkpoints/{merge['commit']}/diff",
        "/tests/A/diff",
        session,
        f"{session}/stream",
    ):
        assert ops.get(API + path).status_code == 200, path
        assert error_of(other.get(API + path)) == (404, "not_found"), path
    asked = other.post(f"{API}/rollback", json={"test": "A"})
    assert error_of(asked) == (404, "not_found")
    assert get_json(ops, API)["rollback"] is None


def test_another_tenant_cannot_read_a_session_by_its_job(guarded: ConsoleContext) -> None:
    """Given a loop of another tenant with the same item, on the same repository."""
    ops = client_of(guarded, new_token(guarded, role="ops"))
    place, job_id = get_json(ops, API)["repo"], rows(ops)[0]["job_id"]
    document = coding_document(place, *ITEMS, name="of-zeta")
    change.create_loop(guarded.services.loops, document, by="zoe", tenant="zeta")
    zeta = client_of(guarded, new_token(guarded, role="admin", tenant="zeta"))
    for name in "ABC":
        path = f"/api/loops/of-zeta/tests/{name}/transcripts/{job_id}/1"
        assert error_of(zeta.get(path)) == (404, "not_found")
        assert error_of(zeta.get(f"{path}/stream")) == (404, "not_found")
