"""`mulligan up` in a folder of its own, and its API."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2

_START_SECONDS = 90.0
_STOP_SECONDS = 40.0


class FleetError(Exception):
    """The fleet did not start, or did not answer."""


def environment(folder: Path) -> dict[str, str]:
    """Return this environment without settings of mulligan, and with the agent on its PATH."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MULLIGAN_", "PYTHON"))}
    return {
        **inherited,
        "PATH": f"{folder}{os.pathsep}{inherited.get('PATH', os.defpath)}",
        "MULLIGAN_HOME": str(folder / ".mulligan"),
        "MULLIGAN_CONSOLE_PORT": "0",
    }


def mulligan(*argv: str) -> list[str]:
    """Return the command line of this Python's mulligan."""
    return [sys.executable, "-P", "-m", "mulligan.console", *argv]


class Fleet:
    """Everything that `mulligan up` started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: list[str] = []
        # A session of its own: Ctrl-C is for the demonstration, which then stops the fleet.
        self._process = subprocess.Popen(
            mulligan("up", "--no-flower"),
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        Thread(target=self._read, daemon=True).start()
        self._client = httpx2.Client(timeout=30)

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._lines.extend(iter(self._process.stdout.readline, ""))

    @property
    def output(self) -> str:
        return "".join(self._lines)

    @property
    def url(self) -> str:
        """The address of the console."""
        return str(self._client.base_url)

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while "ready; Ctrl-C" not in self.output:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise FleetError(f"mulligan up is not ready:\n{self.output}")
            time.sleep(0.1)
        found = re.search(r"console +(http://\S+)", self.output)
        if found is None:
            raise FleetError(f"mulligan up names no console:\n{self.output}")
        self._client.base_url = httpx2.URL(found[1])

    def run(self, *argv: str) -> str:
        """Run a command of mulligan in the fleet's folder."""
        done = subprocess.run(
            mulligan(*argv),
            cwd=self.folder,
            env=environment(self.folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            command = " ".join(("mulligan", *argv))
            raise FleetError(f"{command} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def get(self, path: str) -> Any:
        """Ask the API. A console that restarts is asked again for a while."""
        for _ in range(40):
            with suppress(httpx2.TransportError):
                answer = self._client.get(path)
                if answer.is_success:
                    return answer.json()
                if answer.status_code < 500:
                    raise FleetError(f"GET {path}: {answer.status_code} {answer.text}")
            time.sleep(0.5)
        raise FleetError(f"GET {path}: no answer")

    def stop(self) -> None:
        """Stop everything; what does not stop in time is killed."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def running_fleet(folder: Path) -> Iterator[Fleet]:
    fleet = Fleet(folder)
    try:
        fleet.wait_until_ready()
        yield fleet
    finally:
        fleet.stop()
