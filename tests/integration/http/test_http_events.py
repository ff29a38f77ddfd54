"""Server-sent events from a real server: live, resumed, filtered, bounded."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.console_server import RunningConsole, new_token, running_console
from support.jobs import GOOD, read_job, scripted
from support.loops import ADA, document, item
from support.provider_calls import fail_call, start_call
from support.redis_server import RedisServer
from support.waiting import wait_for

from mulligan.console.http import broadcast as broadcasting
from mulligan.console.http.access import COOKIE
from mulligan.console.http.routes import event_routes as streaming
from mulligan.console.page.live_list import newest
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.tasks.loops import change
from mulligan.tasks.loops.plan import run_plan
from mulligan.workers.settings.model import Settings


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    """One server with two partitions for all tests of this module."""
    folder: Path = tmp_path_factory.mktemp("sse")
    server = RedisServer(folder)
    server.start()
    fields: dict[str, Any] = {"allow_inline": True, "partitions": 2, "listeners_cap": 5}
    try:
        with running_console(Settings(broker_url=server.url, home=folder, **fields)) as console:
            yield console
    finally:
        server.kill()


class Stream:
    """A listener that keeps every event it receives."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.events: list[dict[str, Any]] = []
        self.ended = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        event: dict[str, Any] = {}
        try:
            for line in self.response.iter_lines():
                name, _, value = line.partition(": ")
                if not line and "data" in event:
                    self.events.append(event)
                    event = {}
                elif name in ("id", "event"):
                    event[name] = value
                elif name == "data":
                    event["data"] = json.loads(value)
        except httpx2.HTTPError:
            pass
        self.ended = True

    def hang_up(self) -> None:
        """Shut down the socket. Closing alone would wait for the reading thread."""
        connection = self.response.extensions["network_stream"].get_extra_info("socket")
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)

    @property
    def jobs(self) -> list[str]:
        return [event["data"]["job"] for event in self.events if event["event"] == "job"]

    @property
    def states(self) -> list[str]:
        return [event["data"]["state"] for event in self.events if event["event"] == "job"]

    def received(self, number: int) -> bool:
        return bool(self.events) and self.events[-1]["data"]["job"] == f"p00-{number}"

    def wait_for_count(self, number: int) -> None:
        wait_for(lambda: len(self.events) >= number, f"{number} events")

    def wait_for_jobs(self, *ids: str) -> None:
        wait_for(lambda: set(ids) <= set(self.jobs), f"{ids} in {self.jobs}", seconds=20)


@contextmanager
def listening(
    console: RunningConsole, path: str = "/api/events", *, token: str | None = None, **headers: str
) -> Iterator[Stream]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with console.client(token) as client, client.stream("GET", path, headers=named) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = Stream(response)
        try:
            yield stream
        finally:
            stream.hang_up()


def submit(console: RunningConsole, **changes: Any) -> str:
    job = read_job(scripted(GOOD, **changes))
    return submit_jobs(console.context.services.intake, [job])[0].id


def test_a_new_job_is_an_event(console: RunningConsole) -> None:
    with listening(console) as stream:
        job_id = submit(console, name="new")
        stream.wait_for_jobs(job_id)
        (event,) = [e for e in stream.events if e["data"]["job"] == job_id]
        assert (event["data"]["state"], event["data"]["name"]) == ("queued", "new")


@pytest.mark.parametrize("damaged", ["{", "[]", '{"type": "job"}', '{"type": 1, "job": null}'])
def test_a_damaged_event_hides_no_others(console: RunningConsole, damaged: str) -> None:
    with listening(console) as stream:
        console.context.ledger.calls.run("XADD", "mulligan:{p00}:events", "*", "data", damaged)
        job_id = submit(console)
        stream.wait_for_jobs(job_id)
    rows, _ = newest(console.context, tenant=None)
    assert job_id in {row.job for row in rows}


def test_an_event_says_in_words_what_an_attempt_waits_for(console: RunningConsole) -> None:
    ledger = console.context.ledger
    with listening(console) as stream:
        call = start_call(ledger, "openai-eu")
        fail_call(ledger, call, status=429, retry_after=60)
        waits = partial(_waiting_event, stream, call.job_id)
        wait_for(lambda: waits() is not None, "the event")
    found = waits()
    assert found is not None
    assert (found["waiting_for"], found["waits_for"]) == ("provider", "provider openai-eu")


def _waiting_event(stream: Stream, job_id: str) -> dict[str, Any] | None:
    events = [event["data"] for event in list(stream.events)]
    return next((e for e in events if e["job"] == job_id and e["state"] == "waiting"), None)


