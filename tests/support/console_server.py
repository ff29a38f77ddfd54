"""The console for tests: in this process for requests, as a real server for streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from fastapi import FastAPI
from starlette.testclient import TestClient

from mulligan.console.app import create_console
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.server import ConsoleServer, listen
from mulligan.workers.settings.model import Settings
from support.waiting import wait_for


def client_of(context: ConsoleContext, token: str | None = None, **options: Any) -> TestClient:
    """Return a client of a console in this process, which sees it as a local client."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return TestClient(
        _console_of(context),
        base_url="http://localhost",
        client=("127.0.0.1", 50000),
        headers=headers,
        follow_redirects=False,
        **options,
    )


_newest: list[tuple[ConsoleContext, FastAPI]] = []


def _console_of(context: ConsoleContext) -> FastAPI:
    """Return the console of a context: the clients of a test share it, as real ones do."""
    if not _newest or _newest[0][0] is not context:
        _newest[:] = [(context, create_console(context))]
    return _newest[0][1]


def new_token(context: ConsoleContext, **fields: Any) -> str:
    """Create a token and return its text: ``new_token(context, role="ops", tenant="acme")``."""
    return context.tokens.create(**fields)[1]


def get_json(client: TestClient, path: str, **params: Any) -> dict[str, Any]:
    """Return the JSON object of a GET request that must succeed."""
    response = client.get(path, params=params)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def post_json(client: TestClient, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    """Return the JSON object of a POST request that must end with this status."""
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def error_of(response: Any) -> tuple[int, str]:
    """Return a refusal's status and error code."""
    return response.status_code, response.json()["error"]["code"]


class RunningConsole:
    """A real console server in a thread of this process."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context
        self._socket = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.server = ConsoleServer(context)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.server.run(sockets=[self._socket])

    def start(self) -> None:
        self._thread.start()
        wait_for(lambda: self.server.started, "the console to listen")

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(20)
        self._socket.close()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def client(self, token: str | None = None) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=20, trust_env=False)


@contextmanager
def running_console(settings: Settings) -> Iterator[RunningConsole]:
    """Run a console with these settings on a free port."""
    console = RunningConsole(open_context(settings))
    console.start()
    try:
        yield console
    finally:
        console.stop()
