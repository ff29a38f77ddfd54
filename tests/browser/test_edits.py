"""Edits on the page: a person sees the changes and the effect of an edit, and decides."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from browsing import ARTIFACTS, Tab
from playwright.sync_api import Browser, Page, expect
from ruamel.yaml import YAML
from support.console_server import RunningConsole, running_console
from support.redis_server import RedisServer

from mulligan.console.http.routes.edit_routes import edit_engine
from mulligan.workers.settings.model import Settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "edits"
LOOKS: tuple[tuple[int, Literal["light", "dark"]], ...] = (
    (1280, "light"),
    (1280, "dark"),
    (390, "light"),
    (390, "dark"),
)


@dataclass(frozen=True)
class EditsPage:
    """A console with the configuration example, processed up to the reviews."""

    console: RunningConsole
    tree: Path
    session: str

    @property
    def url(self) -> str:
        return f"{self.console.url}/edits/{self.session}"

    def work(self) -> None:
        """Process the approved edits, as the edit worker does."""
        engine = edit_engine(self.console.context)
        while engine.work(self.session).phase != "done":
            pass


def _read(name: str) -> Any:
    return YAML(typ="safe").load(EXAMPLES / "config" / name)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[EditsPage]:
    _ = browser  # must start first: see its fixture
    folder = tmp_path_factory.mktemp("edits")
    tree = Path(shutil.copytree(EXAMPLES / "config" / "tree", folder / "tree"))
    server = RedisServer(folder / "redis")
    server.start()
    settings = Settings(
        broker_url=server.url,
        home=folder / "home",
        allow_inline=True,
        workspaces={"shop": tree},
        rate_limit=100_000,
    )
    try:
        with running_console(settings) as console, console.client() as client:
            body = {"plan": _read("plan.yaml"), "suite": _read("suite.yaml"), "workspace": "shop"}
            answer = client.post("/api/edits", json=body)
            assert answer.status_code == 202, answer.text
            found = EditsPage(console, tree, answer.json()["session"])
            found.work()
            yield found
    finally:
        server.kill()


def expect_notice(page: Page, text: str) -> None:
    expect(page.locator("#notices")).to_contain_text(text)


def test_every_page_of_edits_fits_its_screen(backend: EditsPage, tab: Tab) -> None:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    pages = {"edits": "", "edit-session": f"/{backend.session}",
             "edit-review": f"/{backend.session}/m5",
             "edit-rejected": f"/{backend.session}/m2"}  # fmt: skip
    page = tab(backend.console.url)
    for name, path in pages.items():
        page.goto(f"{backend.console.url}/edits{path}")
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        for width, scheme in LOOKS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{name}: {wide} px too wide at {width}"
            page.screenshot(path=ARTIFACTS / f"{name}-{scheme}-{width}.png", full_page=True)


def test_edits_are_reviewed_and_rolled_back(backend: EditsPage, tab: Tab) -> None:
    page = tab(f"{backend.console.url}/edits")
    # Pending edits are at the top and can be reached by keyboard.
    waiting = page.get_by_role("region", name="Waiting for review")
    link = waiting.get_by_role("link", name=re.compile("^Review m5"))
    link.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{backend.url}/m5")
    expect(page.locator("#diff .add")).to_contain_text('+class = "PlanAndAct"')
    expect(page.locator("#diff .del")).to_contain_text('-class = "SingleTurn"')
    expect(page.get_by_role("main")).to_contain_text("it should plan first")
    # The effect was measured on a copy.
    effect = page.get_by_role("region", name="Measured effect")
    expect(effect.get_by_role("row", name=re.compile("reasoning.*target"))).to_be_visible()
    expect(effect).to_contain_text("no_improvement")

    # An approved edit must still pass the gate; the result appears without a reload.
    page.evaluate("window.stays = true")
    page.locator("#approve").focus()
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Note").fill("worth a try")
    page.keyboard.press("Enter")
    expect_notice(page, "m5 approved")
    expect(page.locator("#part")).to_contain_text("continues")
    backend.work()
    expect(page.locator("#part")).to_contain_text("no improvement")
    assert page.evaluate("window.stays === true")
    assert "SingleTurn" in (backend.tree / "agents.toml").read_text()

    # A rejection needs a reason.
    page.goto(f"{backend.url}/m6")
    page.get_by_role("button", name="Reject").click()
    dialog = page.get_by_role("dialog", name="Reject")
    dialog.get_by_role("button", name="Reject").click()
    expect(dialog).to_be_visible()
    dialog.get_by_label("Reason").fill("models are trained elsewhere")
    dialog.get_by_role("button", name="Reject").click()
    expect_notice(page, "m6 rejected")
    expect(page.locator("#part")).to_contain_text("models are trained elsewhere")

    # A kept edit can be rolled back.
    page.goto(f"{backend.url}/m1")
    expect(page.get_by_role("region", name="Measured effect")).to_contain_text("+0.350")
    page.get_by_role("button", name="Roll back").click()
    dialog = page.get_by_role("dialog", name="Roll back")
    dialog.get_by_role("button", name="Roll back").click()
    expect_notice(page, "m1 rolled back")
    expect(page.locator("#part")).to_contain_text("rolled back")
    assert "temperature = 0.9" in (backend.tree / "agents.toml").read_text()
    page.goto(backend.url)
    page.get_by_role("button", name="Roll back all").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect_notice(page, f"Session {backend.session} rolled back")
    original = EXAMPLES / "config" / "tree" / "agents.toml"
    assert (backend.tree / "agents.toml").read_bytes() == original.read_bytes()
