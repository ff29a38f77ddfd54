"""An OpenAI-compatible server with limits, as a process: `python -m benchmarks.limited_server`.

It answers ``at_once`` requests at a time and refuses the rest with 429 and Retry-After, or it fails
with 503 for some seconds after its first request. ``GET /figures`` says what it has seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from benchmarks.rig import GOOD

_REASONS = {200: "OK", 429: "Too Many Requests", 503: "Service Unavailable"}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server can do."""

    at_once: int = 1_000_000
    #: How long one answer takes.
    seconds: float = 0.2
    retry_after: float | None = None
    #: How long it answers 503, counted from its first request.
    fails_for: float = 0.0


@dataclass(kw_only=True)
class Seen:
    """What the server has seen; 429 and 503 are refusals."""

    answered: int = 0
    refused: int = 0
    running: int = 0
    most_at_once: int = 0


class LimitedServer:
    """Keeps count; one event loop, so no locks."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.seen = Seen()
        self._first_request: float | None = None

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(_content_length(head))
                status, headers, body = await self._answer(head)
                writer.write(_response(status, headers, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> tuple[int, dict[str, str], object]:
        if head.startswith(b"GET /figures "):
            return 200, {}, asdict(self.seen)
        now = time.monotonic()
        if self._first_request is None:
            self._first_request = now
        if now - self._first_request < self.limits.fails_for:
            self.seen.refused += 1
            return 503, {}, {"error": {"message": "restarting", "type": "server_error"}}
        if self.seen.running >= self.limits.at_once:
            self.seen.refused += 1
            wait = self.limits.retry_after
            headers = {} if wait is None else {"Retry-After": f"{wait:g}"}
            return 429, headers, {"error": {"message": "rate limit", "type": "rate_limit_error"}}
        self.seen.running += 1
        self.seen.most_at_once = max(self.seen.most_at_once, self.seen.running)
        await asyncio.sleep(self.limits.seconds)
        self.seen.running -= 1
        self.seen.answered += 1
        return 200, {}, _completion()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _response(status: int, headers: dict[str, str], body: object) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(data)}", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + data


def _completion() -> dict[str, object]:
    message = {"role": "assistant", "content": GOOD}
    return {
        "id": "x", "object": "chat.completion", "created": 0, "model": "limited",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20},
    }  # fmt: skip


@contextmanager
def limited_server(limits: Limits) -> Iterator[str]:
    """Run the server in a process of its own and return its address, without ``/v1``."""
    argv = [sys.executable, "-m", "benchmarks.limited_server", json.dumps(asdict(limits))]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def read_figures(address: str) -> Seen:
    with urllib.request.urlopen(f"{address}/figures", timeout=10) as answer:  # noqa: S310 - loopback
        return Seen(**json.load(answer))


async def _serve(limits: Limits) -> None:
    handle = LimitedServer(limits).handle
    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("limits", type=json.loads, help="the fields of Limits as JSON")
    asyncio.run(_serve(Limits(**parser.parse_args().limits)))
