"""Server-sent events from a real server: live, resumed, filtered, bounded."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.console_server import RunningConsole, new_token, running_console
from support.jobs import GOOD, scripted
from support.redis_server import RedisServer
from support.waiting import wait_for

from mulligan.console.http import broadcast as broadcasting
from mulligan.console.http.access import COOKIE
from mulligan.console.http.routes import event_routes as streaming
from mulligan.tasks.jobs.read_job import read_job
from mulligan.tasks.jobs.submit import submit_jobs
from mulligan.workers.settings.model import Settings


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    """One server on two partitions, for all tests of this module."""
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
    """A listener that keeps all it was told."""

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
        """Closing alone would wait for the thread that reads."""
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

    def heard(self, number: int) -> bool:
        return bool(self.events) and self.events[-1]["data"]["job"] == f"p00-{number}"

    def counts(self, number: int) -> None:
        wait_for(lambda: len(self.events) >= number, f"{number} events")

    def hears(self, *ids: str) -> None:
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


def test_what_happens_is_told(console: RunningConsole) -> None:
    with listening(console) as stream:
        job_id = submit(console, name="told")
        stream.hears(job_id)
        (event,) = [e for e in stream.events if e["data"]["job"] == job_id]
        assert (event["data"]["state"], event["data"]["name"]) == ("queued", "told")


@pytest.mark.parametrize("path", ["/api/events", "/api/jobs/{job}/events"])
def test_the_stream_of_a_revoked_token_ends(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(streaming, "RECHECK", 0.05)
    tokens = console.context.tokens
    (gone, text), (kept, other) = tokens.create(role="ops"), tokens.create(role="ops")
    job_id = submit(console)
    path = path.format(job=job_id)
    try:
        with (
            listening(console, path, token=text) as revoked,
            listening(console, path, token=other) as stays,
        ):
            tokens.revoke(gone.id)
            wait_for(lambda: revoked.ended, "the stream to end")
            assert console.context.ledger.cancel(job_id)
            wait_for(lambda: "cancelled" in stays.states, "the other one to hear on")
            assert "cancelled" not in revoked.states
            assert not stays.ended
    finally:
        tokens.revoke(kept.id)


def test_the_stream_of_an_expired_token_and_of_a_closed_session_ends(
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


def test_a_listener_resumes_where_it_was(console: RunningConsole) -> None:
    with listening(console) as stream:
        first = [submit(console) for _ in range(6)]
        stream.hears(*first)
        last = stream.events[-1]["id"]
    missed = [submit(console) for _ in range(6)]
    with listening(console, Last_Event_ID=last) as again:
        later = submit(console)
        again.hears(*missed, later)
        assert set(again.jobs) == {*missed, later}, "nothing twice"
        assert len(again.jobs) == 7
    with listening(console, f"/api/events?after={last}") as asked:
        asked.hears(*missed)


def test_every_id_resumes_exactly_after_itself(console: RunningConsole) -> None:
    """Two partitions have two streams; an id says where the listener was in both."""
    with listening(console, "/api/events?after=0") as stream:
        ids = [submit(console) for _ in range(8)]
        stream.hears(*ids)
        told = list(stream.events)
    for place in range(len(told) - 8, len(told)):
        with listening(console, Last_Event_ID=told[place]["id"]) as again:
            wanted = [event["id"] for event in told[place + 1 :]]
            again.counts(len(wanted))
            assert sorted(e["id"] for e in again.events) == sorted(wanted)


def test_one_job(console: RunningConsole) -> None:
    job_id, other = submit(console), submit(console)
    with listening(console, f"/api/jobs/{job_id}/events") as stream:
        stream.hears(job_id)
        console.context.ledger.cancel(other)
        console.context.ledger.cancel(job_id)
        wait_for(lambda: len(stream.events) == 2, "accepting and cancelling")
        assert [event["data"]["state"] for event in stream.events] == ["queued", "cancelled"]


def test_a_job_s_first_event_is_told_though_its_clock_is_ahead(console: RunningConsole) -> None:
    """Time goes on while a script runs: a job can be younger than its first event's number."""
    job_id = submit(console)
    key = f"mulligan:{{{job_id[:3]}}}:job:{job_id}"
    calls = console.context.ledger.calls
    calls.run("HSET", key, "created_at", float(calls.run("HGET", key, "created_at")) + 20)
    with listening(console, f"/api/jobs/{job_id}/events") as stream:
        stream.hears(job_id)


