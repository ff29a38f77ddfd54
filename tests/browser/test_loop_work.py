"""The work of a loop in a repository in a real browser: changes, rollback, a live transcript."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import ARTIFACTS, Tab
from playwright.sync_api import expect
from support.coding_console import console_of
from support.coding_loop import LOOP, CodingLoop, item
from support.console_server import RunningConsole
from support.git_repositories import UserRepository

from mulligan.tasks.ports.ledger import Entry

pytestmark = pytest.mark.real_models("command")
LOOKS = ((1280, "light"), (390, "dark"))
CODE = "write(f'{item}.txt', 'done\\n' + 'x' * 300 + '\\n')\nprint('made it')"


@pytest.fixture
def fleet(tmp_path: Path) -> CodingLoop:
    found = CodingLoop(tmp_path, UserRepository.make(tmp_path / "user").path)
    assert set(found.run_all(item("A"), item("B", "A"), code=CODE).values()) == {"passed"}
    return found


@pytest.fixture
def console(fleet: CodingLoop) -> Iterator[RunningConsole]:
    running = RunningConsole(console_of(fleet))
    running.start()
    yield running
    running.stop()


def test_work_is_looked_at_and_undone(console: RunningConsole, fleet: CodingLoop, tab: Tab) -> None:
    page = tab(f"{console.url}/loops/{LOOP}")
    page.get_by_role("link", name="Work of B").click()
    expect(page.get_by_role("region", name="Changes")).to_contain_text("+done")
    page.get_by_role("link", name=LOOP).click()
    table = page.get_by_role("region", name="Checkpoints")
    expect(table).to_contain_text("the beginning")
    table.get_by_role("button", name="Roll back").last.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The work of A, B is undone")
    dialog.get_by_role("button", name="Close").click()
    assert fleet.loop.rollback == ""
    table.get_by_role("button", name="Roll back").first.click()
    dialog.get_by_role("button", name="Roll back").click()
    expect(page.locator("#notices")).to_contain_text("Rollback requested")
    expect(page.get_by_role("region", name="Status")).to_contain_text("A worker makes it")
    expect(table.get_by_role("button", name="Roll back")).to_have_count(0)
    fleet.sweep()
    expect(table).to_contain_text("rollback of 1")
    expect(page.get_by_role("region", name="Status")).not_to_contain_text("A worker makes it")


def test_a_transcript_grows_while_its_agent_works(
    console: RunningConsole, fleet: CodingLoop, tab: Tab
) -> None:
    fleet.add(item("C"))
    fleet.run(until=lambda: fleet.states(LOOP)["C"] == "running")
    job_id = fleet.snapshot.record("C").job_id
    fleet.ledger.claim(Entry("attempt", job_id, 1), worker="host:1")

    def emit(seq: int, text: str, **fields: object) -> None:
        event = {"seq": seq, "at": 1.0, "kind": "action", "name": "Edit", "text": text, **fields}
        fleet.ledger.live_transcripts.add(job_id, 1, [json.dumps(event)])

    for seq in range(1, 13):
        emit(seq, f"file{seq}.py")
    page = tab(f"{console.url}/loops/{LOOP}")
    tail = page.get_by_role("list", name="What the agent did last")
    expect(tail.get_by_role("listitem")).to_have_count(10)
    emit(13, "<b>bold\u202e")
    expect(tail.get_by_role("listitem").last).to_contain_text("<b>bold⟨U+202E⟩")
    expect(tail.get_by_role("listitem")).to_have_count(10)
    page.get_by_role("link", name="all of it").click()
    session = page.get_by_role("list", name="What the agent did")
    expect(session).to_contain_text("file1.py")
    expect(page.locator("#stream")).to_have_text("live")
    emit(14, "two\nlines <b>\u202e", kind="observation", failed=True)
    row = session.get_by_role("listitem").nth(13)
    expect(row).to_contain_text("observation Edit failed")
    expect(row.locator("pre")).to_have_text("two\nlines <b>⟨U+202E⟩")
    fleet.ledger.cancel(job_id)
    expect(page.get_by_role("main")).to_contain_text("The agent has ended.")
    expect(page.locator("#stream")).to_have_count(0)


def test_the_pages_fit_the_screen(console: RunningConsole, fleet: CodingLoop, tab: Tab) -> None:
    job_id = fleet.snapshot.record("A").job_id
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    for name, path in (
        ("work", f"/loops/{LOOP}"),
        ("checkpoints", f"/loops/{LOOP}/checkpoints"),
        ("diff", f"/loops/{LOOP}/items/A"),
        ("session", f"/loops/{LOOP}/items/A/transcripts/{job_id}/1"),
    ):
        page = tab(console.url + path)
        for width, scheme in LOOKS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{path} is {wide} px too wide at {width}"
            page.screenshot(path=ARTIFACTS / f"{name}-{scheme}-{width}.png", full_page=True)
