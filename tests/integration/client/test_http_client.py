"""The client of a console: tokens, broken connections, an unreachable console."""

from __future__ import annotations

import json
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.console_server import RunningConsole, new_token, running_console
from support.doubles import ManualClock
from support.jobs import GOOD
from support.waiting import wait_for

from mulligan import AsyncClient, Client
from mulligan.client import http_backend
from mulligan.client.http_backend import open_console
from mulligan.client.http_requests import ConsoleConnection
from mulligan.client.http_rows import view_of
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable, MulliganError
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.settings.model import Settings

JOB: dict[str, Any] = {
    "task_type": "t",
    "runner": {"kind": "scripted", "answers": [GOOD]},
    "verifiers": ["json.object"],
}
SECRET = "mlg_this-is-a-secret"


class FlakyProxy:
    """A TCP proxy to a server that can be cut, be down for a while, or lose a reply."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self.is_down = False
        #: The number of replies to lose after their requests have arrived.
        self.replies_to_lose = 0
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for end in self._open:
            _hang_up(end)
        self._open.clear()

    def close(self) -> None:
        _hang_up(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                incoming, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.is_down:
                incoming.close()
                continue
            outgoing = socket.create_connection(self._target)
            self._open += [incoming, outgoing]
            threading.Thread(target=self._pump, args=(incoming, outgoing), daemon=True).start()
            threading.Thread(
                target=self._pump, args=(outgoing, incoming, True), daemon=True
            ).start()

    def _pump(self, source: socket.socket, target: socket.socket, replies: bool = False) -> None:
        try:
            while data := source.recv(65536):
                if replies and self.replies_to_lose:
                    self.replies_to_lose -= 1
                    break
                target.sendall(data)
        except OSError:
            pass
        _hang_up(source)
        _hang_up(target)


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):  # already closed
        end.shutdown(socket.SHUT_RDWR)


class Stub:
    """A server that sends these responses in order and repeats the last one."""

    def __init__(self, *answers: tuple[int, dict[str, str], Any]) -> None:
        self.requests: list[tuple[str, str]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                status, headers, body = answers[min(len(stub.requests), len(answers) - 1)]
                stub.requests.append((self.command, self.path))
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def error_body(code: str, message: str = "no", *details: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "details": list(details)}}


@pytest.fixture
def stub() -> Iterator[Callable[..., Stub]]:
    with ExitStack() as stubs:

        def make(*answers: tuple[int, dict[str, str], Any]) -> Stub:
            return stubs.enter_context(closing(Stub(*answers)))

        yield make


@pytest.fixture
def console(settings: Callable[..., Settings]) -> Iterator[RunningConsole]:
    """A console without workers: tests change jobs through its ledger."""
    with running_console(settings(allow_inline=True, rate_limit=100_000)) as running:
        yield running


@pytest.fixture
def flaky_proxy(console: RunningConsole) -> Iterator[FlakyProxy]:
    with closing(FlakyProxy(console.url)) as proxy:
        yield proxy


@pytest.fixture
def client(flaky_proxy: FlakyProxy) -> Iterator[Client]:
    with Client(flaky_proxy.url, submit_patience=30) as client:
        yield client


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn polling off: the client learns only from the event stream."""
    monkeypatch.setattr("mulligan.workers.backends.follow.SILENCE", 1e9)


# -- broken connections ----------------------------------------------------------------------------


def test_a_submission_repeated_after_a_lost_reply_creates_no_second_job(
    client: Client, flaky_proxy: FlakyProxy, console: RunningConsole
) -> None:
    flaky_proxy.replies_to_lose = 1
    handle = client.submit("x", **JOB)
    assert flaky_proxy.connections == 2
    assert not handle.seen
    assert [view.id for view in console.context.ledger.jobs()] == [handle.id]
    flaky_proxy.replies_to_lose = 1
    flaky_proxy.cut()
    handles = client.submit_many(["a", "b"], **JOB)
    assert len({each.id for each in handles}) == 2
    assert len(console.context.ledger.jobs()) == 3


