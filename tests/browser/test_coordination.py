"""Coordination in a real browser: a denial is overruled, an item is held, a cycle is drawn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browsing import Tab
from playwright.sync_api import ViewportSize, expect
from support.console_server import RunningConsole, running_console
from support.ledger_scenario import Scenario, SettingsMaker
from support.loops import LoopScenario, item

from mulligan.tasks.coordination.deadlocks import run_coordination

PHONE: ViewportSize = {"width": 390, "height": 844}


@pytest.fixture
def console(settings: SettingsMaker) -> Iterator[RunningConsole]:
    """A console over an empty ledger. The tests do what its workers would do."""
    with running_console(settings(allow_inline=True)) as running:
        yield running


@pytest.fixture
def loops(console: RunningConsole) -> LoopScenario:
    return LoopScenario(Scenario(console.context.ledger, console.context.settings))


def test_a_denial_is_overruled_and_the_item_runs(
    console: RunningConsole, loops: LoopScenario, tab: Tab
) -> None:
    loops.create(item("one", touches=["x.py"]), item("two", touches=["*.py"]))
    loops.plan()
    page = tab(f"{console.url}/loops/alpha")
    expect(page.locator(".card.ready")).to_contain_text("alpha/one has its files")
    page.get_by_role("link", name="Coordination").click()
    expect(page.locator("#stream")).to_have_text("live")
    expect(page.get_by_role("region", name="Files")).to_contain_text("alpha/two *.py")
    decisions = page.get_by_role("region", name="Decisions")
    expect(decisions).to_contain_text("alpha/two: it waits for *.py: alpha/one changes it")
    decisions.get_by_role("button", name="Overrule").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Then alpha/two need not wait for the files.")
    dialog.get_by_role("button", name="Close").click()
    assert loops.read().snapshot.orders == {}
    decisions.get_by_role("button", name="Overrule").click()
    dialog.get_by_role("button", name="Overrule").click()
    expect(page.locator("#notices")).to_contain_text("alpha/two need not wait for the files")
    expect(decisions).to_contain_text("overruled by loopback")
    assert loops.admitted() == ["two"]
    expect(decisions).to_contain_text("alpha/two: it got a slot")
    expect(page.get_by_role("region", name="Files")).to_contain_text("alpha/two")


def test_an_item_is_held_and_goes_on(
    console: RunningConsole, loops: LoopScenario, tab: Tab
) -> None:
    loops.create(item("one", waits_for=["ready"]))
    loops.plan()
    page = tab(f"{console.url}/loops/alpha/items/one")
    page.get_by_role("button", name="Hold").click()
    expect(page.locator("#notices")).to_contain_text("one is held")
    expect(page.get_by_role("region", name="Attempts")).to_contain_text("held, by loopback")
    page.get_by_role("button", name="Usual rules").click()
    expect(page.get_by_role("button", name="Hold")).to_be_visible()
    page.get_by_role("button", name="Do not wait").click()
    expect(page.get_by_role("region", name="Attempts")).to_contain_text("does not wait")
    assert loops.admitted() == ["one"]


def test_a_cycle_is_drawn_until_it_is_broken(
    console: RunningConsole, loops: LoopScenario, tab: Tab
) -> None:
    waits = {"alpha": "beta/x", "beta": "gamma/x", "gamma": "alpha/x"}
    for name, wait in waits.items():
        loops.create(item("x", wait), name=name)
    for name in waits:
        loops.plan(name)
    page = tab(f"{console.url}/coordination", viewport=PHONE, color_scheme="dark")
    expect(page.get_by_role("region", name="Deadlock")).to_contain_text("it will not wait for")
    expect(page.locator(".waits .node.cycle")).to_have_count(3)
    expect(page.get_by_role("list", name="Who waits for whom")).to_contain_text("▲ cycle")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    run_coordination(loops.context)
    expect(page.get_by_role("region", name="Deadlock")).to_have_count(0)
    expect(page.locator(".waits .node.cycle")).to_have_count(0)
    page.get_by_role("button", name="Give off event").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Event").fill("ready")
    dialog.get_by_role("button", name="Give off").click()
    expect(page.get_by_role("region", name="Events")).to_contain_text("ready by loopback")
