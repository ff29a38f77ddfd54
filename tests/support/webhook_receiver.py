"""A receiver of webhooks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """A real HTTP server that records requests and sends the given statuses."""

    server: ThreadingHTTPServer
    requests: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    #: While set, requests to /slow are not answered.
    hold: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook/token-in-the-path"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request["body"] for request in self.requests]

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        headers = dict(handler.headers)
        self.requests.append(
            {"path": handler.path, "headers": headers, "raw": body, "body": json.loads(body)}
        )
        if "slow" in handler.path:
            self.hold.wait(30)
        status = self.statuses.pop(0) if self.statuses else 204
        handler.send_response(status)
        if 300 <= status < 400:
            handler.send_header("Location", self.url + "/other")
        handler.end_headers()


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.handle(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Receiver(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        found.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()
