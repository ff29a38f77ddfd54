"""The board of a loop in a real browser: its creation, a failure that heals, and its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browsing import Tab
from playwright.sync_api import Locator, Page, expect
from support.console_server import RunningConsole, running_console
from support.jobs import answer
from support.ledger_scenario import Scenario, SettingsMaker
from support.loops import LoopScenario, item
from support.settlements import escalates

#: A browser says so of every answer that is an error, also of one that the page expects.
REFUSED = "status of 422"
DOCUMENT = """
loop:
  name: alpha
  runner: {kind: scripted, answers: ["{}"]}
  budget: {day: {tokens: 1000}, item: {tokens: 100}}
items:
  - {id: one, prompt: Do one., verifiers: [json.object]}
  - {id: two, prompt: Do two., verifiers: [json.object], depends_on: [one]}
"""
THREE = "{id: three, prompt: Do three., verifiers: [json.object], depends_on: [two]}"


@pytest.fixture
def console(settings: SettingsMaker) -> Iterator[RunningConsole]:
    """A console over an empty ledger. The tests do what its workers would do."""
    with running_console(settings(allow_inline=True)) as running:
        yield running


@pytest.fixture
def loops(console: RunningConsole) -> LoopScenario:
    return LoopScenario(Scenario(console.context.ledger, console.context.settings))


def column(page: Page, state: str) -> Locator:
    return page.get_by_role("region", name=state, exact=False).and_(page.locator(f".{state}"))


def create(page: Page) -> None:
    """Create the loop in the dialog, after a mistake that is shown there."""
    page.get_by_role("button", name="Create loop").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Document").fill(DOCUMENT.replace("[one]", "[onf]"))
    dialog.get_by_role("button", name="Check").click()
    expect(dialog.get_by_role("alert")).to_contain_text("two depends on onf, which does not exist")
    dialog.get_by_label("Document").fill(DOCUMENT)
    dialog.get_by_role("button", name="Check").click()
    expect(dialog.get_by_role("status")).to_contain_text("2 items, in this order: one, two.")
    expect(dialog.get_by_role("status")).to_contain_text("Nothing was created yet.")
    dialog.get_by_role("button", name="Create and start").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("alpha")


def test_a_loop_is_driven_from_its_creation_to_its_end(
    console: RunningConsole, loops: LoopScenario, tab: Tab
) -> None:
    """Given an empty ledger, when all is done on the page, then the loop heals and completes."""
    page = tab(f"{console.url}/loops", expected=REFUSED)
    create(page)
    expect(page.locator("#stream")).to_have_text("live")
    loops.plan()
    claim = loops.claim("one")
    expect(column(page, "running")).to_contain_text("healthy")
    expect(page.get_by_role("region", name="Budget")).to_contain_text("reserved now 100")
    loops.context.ledger.store_output(claim.lease, answer())
    loops.settle(claim, escalates(claim, "max_attempts"))
    loops.plan()
    expect(column(page, "failed")).to_contain_text("max attempts")
    expect(column(page, "blocked")).to_contain_text("← one")
    column(page, "failed").get_by_text("actions").click()
    page.get_by_role("button", name="Heal one").first.click()
    expect(page.locator("#notices")).to_contain_text("one: healing began")
    healed = page.get_by_role("region", name="Healed")
    expect(healed).to_contain_text("change strategy")
    expect(healed).to_contain_text("→ ◷ not ended yet")
    loops.plan()
    loops.passes("one")
    loops.plan()
    expect(healed).to_contain_text("→ ✓ passed")
    expect(column(page, "passed")).to_contain_text("one")
    page.get_by_role("button", name="Add item").click()
    page.get_by_role("textbox", name="Item").fill(THREE)
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.locator("#notices")).to_contain_text("Added to alpha")
    for each in ("two", "three"):
        loops.plan()
        loops.passes(each)
    loops.plan()
    expect(page.get_by_role("region", name="Status")).to_contain_text("completed")
    expect(page.get_by_role("region", name="Status")).to_contain_text("3 of 3")


def test_the_graph_can_be_read_with_a_keyboard_while_it_changes(
    console: RunningConsole, loops: LoopScenario, tab: Tab
) -> None:
    loops.create(*(item(f"i{n:03}", *([f"i{n - 1:03}"] if n % 20 else [])) for n in range(300)))
    page = tab(f"{console.url}/loops/alpha")
    expect(page.locator("#stream")).to_have_text("live")
    frame, node = page.locator("#graph-frame"), page.locator("#node-i239")
    node.focus()
    left = frame.evaluate("each => each.scrollLeft")
    assert left > 1000, "the last item of a chain is far to the right"
    loops.plan()
    expect(page.locator("#node-i000")).to_have_attribute("aria-label", "i000: running, attempt 1")
    expect(node).to_be_focused()
    assert frame.evaluate("each => each.scrollLeft") == left
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("i239")
    page.get_by_role("link", name="i238").click()
    expect(page.get_by_role("region", name="Attempts")).to_contain_text("dependency i220")
