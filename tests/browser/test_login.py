"""Logging in, hidden texts, an empty ledger, and an unreachable ledger."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import ARTIFACTS, Tab
from playwright.sync_api import expect
from support.console_server import RunningConsole, new_token, running_console
from support.jobs import read_job
from support.ledger_scenario import SettingsMaker

from mulligan.tasks.jobs.submit import submit_jobs


@pytest.fixture
def console(settings: SettingsMaker) -> Iterator[RunningConsole]:
    """A console over an empty ledger, without workers."""
    with running_console(settings(allow_inline=True)) as running:
        yield running


def test_an_empty_ledger_explains_how_to_submit_jobs(console: RunningConsole, tab: Tab) -> None:
    page = tab(console.url)
    expect(page.get_by_role("main")).to_contain_text("No jobs in this window")
    expect(page.get_by_role("main")).to_contain_text("mulligan submit jobs.yaml")
    page.goto(f"{console.url}/jobs")
    expect(page.get_by_role("main")).to_contain_text("mulligan init")
    page.goto(f"{console.url}/escalations")
    expect(page.get_by_role("main")).to_contain_text("No open escalations")
    page.goto(f"{console.url}/failures")
    expect(page.get_by_role("main")).to_contain_text("No failures in this window")
    page.goto(f"{console.url}/cycles")
    expect(page.get_by_role("main")).to_contain_text("No cycles in the last 7 days")


def test_a_token_logs_in_and_may_hide_texts(console: RunningConsole, tab: Tab) -> None:
    job = read_job(
        {
            "task_type": "extract_person",
            "prompt": "A secret about Alice.",
            "runner": {"kind": "scripted", "answers": ["{}"]},
            "verifiers": ["json.object"],
        }
    )
    (accepted,) = submit_jobs(console.context.services.intake, [job])
    token = new_token(console.context, role="ops", name="night shift")
    page = tab(f"{console.url}/jobs", expected="403")
    expect(page).to_have_url(re.compile("/login"))
    page.get_by_label("Token").fill("mul_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("main")).to_contain_text("unknown, revoked or expired")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    page.goto(f"{console.url}/jobs/{accepted.id}")
    expect(page.get_by_role("main")).to_contain_text("your token may not read them")
    assert "secret" not in page.content()
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    expect(page.locator("#notices")).to_contain_text("Cancelled")
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(re.compile("/login"))


def test_a_missing_page_links_to_the_list(console: RunningConsole, tab: Tab) -> None:
    page = tab(f"{console.url}/jobs/p00-nothing", expected="404")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
    page.get_by_role("link", name="All jobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")


def test_an_unreachable_ledger_is_reported_and_retried(
    settings: SettingsMaker, tab: Tab, tmp_path: Path
) -> None:
    missing = f"redis+socket://{tmp_path}/missing.sock"
    with running_console(settings(broker_url=missing, submit_patience=0.2)) as console:
        page = tab(console.url, expected="503")
        expect(page.get_by_role("heading", level=1)).to_have_text("The ledger cannot be reached")
        expect(page.get_by_role("main")).to_contain_text("retries every 5 seconds")
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=ARTIFACTS / "ledger-unreachable-light-1280.png")
