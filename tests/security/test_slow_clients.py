"""Clients that send slowly, never end or do not read take nothing from the others.

The console is a process of its own, and every client a real socket.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from support.cli_process import Shell
from support.console_server import RunningConsole, new_token, running_console
from support.redis_server import RedisServer
from support.waiting import wait_for

from mulligan.workers.settings.model import Settings

#: The deadlines of this console, in seconds; a client that ends within PATIENCE was cut off by one.
HEAD, BODY, PATIENCE = "1s", "3s", 15.0
CONNECTIONS = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    found.start()
    try:
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def port(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a console process with short deadlines."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    folder: Path = tmp_path_factory.mktemp("console")
    shell = Shell(
        folder,
        {
            "MULLIGAN_BROKER_URL": server.url,
            "MULLIGAN_HOME": str(folder),
            "MULLIGAN_HEAD_TIMEOUT": HEAD,
            "MULLIGAN_BODY_TIMEOUT": BODY,
            "MULLIGAN_CONNECTIONS_CAP": str(CONNECTIONS),
            "MULLIGAN_REQUEST_CAP": "100000",
        },
    )
    process = shell.start("console", "--port", str(port))
    try:
        wait_for(lambda: answers(port), "the console")
        yield port
    finally:
        process.terminate()
        process.wait(30)


def answers(port: int) -> bool:
    """Whether /healthz answers within a second."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=1).status_code == 200
    except httpx2.HTTPError:
        return False


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def drip(client: socket.socket, text: bytes, port: int) -> bytes:
    """Send a byte every tenth of a second until the console closes. Return what it answered."""
    client.setblocking(False)
    started, place, answer = time.monotonic(), 0, b""
    while time.monotonic() - started < PATIENCE:
        with contextlib.suppress(BlockingIOError):
            try:
                client.send(text[place % len(text) :][:1])
                place += 1
                found = client.recv(65536)
            except (BrokenPipeError, ConnectionResetError):
                return answer
            if not found:
                return answer
            answer += found
        if place % 10 == 0:
            assert answers(port)
        time.sleep(0.1)
    raise AssertionError(f"still connected after {PATIENCE} s, {place} bytes")


HEAD_OF_POST = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_head_that_comes_byte_by_byte_is_cut_off(port: int) -> None:
    with connect(port) as client:
        answer = drip(
            client, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1000, port
        )
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the head of the request took over 1 s" in answer


def test_a_connection_that_says_nothing_is_closed(port: int) -> None:
    with connect(port) as client:
        assert client.recv(1000) == b""


@pytest.mark.parametrize(
    "head", [b"Content-Length: 90000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"]
)
def test_a_body_slower_than_the_rate_is_cut_off(port: int, head: bytes) -> None:
    with connect(port) as client:
        client.sendall(HEAD_OF_POST + head)
        answer = drip(client, b"1\r\n[\r\n" if b"chunked" in head else b"[", port)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body was slower than 1,000 bytes a second, or took over 3 s" in answer


def test_a_body_after_the_response_holds_nothing(port: int) -> None:
    """Given a request whose response needs no body, the client goes on sending it."""
    with connect(port) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n")
        assert drip(client, b"x", port).startswith(b"HTTP/1.1 200 ")


def test_a_body_over_the_cap_is_refused_before_it_is_read(port: int) -> None:
    with connect(port) as client:
        client.sendall(HEAD_OF_POST + b"Content-Length: 99999999\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_never_ends_stops_at_the_cap(port: int) -> None:
    with connect(port) as client:
        client.sendall(HEAD_OF_POST + b"Transfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(60):
                client.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        with contextlib.suppress(ConnectionError):
            assert client.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert answers(port)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /healthz HTTP/1.1\r\nX", HEAD_OF_POST + b"Content-Length: 90000\r\n\r\n"],
    ids=["nothing", "half a head", "half a request"],
)
def test_many_slow_clients_leave_room_for_others(port: int, sent: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * CONNECTIONS):
            client = stack.enter_context(connect(port))
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
        assert all(answers(port) for _ in range(5))


def test_a_reader_that_takes_nothing_is_cut_off(port: int) -> None:
    """Given responses that are never read, larger than what the kernels keep for the reader."""
    with connect(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with contextlib.suppress(OSError):
            client.settimeout(0.5)
            client.sendall(request * 2000)
        client.setblocking(False)

        def ended() -> bool:
            try:
                client.send(b"x")
            except BlockingIOError:
                return False
            except OSError:
                return True
            return False

        wait_for(ended, "the end of the connection")
    assert answers(port)


# -- listeners -------------------------------------------------------------------------------------


@pytest.fixture
def console(server: RedisServer, tmp_path: Path) -> Iterator[RunningConsole]:
    settings = Settings(
        broker_url=server.url, home=tmp_path, listeners_cap=5, listeners_per_caller=3
    )
    with running_console(settings) as found:
        yield found


def test_listeners_are_limited_for_each_caller_and_in_total(console: RunningConsole) -> None:
    one, other = (
        console.client(new_token(console.context, role="ops", name=name)) for name in ("a", "b")
    )
    with contextlib.ExitStack() as stack:

        def listen(client: httpx2.Client) -> httpx2.Response:
            return stack.enter_context(client.stream("GET", "/api/events"))

        assert [listen(one).status_code for _ in range(3)] == [200] * 3
        refused = listen(one)
        assert refused.status_code == 429
        assert "listeners_per_caller" in refused.read().decode()
        assert int(refused.headers["Retry-After"]) > 0
        assert [listen(other).status_code for _ in range(2)] == [200] * 2
        refused = listen(other)
        assert refused.status_code == 429
        assert "listeners_cap" in refused.read().decode()
        assert one.get("/healthz").status_code == 200
    wait_for(lambda: console.context.broadcast.count == 0, "the listeners to leave")
    with one.stream("GET", "/api/events") as again:
        assert again.status_code == 200
