"""Call OpenAI-compatible servers under a firm deadline.

The SDK's timeout is per read: a server that sends a byte now and then never exceeds it. Cancelling
a coroutine stops connecting, sending and reading, and closes the socket. A process therefore has
one event loop in its own thread, which makes the calls of all threads, and one client per
(base_url, key).
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import cache
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from mulligan.tasks.ports.cancellation import current

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Result = TypeVar("Result")
#: Seconds that the loop may be busy with other calls when a deadline passes.
_LOOP_SLACK = 10.0
_REMEMBERED_CLIENTS = 32
#: Servers without keys (llama.cpp, vLLM, Ollama) ignore it. The SDK requires a key and would
#: otherwise send the environment's OPENAI_API_KEY to any base_url.
_NO_KEY = "none"


class _Process:
    """The loop and the clients of this process. Only the loop's thread uses the clients."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.clients: OrderedDict[tuple[str, str], AsyncOpenAI] = OrderedDict()

    def running_loop(self) -> asyncio.AbstractEventLoop:
        _register_reset()
        with self.lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                Thread(target=self.loop.run_forever, name="mulligan-openai", daemon=True).start()
            return self.loop

    def client(self, base_url: str, key: str) -> AsyncOpenAI:
        client = self.clients.pop((base_url, key), None) or _new_client(base_url, key)
        self.clients[base_url, key] = client
        while len(self.clients) > _REMEMBERED_CLIENTS:
            self.clients.popitem(last=False)  # it closes itself after its last call
        return client


def _new_client(base_url: str, key: str) -> AsyncOpenAI:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    # The queue alone retries, and ``within`` sets the deadline, so the SDK does neither.
    return AsyncOpenAI(
        base_url=base_url,
        api_key=key,
        max_retries=0,
        timeout=None,
        # A proxy from the environment cannot reach this host's loopback.
        http_client=DefaultAsyncHttpxClient(trust_env=False) if is_loopback(base_url) else None,
    )


def is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost")


_process = _Process()


def _reset_after_fork() -> None:
    """Forget the parent's loop: a forked child has the object but not its thread."""
    global _process
    _process = _Process()


@cache
def _register_reset() -> None:
    """Reset every forked child. Children inherit this, so it is registered once."""
    os.register_at_fork(after_in_child=_reset_after_fork)


def load() -> None:
    """Import the SDK now: a process that never calls such a server does not pay for it."""
    import openai.resources.chat  # noqa: F401


def within(seconds: float, call: Coroutine[Any, Any, Result]) -> Result:
    """Return the call's result, or raise TimeoutError on time, whatever the server does."""

    async def limited() -> Result:
        async with asyncio.timeout(seconds):
            return await call

    future = asyncio.run_coroutine_threadsafe(limited(), _process.running_loop())
    try:
        with current().stopping(future.cancel):
            return future.result(seconds + _LOOP_SLACK)
    except CancelledError:
        raise TimeoutError from None
    except BaseException:
        future.cancel()  # a worker that stops leaves no paid call running
        raise


@dataclass(frozen=True)
class Response:
    """The body and the headers of a 2xx."""

    text: str
    headers: Mapping[str, str]


async def complete(base_url: str, key: str | None, body: Mapping[str, Any]) -> Response:
    """POST ``/chat/completions`` once; return a 2xx or raise the SDK's exceptions."""
    completions: Any = _process.client(base_url, key or _NO_KEY).chat.completions
    response = await completions.with_raw_response.create(**body)
    return Response(response.http_response.text, response.http_response.headers)