@pytest.mark.parametrize("path", ["/api/events", "/api/jobs/{job}/events"])
def test_the_stream_of_a_revoked_token_ends(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(streaming, "RECHECK", 0.05)
    tokens = console.context.tokens
    (first, first_text), (second, second_text) = (
        tokens.create(role="ops"),
        tokens.create(role="ops"),
    )
    job_id = submit(console)
    path = path.format(job=job_id)
    try:
        with (
            listening(console, path, token=first_text) as revoked,
            listening(console, path, token=second_text) as other,
        ):
            tokens.revoke(first.id)
            wait_for(lambda: revoked.ended, "the stream to end")
            assert console.context.ledger.cancel(job_id)
            wait_for(lambda: "cancelled" in other.states, "the other stream to go on")
            assert "cancelled" not in revoked.states
            assert not other.ended
    finally:
        tokens.revoke(second.id)


def test_the_streams_of_an_expired_token_and_a_closed_session_end(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "RECHECK", 0.05)
    tokens = console.context.tokens
    now = time.time()
    monkeypatch.setattr(tokens, "_now", lambda: now)
    token, text = tokens.create(role="ops", lifetime=60)
    session = tokens.open_session(token)
    try:
        with (
            listening(console, token=text) as by_token,
            listening(console, Cookie=f"{COOKIE}={session}") as by_session,
        ):
            tokens.close_session(session)
            wait_for(lambda: by_session.ended, "the session's stream to end")
            assert not by_token.ended
            now += 60
            wait_for(lambda: by_token.ended, "the expired token's stream to end")
    finally:
        tokens.revoke(token.id)


def test_a_listener_resumes_where_it_stopped(console: RunningConsole) -> None:
    with listening(console) as stream:
        first = [submit(console) for _ in range(6)]
        stream.wait_for_jobs(*first)
        last = stream.events[-1]["id"]
    missed = [submit(console) for _ in range(6)]
    with listening(console, Last_Event_ID=last) as again:
        later = submit(console)
        again.wait_for_jobs(*missed, later)
        assert set(again.jobs) == {*missed, later}, "no event twice"
        assert len(again.jobs) == 7
    with listening(console, f"/api/events?after={last}") as by_query:
        by_query.wait_for_jobs(*missed)


def test_every_id_resumes_exactly_after_itself(console: RunningConsole) -> None:
    """Each partition has its own stream; an id holds the position in both."""
    with listening(console, "/api/events?after=0") as stream:
        ids = [submit(console) for _ in range(8)]
        stream.wait_for_jobs(*ids)
        events = list(stream.events)
    for index in range(len(events) - 8, len(events)):
        with listening(console, Last_Event_ID=events[index]["id"]) as again:
            later = [event["id"] for event in events[index + 1 :]]
            again.wait_for_count(len(later))
            assert sorted(e["id"] for e in again.events) == sorted(later)


def test_a_job_s_stream_has_only_its_events(console: RunningConsole) -> None:
    job_id, other = submit(console), submit(console)
    with listening(console, f"/api/jobs/{job_id}/events") as stream:
        stream.wait_for_jobs(job_id)
        console.context.ledger.cancel(other)
        console.context.ledger.cancel(job_id)
        wait_for(lambda: len(stream.events) == 2, "accepting and cancelling")
        assert [event["data"]["state"] for event in stream.events] == ["queued", "cancelled"]


def test_a_job_s_first_event_is_sent_even_if_it_is_older_than_the_job(
    console: RunningConsole,
) -> None:
    """Time passes while a script runs: a job's timestamp can be later than its first event's id."""
    job_id = submit(console)
    key = f"mulligan:{{{job_id[:3]}}}:job:{job_id}"
    calls = console.context.ledger.calls
    calls.run("HSET", key, "created_at", float(calls.run("HGET", key, "created_at")) + 20)
    with listening(console, f"/api/jobs/{job_id}/events") as stream:
        stream.wait_for_jobs(job_id)


def test_a_listener_cut_off_before_the_first_event_can_resume(console: RunningConsole) -> None:
    """The stream starts with the listener's position, which is an ordinary id."""
    with console.client() as client, client.stream("GET", "/api/events") as response:
        first = next(response.iter_text())
    (place,) = [line[4:] for line in first.splitlines() if line.startswith("id: ")]
    missed = submit(console)
    with listening(console, Last_Event_ID=place) as again:
        again.wait_for_jobs(missed)
        assert again.jobs == [missed]


@pytest.mark.parametrize("bad", ["x", "1-2-3", "1,x", "-"])
def test_an_invalid_event_id_is_refused(console: RunningConsole, bad: str) -> None:
    with console.client() as client:
        answer = client.get("/api/events", headers={"Last-Event-ID": bad})
    assert answer.status_code == 422


def test_listeners_over_the_cap_are_refused(console: RunningConsole) -> None:
    wait_for(lambda: console.context.broadcast.count == 0, "the other listeners to be gone")
    with console.client() as client:
        streams = [client.stream("GET", "/api/events") for _ in range(5)]
        opened = [stream.__enter__() for stream in streams]
        refused = client.get("/api/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_listeners")
        assert refused.headers["retry-after"]
        assert client.get("/healthz").status_code == 200
        for response in opened:
            response.close()
    wait_for(lambda: console.context.broadcast.count == 0, "the listeners to be gone")


def test_a_slow_listener_is_dropped_and_the_others_are_not(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasting, "QUEUE_CAP", 100_000)
    wait_for(lambda: console.context.broadcast.count == 0, "the other listeners to be gone")
    host, port = console.url.removeprefix("http://").split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect((host, int(port)))
        slow.sendall(f"GET /api/events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        wait_for(lambda: console.context.broadcast.count == 1, "the slow one")
        with listening(console) as quick:
            wait_for(lambda: console.context.broadcast.count == 2, "the quick one")
            sent = 0

            def flooded() -> bool:
                nonlocal sent
                for _ in range(50):
                    console.context.ledger.calls.run(
                        "XADD", "mulligan:{p00}:events", "*", "data", _large_event(sent)
                    )
                    sent += 1
                wait_for(lambda: quick.received(sent - 1), "the quick one to receive it")
                return console.context.broadcast.count == 1

            # It reads nothing: the kernel's buffers fill, then the queue, then it is dropped.
            wait_for(flooded, "the slow one to be dropped")
            assert not quick.ended
            job_id = submit(console)
            quick.wait_for_jobs(job_id)


def _large_event(number: int) -> str:
    return json.dumps({"type": "flood", "job": f"p00-{number}", "text": "n" * 20_000})


def test_a_tenant_s_token_receives_only_its_own_events(console: RunningConsole) -> None:
    token = new_token(console.context, role="ops", tenant="acme")
    try:
        with listening(console, token=token) as stream:
            other, mine = (submit(console, labels={"tenant": name}) for name in ("b", "acme"))
            console.context.ledger.cancel(other)
            console.context.ledger.cancel(mine)
            wait_for(lambda: len(stream.events) == 2, "accepting and cancelling")
            assert set(stream.jobs) == {mine}
        # A token bound to a tenant gets no other tenant's events, even if it asks for them.
        for path in ("/api/events?after=0", "/api/events?after=0&tenant=b"):
            with listening(console, path, token=token) as replayed:
                replayed.wait_for_jobs(mine)
                assert set(replayed.jobs) == {mine}
    finally:
        console.context.tokens.revoke(token.split("_")[1])


def test_an_unbound_listener_may_choose_one_tenant(console: RunningConsole) -> None:
    with listening(console, "/api/events?tenant=chosen") as stream:
        submit(console, labels={"tenant": "b"})
        mine = submit(console, labels={"tenant": "chosen"})
        stream.wait_for_jobs(mine)
        assert set(stream.jobs) == {mine}


def test_a_stopping_server_ends_its_streams(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "r")
    server.start()
    try:
        console: RunningConsole
        with running_console(Settings(broker_url=server.url, home=tmp_path)) as console:
            entered = listening(console)
            stream = entered.__enter__()
        wait_for(lambda: stream.ended, "the stream to end")
        assert not console.alive
    finally:
        server.kill()


# -- loops -----------------------------------------------------------------------------------------


def create_loop(console: RunningConsole, name: str, *, tenant: str = "") -> None:
    """Create and start a loop of one item, and give the item its slot."""
    loops = console.context.services.loops
    change.create_loop(loops, document(item("one"), name=name), tenant=tenant, by="ada")
    change.move(loops, name, "start", ADA)
    run_plan(loops, name)


def test_a_loop_streams_its_own_events_from_its_beginning(console: RunningConsole) -> None:
    """Given two loops, one of which is followed after it has begun."""
    create_loop(console, "followed")
    create_loop(console, "other")
    with listening(console, "/api/loops/followed/transcripts/stream") as stream:
        wait_for(lambda: "job" in {e["event"] for e in stream.events}, "the job of the item")
        change.move(console.context.services.loops, "followed", "pause", ADA)
        wait_for(lambda: stream.events[-1]["data"].get("state") == "paused", "the pause")
    found = [(e["event"], e["data"]["state"]) for e in stream.events]
    assert found == [
        ("loop", "created"), ("loop", "running"), ("item", "ready"), ("item", "running"),
        ("job", "queued"), ("loop", "paused"),
    ]  # fmt: skip
    texts = [json.dumps(e["data"]) for e in stream.events]
    assert not any("other" in text or "because" in text for text in texts)


def test_a_tenant_hears_nothing_of_other_loops(console: RunningConsole) -> None:
    """Given loops of two tenants and of none, whose events have no job to say whose they are."""
    token = new_token(console.context, role="ops", tenant="acme")
    with listening(console, token=token) as stream:
        create_loop(console, "of-zeta", tenant="zeta")
        create_loop(console, "of-acme", tenant="acme")
        create_loop(console, "of-nobody")
        last = submit(console, labels={"tenant": "acme"})
        stream.wait_for_jobs(last)
    loops = {e["data"]["loop"] for e in stream.events if "loop" in e["data"]}
    assert loops == {"of-acme"}
    kinds = {e["event"] for e in stream.events}
    assert kinds == {"loop", "item", "job"}
    console.context.tokens.revoke(token.split("_")[1])
