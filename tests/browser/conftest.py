"""A real browser, a real console and real workers, shared by a module's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)
from support.console_server import running_console
from support.fleet import running_fleet
from support.servers import missing

sys.path.insert(0, str(Path(__file__).parent))

import stage
from browsing import ARGUMENTS, CHROMIUM, DESKTOP, WATCH, Scene, Tab

#: Milliseconds to wait for an expected change on a busy computer.
PATIENCE = 30_000
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One per module. While it is open, no other event loop can run in this thread."""
    if not CHROMIUM.exists():
        missing(str(CHROMIUM), "apt-get install chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        yield found
        found.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Scene]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        stage.history(fleet, per_minute=4)
        filled = stage.fill(fleet)
        with running_console(stage.console_settings(fleet)) as console:
            yield Scene(fleet, console, filled)


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    """``tab("/jobs")`` opens a page. Errors and violations on its console fail the test."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def record(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    def make(url: str, *, expected: str | None = None, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(PATIENCE)
        context.add_init_script(WATCH)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: None if expected and expected in m.text else record(m))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield make
    for context in contexts:
        context.close()
    assert errors == []