@pytest.mark.usefixtures("no_polling")
def test_a_job_that_ends_while_the_connection_is_down_is_noticed(
    client: Client, flaky_proxy: FlakyProxy, console: RunningConsole
) -> None:
    """Given a listener without events: the stream starts with its position."""
    handle = client.submit("x", **JOB)
    (ended,) = client.completion_futures([handle])
    wait_for(lambda: console.context.broadcast.count == 1, "the client to listen")
    flaky_proxy.is_down = True
    flaky_proxy.cut()
    console.context.ledger.cancel(handle.id)
    flaky_proxy.is_down = False
    ended.result(timeout=30)
    assert client.results_of([handle], [ended])[0].state == "cancelled"


@pytest.mark.usefixtures("no_polling")
def test_a_listener_resumes_where_it_stopped(
    client: Client,
    flaky_proxy: FlakyProxy,
    console: RunningConsole,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a listener with an event, when its connection breaks, then it polls no job."""
    first, second = client.submit_many(["a", "b"], **JOB)
    one, two = client.completion_futures([first, second])
    console.context.ledger.cancel(first.id)
    one.result(timeout=30)
    polled: list[Sequence[str]] = []
    monkeypatch.setattr(client._backend, "states", polled.append)
    flaky_proxy.is_down = True
    flaky_proxy.cut()
    console.context.ledger.cancel(second.id)
    flaky_proxy.is_down = False
    two.result(timeout=30)
    assert polled == []


def test_watching_continues_after_a_cut_and_repeats_no_event(
    client: Client, flaky_proxy: FlakyProxy, console: RunningConsole
) -> None:
    handle = client.submit("x", **JOB)
    events = client.watch(handle)
    received = [next(events)]
    flaky_proxy.cut()
    console.context.ledger.cancel(handle.id)
    received += list(events)
    assert [event.data["state"] for event in received] == ["queued", "cancelled"]


def test_watching_ends_if_the_events_have_expired(
    client: Client, console: RunningConsole, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mulligan.workers.backends.follow.LAST_EVENTS", 0.0)
    handle = client.submit("x", **JOB)
    console.context.ledger.cancel(handle.id)
    (stream,) = redis_client.keys("*events")
    redis_client.xtrim(stream, maxlen=0, approximate=False)
    assert list(client.watch(handle)) == []


def test_a_closed_client_leaves_no_listener_and_no_thread(
    client: Client, console: RunningConsole
) -> None:
    others = set(threading.enumerate())  # left by earlier tests in this process
    handle = client.submit("x", **JOB)
    (ended,) = client.completion_futures([handle])
    events = client.watch(handle)
    next(events)
    wait_for(lambda: console.context.broadcast.count == 2, "both to listen")
    client.close()
    with pytest.raises(MulliganError, match="the client was closed"):
        ended.result(timeout=30)
    events.close()  # type: ignore[attr-defined] # a generator
    wait_for(lambda: console.context.broadcast.count == 0, "the listeners to go")
    wait_for(
        lambda: (
            not any(
                t.name.startswith("mulligan-") for t in threading.enumerate() if t not in others
            )
        ),
        "the threads to end",
    )


def test_the_states_of_many_jobs_are_read_in_batches(
    client: Client, console: RunningConsole
) -> None:
    """Two hundred and fifty unfinished jobs take three requests, not one each."""
    handles = client.submit_many(["x"] * 250, **JOB)
    console.context.ledger.cancel(handles[7].id)
    backend = client._backend
    paths: list[str] = []
    original = backend._console.ask  # type: ignore[attr-defined] # an HttpBackend's

    def record(method: str, path: str, *rest: Any, **options: Any) -> Any:
        paths.append(path.partition("?")[0])
        return original(method, path, *rest, **options)

    backend._console.ask = record  # type: ignore[attr-defined] # an HttpBackend's
    ended = client.completion_futures([*handles, handles[7]])
    assert paths == ["/api/jobs"] * 3
    assert [future.done() for future in ended].count(True) == 2
    for future in ended:
        future.cancel()
    assert backend.states([handles[0].id, "p00-nowhere", "a,b", ""]) == {handles[0].id: "queued"}


# -- the view of a job -----------------------------------------------------------------------------


def test_the_client_s_view_of_a_job_equals_the_ledger_s(console: RunningConsole) -> None:
    wrong, more = '{"name": 7}', {"text": GOOD, "usage": {"total_tokens": 9}}
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    fields: dict[str, Any] = {
        "name": "complete",
        "labels": {"suite": "a"},
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}],
        "runner": {"kind": "scripted", "answers": [wrong, more]},
        "verifiers": [{"id": "contract.schema", "schema": schema, "weight": 2}],
        "budget": {"tokens": 900, "seconds": "1m"},
        "policy": {"max_attempts": 3, "escalate_on": ["test_failed"]},
        "delayed_verification": {"mode": "reformulate", "prompt": "Once more.", "after": 7},
        "priority": 3,
    }
    with Client(console.url) as client:
        handle = client.submit(fields, task_type="t")
        for number in (1, 2):
            run_attempt(console.context.services.context, Entry("attempt", handle.id, number))
        result = client.wait(handle)
    assert len(result.view.cycles) == 1
    assert [a.plan.mode for a in result.attempts] == ["initial", "immediate_retry"]
    assert result.view == console.context.ledger.job(handle.id)
    with console.client(new_token(console.context, role="ops")) as http:
        hidden = view_of(http.get(f"/api/jobs/{handle.id}").json())
    assert hidden.job.task_text == "[redacted]"
    assert (hidden.job.budget, hidden.seconds) == (result.view.job.budget, result.view.seconds)


# -- an unreachable or busy console ----------------------------------------------------------------


def connection_to(
    url: str, *, patience: float, token: str | None = None
) -> tuple[ConsoleConnection, ManualClock]:
    clock = ManualClock()
    connection = ConsoleConnection(url, token, patience=patience, wait=clock.wait, clock=clock)
    return connection, clock


CANCELLED: tuple[int, dict[str, str], Any] = (200, {}, {"id": "p00-x", "state": "cancelled"})


@pytest.mark.parametrize(
    ("first", "patience", "waits"),
    [
        ([503, {"Retry-After": "3"}], 5.0, [3.0]),
        # A rate limit is waited for beyond the patience.
        ([429, {"Retry-After": "30"}], 5.0, [30.0]),
        ([503, {}], 5.0, [0.1]),
        ([502, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}], 5.0, [0.1]),
    ],
)
def test_a_refused_request_is_repeated_after_the_requested_delay(
    stub: Callable[..., Stub], first: list[Any], patience: float, waits: list[float]
) -> None:
    server = stub((*first, error_body("unavailable")), CANCELLED)
    console, clock = connection_to(server.url, patience=patience)
    assert console.ask("POST", "/api/jobs/p00-x/cancel").body["state"] == "cancelled"
    assert clock.waits == waits
    assert len(server.requests) == 2


def test_retries_end_with_the_patience(stub: Callable[..., Stub]) -> None:
    server = stub((503, {}, error_body("unavailable")))
    console, clock = connection_to(server.url, patience=5.0)
    with pytest.raises(LedgerUnavailable, match=r"answers 503 \(service unavailable\)"):
        console.ask("GET", "/api/jobs/p00-x")
    # 0.1 + 0.2 + 0.4 + 0.8 + 1 + 1 + 1 = 4.5; another second would be too long.
    assert clock.waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    server = stub((503, {"Retry-After": "10"}, error_body("unavailable")))
    console, clock = connection_to(server.url, patience=5.0)
    with pytest.raises(LedgerUnavailable, match="try again in 10 s"):
        console.ask("GET", "/api/jobs/p00-x")
    assert clock.waits == []


def test_an_unreachable_console_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}", submit_patience=0) as client:
        expected = f"no console at http://127.0.0.1:{port}; is `mulligan up` running"
        for call in (client.cancel, client.wait, lambda job: list(client.watch(job))):
            with pytest.raises(LedgerUnavailable, match=expected):
                call("p00-x")
        with pytest.raises(LedgerUnavailable, match=expected):
            client.submit("x", **JOB)


@pytest.mark.parametrize(
    ("answer", "kind", "expected"),
    [
        ((422, {}, error_body("invalid", "no", "a: 1", "b: 2")), BadInput, "^a: 1\nb: 2$"),
        ((413, {}, error_body("too_large", "the body is over 9 bytes")), BadInput, "over 9 bytes"),
        (
            (403, {}, error_body("forbidden", "this needs the role ops")),
            MulliganError,
            r"\(403\): this",
        ),
        ((500, {}, error_body("internal", "its log has it as 12")), MulliganError, "has it as 12"),
        ((404, {}, "<html>nginx</html>"), MulliganError, "does not answer as a mulligan console"),
        ((200, {}, "<html>hello</html>"), MulliganError, "does not answer as a mulligan console"),
        ((307, {"Location": "/x"}, ""), MulliganError, "does not answer as a mulligan console"),
    ],
)
def test_an_error_response_raises_the_matching_exception(
    stub: Callable[..., Stub], answer: Any, kind: type[Exception], expected: str
) -> None:
    server = stub(answer)
    console, clock = connection_to(server.url, patience=5.0, token=SECRET)
    with pytest.raises(kind, match=expected) as caught:
        console.ask("POST", "/api/jobs", "{}")
    assert type(caught.value) is kind
    assert SECRET not in f"{caught.value!r} {caught.value}"
    assert (clock.waits, len(server.requests)) == ([], 1)


# -- tokens ----------------------------------------------------------------------------------------


def test_a_token_needs_to_be_known_and_allowed(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = new_token(console.context, role="producer", tenant="acme")
    ops = new_token(console.context, role="ops")
    with pytest.raises(MulliganError, match=r"needs a token: give Client\(token=…\) or set MULL"):
        Client(console.url).submit("x", **JOB)
    with pytest.raises(MulliganError, match="rejected this token") as caught:
        Client(console.url, token=SECRET).submit("x", **JOB)
    assert SECRET not in f"{caught.value!r}"
    with pytest.raises(
        MulliganError, match=r"\(403\): this needs the role producer or admin, not ops"
    ):
        Client(console.url, token=ops).submit("x", **JOB)
    monkeypatch.setenv("MULLIGAN_TOKEN", producer)
    with Client(console.url) as client:
        handle = client.submit("x", **JOB)
        assert client.cancel(handle) == "cancelled"
        assert client.wait(handle).view.tenant == "acme"
        assert producer not in f"{client!r} {handle!r}"
    other = new_token(console.context, role="producer", tenant="other")
    missing = pytest.raises(BadInput, match=f"there is no job '{handle.id}'")
    with Client(console.url, token=other) as client, missing:
        client.wait(handle)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_token_without_a_console_is_a_mistake(kind: Any) -> None:
    with pytest.raises(BadInput, match="token: needs the console's URL"):
        kind("redis://127.0.0.1", token=SECRET)
    with pytest.raises(BadInput, match="token: needs the console's URL"):
        kind(token=SECRET)


@pytest.mark.parametrize(
    ("url", "token", "expected"),
    [
        ("http://", None, "is not a console's URL"),
        ("http://host:port", None, "is not a console's URL"),
        (f"http://me:{SECRET}@host", None, "a token goes into MULLIGAN_TOKEN"),
        (f"http://host/?token={SECRET}", None, "a token goes into MULLIGAN_TOKEN"),
        ("http://host", f"{SECRET}\r\nX-Other: 1", "has characters that no token has"),
    ],
)
def test_an_invalid_url_or_token_is_refused_without_showing_it(
    url: str, token: str | None, expected: str
) -> None:
    with Client(url, token=token) as client, pytest.raises(BadInput, match=expected) as caught:
        client.cancel("p00-x")
    assert SECRET not in str(caught.value)


# -- without Python --------------------------------------------------------------------------------


def test_the_readme_s_curl_works(settings: Callable[..., Settings]) -> None:
    page = (Path(__file__).resolve().parents[3] / "README.md").read_text("utf-8")
    block = page.partition("```bash\ncurl ")[2].partition("```")[0]
    submit, show = (shlex.split(f"curl {each}") for each in block.split("\ncurl "))
    configured = settings(runners={"small": {"kind": "scripted", "answers": ["{}"]}})
    with running_console(configured) as console, console.client() as http:
        body, as_json = submit[submit.index("--json") + 1], {"Content-Type": "application/json"}
        answer = http.post(urlsplit(submit[1]).path, content=body, headers=as_json)
        assert answer.status_code == 202, answer.text
        job_id = answer.json()["jobs"][0]["id"]
        found = http.get(urlsplit(show[1]).path.replace("ID", job_id)).json()
    assert (found["id"], found["task_type"]) == (job_id, "extract_person")


# -- proxies ---------------------------------------------------------------------------------------


def test_a_proxy_is_used_only_for_other_hosts(
    stub: Callable[..., Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, local = stub(CANCELLED), stub(CANCELLED)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    by_name = local.url.replace("127.0.0.1", "localhost")
    for url in (local.url, by_name, f"{local.url}/behind/a/prefix/"):
        with Client(url) as client:
            assert client.cancel("p00-x") == "cancelled"
    assert proxy.requests == []
    assert local.requests[-1] == ("POST", "/behind/a/prefix/api/jobs/p00-x/cancel")
    with Client("http://console.example:8700") as client:
        assert client.cancel("p00-x") == "cancelled"
    assert proxy.requests == [("POST", "http://console.example:8700/api/jobs/p00-x/cancel")]


# -- submissions -----------------------------------------------------------------------------------


def test_workspace_paths_are_refused_over_http(console: RunningConsole) -> None:
    with Client(console.url) as client:
        with pytest.raises(BadInput, match=r"^workspace\.path: files are not sent over HTTP"):
            client.submit("x", workspace=".", **JOB)
        with pytest.raises(BadInput, match=r"^jobs\[1\]\.workspace\.path: files are not sent"):
            client.submit_many(["x", {"prompt": "y", "workspace": {"path": "."}}], **JOB)
    assert console.context.ledger.jobs() == []


def test_a_problem_has_its_index_in_the_whole_batch(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given several requests: here one for every job or two."""
    monkeypatch.setattr(http_backend, "_BYTES", 500)
    jobs: list[Any] = [{"prompt": f"{i}"} for i in range(10)]
    jobs[7]["policy"] = {"max_attempts": 1}
    with Client(console.url) as client:
        with pytest.raises(BadInput, match=r"^jobs\[7\]\.policy\.max_attempts: must be 2 or more"):
            client.submit_many(jobs, **JOB)
        del jobs[7]["policy"]
        handles = client.submit_many(jobs, idempotency_key="again", **JOB)
        again = client.submit_many(jobs, idempotency_key="again", **JOB)
    assert [handle.id for handle in handles] == [handle.id for handle in again]
    assert {handle.seen for handle in again} == {True}


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [([], []), ([1], [1]), ([40, 40, 40], [2, 1]), ([200, 1], [1, 1]), ([1] * 7, [3, 3, 1])],
)
def test_a_batch_takes_as_few_requests_as_the_caps_allow(
    lengths: Sequence[int], parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_backend, "_BYTES", 100)
    monkeypatch.setattr(http_backend, "_JOBS", 3)
    split = list(http_backend._parts(["x" * length for length in lengths]))
    assert [len(part) for part in split] == parts


def test_a_model_is_named_only_if_its_module_is_allowed() -> None:
    from support.client_models import Person

    plain = open_console("http://localhost", None, {})
    assert set(plain.contract(Person)) == {"id", "schema"}
    known = open_console("http://localhost", None, {"model_modules": ["support.client_models"]})
    assert known.contract(Person)["model"] == "support.client_models:Person"