def test_who_is_cut_off_before_the_first_event_can_resume(console: RunningConsole) -> None:
    """The stream begins with the listener's place, which is an id like any other's."""
    with console.client() as client, client.stream("GET", "/api/events") as response:
        first = next(response.iter_text())
    (place,) = [line[4:] for line in first.splitlines() if line.startswith("id: ")]
    missed = submit(console)
    with listening(console, Last_Event_ID=place) as again:
        again.hears(missed)
        assert again.jobs == [missed]


@pytest.mark.parametrize("bad", ["x", "1-2-3", "1,x", "-"])
def test_an_id_that_is_none(console: RunningConsole, bad: str) -> None:
    with console.client() as client:
        answer = client.get("/api/events", headers={"Last-Event-ID": bad})
    assert answer.status_code == 422


def test_too_many_listeners(console: RunningConsole) -> None:
    wait_for(lambda: console.context.broadcast.count == 0, "the others to be gone")
    with console.client() as client:
        streams = [client.stream("GET", "/api/events") for _ in range(5)]
        opened = [stream.__enter__() for stream in streams]
        refused = client.get("/api/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_listeners")
        assert refused.headers["retry-after"]
        assert client.get("/healthz").status_code == 200
        for response in opened:
            response.close()
    wait_for(lambda: console.context.broadcast.count == 0, "their places to be free again")


def test_a_slow_listener_is_dropped_and_the_others_are_not(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasting, "QUEUE_CAP", 100_000)
    wait_for(lambda: console.context.broadcast.count == 0, "the others to be gone")
    host, port = console.url.removeprefix("http://").split(":")
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect((host, int(port)))
        slow.sendall(f"GET /api/events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        wait_for(lambda: console.context.broadcast.count == 1, "the slow one")
        with listening(console) as quick:
            wait_for(lambda: console.context.broadcast.count == 2, "the quick one")
            told = 0

            def flooded() -> bool:
                nonlocal told
                for _ in range(50):
                    console.context.ledger.calls.run(
                        "XADD", "mulligan:{p00}:events", "*", "data", _large_event(told)
                    )
                    told += 1
                wait_for(lambda: quick.heard(told - 1), "the quick one to hear of it")
                return console.context.broadcast.count == 1

            # It takes nothing: the kernel's buffers fill, then the queue, then it is dropped.
            wait_for(flooded, "the slow one to be dropped")
            assert not quick.ended
            job_id = submit(console)
            quick.hears(job_id)


def _large_event(number: int) -> str:
    return json.dumps({"type": "flood", "job": f"p00-{number}", "text": "n" * 20_000})


def test_tenants_hear_of_their_own(console: RunningConsole) -> None:
    token = new_token(console.context, role="producer", tenant="acme")
    try:
        with listening(console, token=token) as stream:
            other, mine = (submit(console, labels={"tenant": name}) for name in ("b", "acme"))
            console.context.ledger.cancel(other)
            console.context.ledger.cancel(mine)
            wait_for(lambda: len(stream.events) == 2, "accepting and cancelling")
            assert set(stream.jobs) == {mine}
        # Who is bound to a tenant hears of no other, whatever it asks for.
        for path in ("/api/events?after=0", "/api/events?after=0&tenant=b"):
            with listening(console, path, token=token) as replayed:
                replayed.hears(mine)
                assert set(replayed.jobs) == {mine}
    finally:
        console.context.tokens.revoke(token.split("_")[1])


def test_who_hears_of_all_may_listen_to_one_tenant(console: RunningConsole) -> None:
    with listening(console, "/api/events?tenant=chosen") as stream:
        submit(console, labels={"tenant": "b"})
        mine = submit(console, labels={"tenant": "chosen"})
        stream.hears(mine)
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
