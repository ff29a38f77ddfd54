"""The pages of loops in a real browser: what changes on them, and what their buttons do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browsing import ARTIFACTS, Tab
from playwright.sync_api import expect
from support.console_server import RunningConsole, running_console
from support.ledger_scenario import Scenario, SettingsMaker
from support.loops import LoopScenario, document, item

from mulligan.tasks.loops import change

LOOKS = ((1280, "light"), (390, "dark"))


@pytest.fixture
def console(settings: SettingsMaker) -> Iterator[RunningConsole]:
    """A console over an empty ledger. The tests do what its workers would do."""
    with running_console(settings(allow_inline=True)) as running:
        yield running


@pytest.fixture
def loops(console: RunningConsole) -> LoopScenario:
    return LoopScenario(Scenario(console.context.ledger, console.context.settings))


def test_a_loop_is_driven_from_its_page(
    console: RunningConsole, loops: LoopScenario, tab: Tab
) -> None:
    """Given a loop that was created, when it is started, then its items move on the page."""
    created = document(item("one"), item("two", "one"), item("three", "two"))
    change.create_loop(loops.context, created, by="ada")
    page = tab(f"{console.url}/loops")
    page.get_by_role("link", name="alpha", exact=True).click()
    expect(page.locator("#stream")).to_have_text("live")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("region", name="Status")).to_contain_text("running")
    loops.plan()
    row = page.get_by_role("row", name="one")
    expect(row.first).to_contain_text("running")
    loops.fails("one")
    loops.plan()
    expect(page.get_by_role("region", name="Status")).to_contain_text("blocked")
    expect(page.get_by_role("row", name="two").first).to_contain_text("dependency one failed")
    page.get_by_role("button", name="Skip one").click()
    page.get_by_label("Reason").fill("not needed")
    page.get_by_role("dialog").get_by_role("button", name="Skip").click()
    expect(page.locator("#notices")).to_contain_text("one was skipped")
    expect(page.get_by_role("row", name="one").first).to_contain_text("not needed")
    loops.plan()
    loops.passes("two")
    loops.plan()
    expect(page.get_by_role("region", name="Status")).to_contain_text("1 of 3")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Start")).to_be_visible()


def test_long_names_and_many_items_fit_the_screen(
    console: RunningConsole, loops: LoopScenario, tab: Tab
) -> None:
    name = "n" * 80
    names = [f"i{n}" + "x" * 70 for n in range(300)]
    after = [[] if n % 9 == 0 else [names[n - 1]] for n in range(300)]
    items = [item(each, *after[n], title="t" * 200) for n, each in enumerate(names)]
    loops.create(*items, name=name, auto_heal=True, budget={"day": {"tokens": 1000}})
    loops.plan(name)
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    for path in ("/loops", f"/loops/{name}"):
        page = tab(console.url + path)
        for width, scheme in LOOKS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{path} is {wide} px too wide at {width}"
            kind = "loops" if path == "/loops" else "loop"
            page.screenshot(path=ARTIFACTS / f"{kind}-{scheme}-{width}.png", full_page=True)
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("main")).to_contain_text("101 to 200 of 300")
