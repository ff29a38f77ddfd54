"""Shared by the browser tests: a console with a filled ledger, and tabs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stage
from playwright.sync_api import Page, ViewportSize
from support.console_server import RunningConsole
from support.fleet import Fleet

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--disable-quic")  # fmt: skip
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
#: Read here, because a test sees no MULLIGAN_… variable.
ARTIFACTS = Path(
    os.environ.get("MULLIGAN_ARTIFACTS") or Path(__file__).parents[2] / ".artifacts"
).resolve()
#: Reports every violation of the content security policy on the console, which tests read.
WATCH = """document.addEventListener("securitypolicyviolation",
    (event) => console.error(`CSP ${event.violatedDirective} ${event.blockedURI}`));"""

Tab = Callable[..., Page]


@dataclass(frozen=True)
class Scene:
    """A filled ledger and a console that shows it."""

    fleet: Fleet
    console: RunningConsole
    filled: stage.Filled

    @property
    def url(self) -> str:
        return self.console.url

    def submit(self, *jobs: dict[str, Any]) -> list[str]:
        """Submit jobs through the HTTP API and return their ids."""
        with self.console.client() as client:
            answer = client.post("/api/jobs", json={"jobs": list(jobs)})
        assert answer.status_code == 202, answer.text
        return [job["id"] for job in answer.json()["jobs"]]
