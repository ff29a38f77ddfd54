"""`mulligan up` in a folder of its own, and its API."""

from __future__ import annotations

import re
import time
from threading import Thread
from typing import Any

import httpx2
import psutil

from support.cli_process import Shell
from support.waiting import wait_for


class RunningStack:
    """`mulligan up` and its API. A console that was killed is asked again until it is back."""

    def __init__(self, shell: Shell) -> None:
        self.lines: list[str] = []
        self.process = shell.start("up", "--no-flower")
        Thread(target=self._read, daemon=True).start()
        wait_for(lambda: "ready; Ctrl-C" in "".join(self.lines), "the stack", seconds=120)
        found = re.search(r"console +(http://\S+)", "".join(self.lines))
        assert found is not None
        self.url = found[1]

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def request(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Any:
        headers = {"Idempotency-Key": key} if key is not None else {}
        deadline = time.monotonic() + 90
        while True:
            try:
                answer = httpx2.request(
                    method, f"{self.url}{path}", json=body, headers=headers, timeout=30
                )
            except httpx2.TransportError:
                if time.monotonic() > deadline:
                    raise
            else:
                if answer.is_success:
                    return answer.json()
                if answer.status_code < 500 or time.monotonic() > deadline:
                    raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text}")
            time.sleep(0.3)

    def state(self, path: str) -> str:
        time.sleep(0.3)
        return str(self.request("GET", path)["state"])

    def children(self) -> list[psutil.Process]:
        """Return the processes that `up` started and replaces: the workers, the console, Redis."""
        return psutil.Process(self.process.pid).children()
