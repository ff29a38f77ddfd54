"""`make screenshots`: photograph the overview and a job's story for docs/operations.md.

A new embedded Redis, real workers and a console run scripted jobs, as in the browser tests.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Literal

import stage
from browsing import ARGUMENTS, CHROMIUM, DESKTOP
from playwright.sync_api import Browser, expect, sync_playwright
from support.console_server import running_console
from support.fleet import running_fleet

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    os.environ["MULLIGAN_PRICES"] = stage.PRICES
    if not CHROMIUM.exists():
        sys.exit(f"{CHROMIUM} is missing: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="ms-") as folder, running_fleet(Path(folder)) as fleet:
        stage.history(fleet, per_minute=70)
        filled = stage.fill(fleet, scale=24)
        with (
            running_console(stage.console_settings(fleet)) as console,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(
                executable_path=str(CHROMIUM), args=list(ARGUMENTS)
            )
            save(browser, f"{console.url}/", "overview", scheme="light")
            save(browser, f"{console.url}/jobs/{filled.repaired}", "story", scheme="dark")
            browser.close()


def save(browser: Browser, url: str, name: str, *, scheme: Literal["light", "dark"]) -> None:
    """Save the whole page as it looks once the event stream is connected."""
    page = browser.new_page(viewport=DESKTOP, color_scheme=scheme)
    page.goto(url)
    expect(page.locator("#stream")).to_have_text("live")
    path = ROOT / "docs" / "images" / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    page.close()
    sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
