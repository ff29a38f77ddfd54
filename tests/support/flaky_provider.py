"""A provider of models that fails for as long as a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FlakyProvider(ThreadingHTTPServer):
    """Answers each call with ``{}``; while it fails, with one of these statuses after the other."""

    daemon_threads = True

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fails = True
        self._statuses = statuses
        #: The status of each answer.
        self.answers: list[int] = []

    def next_status(self) -> int:
        status = self._statuses[len(self.answers) % len(self._statuses)] if self.fails else 200
        self.answers.append(status)
        return status

    @property
    def name(self) -> str:
        """The name of its breaker."""
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def runner(self) -> dict[str, Any]:
        return {"kind": "openai", "base_url": f"http://{self.name}/v1", "model": "small"}


class _Handler(BaseHTTPRequestHandler):
    server: FlakyProvider

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = self.server.next_status()
        message = {"role": "assistant", "content": "{}"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        good = {"model": "small", "choices": choices}
        data = json.dumps(good if status == 200 else {"error": {"message": "busy"}}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def flaky_provider(*statuses: int) -> Iterator[FlakyProvider]:
    with FlakyProvider(*statuses) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
