"""One event loop and one client per (base_url, key) in a process, under a deadline that holds.

The SDK's timeout is per read: a server that sends a byte now and then is never late. Cancelling a
coroutine ends connecting, sending and reading alike, and closes the socket; hence a loop in a
thread of its own, to which any number of calling threads hand their calls.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Result = TypeVar("Result")
#: How long the loop may be busy with other calls when a deadline passes.
_LOOP_SLACK = 10.0
_REMEMBERED_CLIENTS = 32
#: Servers without keys (llama.cpp, vLLM, Ollama) ignore it; the SDK insists on one, and would
#: otherwise send the ambient OPENAI_API_KEY to whatever base_url says.
_NO_KEY = "none"


class _Process:
    """The loop and the clients of this process. Clients are touched on the loop's thread only."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.clients: OrderedDict[tuple[str, str], AsyncOpenAI] = OrderedDict()

    def running_loop(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                Thread(target=self.loop.run_forever, name="mulligan-openai", daemon=True).start()
            return self.loop

    def client(self, base_url: str, key: str) -> AsyncOpenAI:
        client = self.clients.pop((base_url, key), None) or _new_client(base_url, key)
        self.clients[base_url, key] = client
        while len(self.clients) > _REMEMBERED_CLIENTS:
            self.clients.popitem(last=False)  # closes itself once its last call is over
        return client


def _new_client(base_url: str, key: str) -> AsyncOpenAI:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    loopback = urlsplit(base_url).hostname in ("127.0.0.1", "::1", "localhost")
    # One retry authority: the queue's. The deadline is ours too, so the SDK has none.
    return AsyncOpenAI(
        base_url=base_url,
        api_key=key,
        max_retries=0,
        timeout=None,
        # A proxy from the environment cannot reach this host's own loopback.
        http_client=DefaultAsyncHttpxClient(trust_env=False) if loopback else None,
    )


_process = _Process()


def _forget() -> None:
    """A forked child has the parent's loop object but not its thread."""
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_forget)


def load() -> None:
    """Import the SDK now. Nobody who asks no such server pays for it."""
    import openai.resources.chat  # noqa: F401


def within(seconds: float, call: Coroutine[Any, Any, Result]) -> Result:
    """The call's result, or TimeoutError once the time is up, whatever the server does."""

    async def limited() -> Result:
        async with asyncio.timeout(seconds):
            return await call

    future = asyncio.run_coroutine_threadsafe(limited(), _process.running_loop())
    try:
        return future.result(seconds + _LOOP_SLACK)
    except CancelledError:
        raise TimeoutError from None
    except BaseException:
        future.cancel()  # a worker told to stop must not leave a paid call running
        raise


async def complete(base_url: str, key: str | None, body: Mapping[str, Any]) -> str:
    """POST ``/chat/completions`` once; the raw text of a 2xx, the SDK's own exceptions else."""
    completions: Any = _process.client(base_url, key or _NO_KEY).chat.completions
    response = await completions.with_raw_response.create(**body)
    text: str = response.http_response.text
    return text
