"""The page in a real browser, with real workers."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import quote

import pytest
import stage
from browsing import ARTIFACTS, Scene, Tab
from playwright.sync_api import Page, expect
from ruamel.yaml import YAML
from support.provider_calls import submit_for

from mulligan.tasks.ports.ledger import Entry


def mark(page: Page) -> None:
    """Leave a mark that a reload would remove."""
    page.evaluate("window.stays = true")


def was_not_reloaded(page: Page) -> bool:
    return bool(page.evaluate("window.stays === true"))


def expect_notice(page: Page, text: str) -> None:
    expect(page.locator("#notices")).to_contain_text(text)


# -- at a glance -----------------------------------------------------------------------------------


def test_the_overview_answers_the_four_questions(scene: Scene, tab: Tab) -> None:
    page = tab(scene.url)
    # Are we healthy?
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("degraded"))
    expect(page.locator(".status")).to_contain_text("1 breaker open")
    # What needs me?
    needs = page.get_by_role("region", name=re.compile("needs attention", re.I))
    expect(needs).to_contain_text("schema_invalid")
    expect(needs).to_contain_text("openai-eu")
    # What is running?
    queues = page.get_by_role("region", name="Queues")
    expect(queues.get_by_role("row", name=re.compile("^attempt"))).to_be_visible()
    # What is failing, and why?
    why = page.get_by_role("region", name="Why attempts fail")
    expect(why).to_contain_text("schema_invalid")
    expect(page.get_by_role("img", name=re.compile("^Outcomes"))).to_be_visible()
    expect(page.locator("#stream")).to_have_text("live")


def test_a_submitted_job_appears_without_a_reload(scene: Scene, tab: Tab) -> None:
    page = tab(scene.url)
    expect(page.locator("#stream")).to_have_text("live")
    mark(page)
    (job,) = scene.submit(stage.person("Grace", slips=True))
    row = page.locator(f'#live li[data-job="{job}"]')
    expect(row).to_contain_text("person-grace")
    expect(row).to_contain_text("33→100")
    expect(row).to_contain_text("repaired")
    # The figures follow once the events are folded.
    ended = page.locator("dl.figure", has_text="ended").last
    before = ended.inner_text()
    scene.submit(*(stage.person("Heidi") for _ in range(3)))
    expect(ended).not_to_have_text(before)
    assert was_not_reloaded(page)
    row.get_by_role("link", name="details").click()
    expect(page).to_have_url(f"{scene.url}/jobs/{job}")


def test_only_the_chosen_tenant_is_followed(scene: Scene, tab: Tab) -> None:
    page = tab(f"{scene.url}/?tenant=acme")
    expect(page.locator("#stream")).to_have_text("live")
    (other,) = scene.submit(stage.person("Ivan", labels={"tenant": "globex"}))
    (mine,) = scene.submit(stage.person("Judy"))
    expect(page.locator(f'#live li[data-job="{mine}"]')).to_contain_text("first try")
    expect(page.locator(f'#live li[data-job="{other}"]')).to_have_count(0)


def test_a_broken_stream_is_shown_and_reconnected(scene: Scene, tab: Tab) -> None:
    page = tab("about:blank", expected="ERR_FAILED")
    page.route("**/api/events*", lambda route: route.abort())
    page.goto(scene.url)
    expect(page.locator("#stream")).to_have_text("reconnecting")
    page.unroute("**/api/events*")
    expect(page.locator("#stream")).to_have_text("live")


def test_a_page_without_answers_says_that_its_figures_are_old(scene: Scene, tab: Tab) -> None:
    page = tab(scene.url)
    expect(page.locator("#stream")).to_have_text("live")
    # A frozen console or Redis sends neither an answer nor an error.
    page.route(scene.url + "/", lambda route: None)
    page.evaluate("void refresh()")
    sign = page.locator("#away")
    expect(sign).to_contain_text("No answer for 5 s. Showing data from", timeout=15_000)
    expect(page.locator("body")).to_have_class("stale")
    page.unroute(scene.url + "/")
    expect(sign).to_be_hidden(timeout=15_000)
    expect(page.locator("body")).not_to_have_class("stale")


def test_figures_are_called_old_soon_after_the_ledger_freezes(scene: Scene, tab: Tab) -> None:
    """Given a ledger that freezes, no event says so: the page asks by itself."""
    page = tab(scene.url)
    expect(page.locator("#stream")).to_have_text("live")
    page.evaluate("refresh()")  # the figures are new
    page.route(scene.url + "/", lambda route: None)
    expect(page.locator("body")).to_have_class("stale", timeout=13_000)


# -- a story ---------------------------------------------------------------------------------------


def test_the_story_shows_the_corrected_prompt_as_a_diff(scene: Scene, tab: Tab) -> None:
    page = tab(f"{scene.url}/jobs/{scene.filled.repaired}")
    first, second = page.locator("article").all()
    expect(first).to_contain_text("score 33")
    expect(first).to_contain_text("schema_invalid $.age")
    expect(first).to_contain_text("must be an integer")
    expect(second).to_contain_text("score 100")
    added = second.locator(".diff .add").all_inner_texts()
    assert any("must be an integer" in line for line in added)
    flower = second.get_by_role("link", name="Flower")
    expect(flower).to_have_attribute(
        "href", f"http://127.0.0.1:5555/task/{scene.filled.repaired}-2"
    )


def test_a_job_is_copied_as_a_file_that_can_be_submitted(scene: Scene, tab: Tab) -> None:
    page = tab(
        f"{scene.url}/jobs/{scene.filled.repaired}",
        permissions=["clipboard-read", "clipboard-write"],
    )
    page.get_by_role("button", name="Copy").click()
    expect_notice(page, "Copied")
    text = str(page.evaluate("navigator.clipboard.readText()"))
    document = YAML(typ="safe").load(text)
    assert document["task_type"] == "extract_person"
    (copy,) = scene.submit(document)
    assert copy != scene.filled.repaired


def test_a_story_is_updated_live_and_a_job_can_be_cancelled(scene: Scene, tab: Tab) -> None:
    (job,) = scene.submit(stage.aloud(9))
    page = tab(f"{scene.url}/jobs/{job}")
    mark(page)
    expect(page.locator("#part")).to_contain_text("read_aloud, which is paused")
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    expect_notice(page, "Cancelled")
    expect(page.locator("#part")).to_contain_text("✕ cancelled")
    expect(page.get_by_role("button", name="Cancel job")).to_have_count(0)
    assert was_not_reloaded(page)


# -- acting ----------------------------------------------------------------------------------------


def test_a_queue_is_paused_and_resumed(scene: Scene, tab: Tab) -> None:
    page = tab(scene.url)
    mark(page)
    page.get_by_role("button", name="Pause queue attempt").click()
    expect_notice(page, "queue attempt paused")
    row = page.get_by_role("row", name=re.compile("^attempt"))
    expect(row).to_contain_text("paused")
    (job,) = scene.submit(stage.person("Ivan"))
    story = tab(f"{scene.url}/jobs/{job}")
    expect(story.locator("#part")).to_contain_text("queue attempt, which is paused")
    page.get_by_role("button", name="Resume queue attempt").click()
    expect_notice(page, "queue attempt resumed")
    expect(row).not_to_contain_text("paused")
    expect(story.locator("#part")).to_contain_text("✓ succeeded")
    assert was_not_reloaded(page)


def test_a_provider_is_paused_on_the_operations_page(scene: Scene, tab: Tab) -> None:
    page = tab(f"{scene.url}/operations")
    page.get_by_role("button", name="Pause openai-eu").click()
    expect_notice(page, "openai-eu paused")
    page.get_by_role("button", name="Resume openai-eu").click()
    expect_notice(page, "openai-eu resumed")


def test_a_quarantined_entry_is_dropped_after_a_confirmation(scene: Scene, tab: Tab) -> None:
    ledger = scene.fleet.ledger
    entry = Entry("attempt", submit_for(ledger, "of-nobody"), 1)
    for _ in range(ledger.settings.publish_tries):
        ledger.fail({entry: "<b>WRONGTYPE</b> of a key"})
    page = tab(f"{scene.url}/operations")
    row = page.get_by_role("row", name=str(entry))
    expect(row).to_contain_text("<b>WRONGTYPE</b> of a key")
    row.get_by_role("button", name="Drop").click()
    page.get_by_role("button", name="Close").click()
    expect(row).to_have_count(1)
    row.get_by_role("button", name="Drop").click()
    page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    expect_notice(page, f"{entry} dropped")
    expect(row).to_have_count(0)


def test_an_unlisted_name_can_be_paused(scene: Scene, tab: Tab) -> None:
    page = tab(f"{scene.url}/operations")
    page.get_by_label("Name").fill("not/yet seen")
    page.get_by_label("Name").press("Enter")
    expect_notice(page, "not/yet seen paused")
    row = page.get_by_role("row", name="not/yet seen")
    expect(row).to_contain_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row).to_have_count(0)


def test_an_escalation_is_requeued_with_another_prompt(scene: Scene, tab: Tab) -> None:
    (job,) = scene.submit(stage.reply(900, "No."))
    page = tab(f"{scene.url}/jobs/{job}")
    page.get_by_role("button", name="Requeue").click()
    dialog = page.get_by_role("dialog", name="Requeue")
    dialog.get_by_label(re.compile("New prompt")).fill("Answer ticket 900 with No. Regards")
    dialog.get_by_role("button", name="Requeue").click()
    expect_notice(page, "Requeued")
    expect(page.locator("#part")).to_contain_text("Answer ticket 900 with No. Regards")


def test_a_whole_group_is_ended_after_a_dry_run(scene: Scene, tab: Tab) -> None:
    group = f"{scene.url}/escalations/{quote(scene.filled.signature, safe='')}"
    page = tab(group)
    count = page.locator("tbody tr").count()
    assert count > 1
    page.get_by_role("button", name="Resolve all").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Note").fill("known; the supplier changed the format")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog).to_contain_text(f"would resolve {count} jobs")
    expect(page.locator("tbody tr")).to_have_count(count)
    go = dialog.get_by_role("button", name=f"Resolve {count}")
    expect(go).to_be_focused()
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTIFACTS / "group-dialog-light-1280.png")
    go.click()
    expect_notice(page, f"resolve done for {count}")
    expect(page.locator("#part")).to_contain_text("No open escalations")
    page.get_by_role("link", name="show all").click()
    expect(page.locator("#part")).to_contain_text("known; the supplier changed the format")


def test_a_refused_action_is_explained(scene: Scene, tab: Tab) -> None:
    page = tab(scene.url, expected="403")
    page.evaluate("""document.querySelector('meta[name="csrf-token"]').content = 'old'""")
    page.get_by_role("button", name="Pause queue verify").click()
    expect_notice(page, "X-CSRF-Token is missing or old; reload the page")
    expect(page.get_by_role("button", name="Pause queue verify")).to_be_enabled()


# -- accessibility ---------------------------------------------------------------------------------


def test_the_main_actions_are_reached_and_used_by_keyboard(scene: Scene, tab: Tab) -> None:
    page = tab(scene.url)
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(str(page.evaluate(_NAME)))
    for expected in ("Skip to content", "Jobs", "Open ", "Requeue all", "Pause queue attempt",
                   "schema_invalid", "details"):  # fmt: skip
        assert any(name.startswith(expected) for name in reached), (expected, reached)
    page.locator("#lane-verify").focus()
    page.keyboard.press("Enter")
    expect_notice(page, "queue verify paused")
    expect(page.locator("#lane-verify")).to_be_focused()
    page.keyboard.press("Space")
    expect_notice(page, "queue verify resumed")


_NAME = """(() => { const e = document.activeElement;
    const text = e.textContent.replace(/\\s+/g, " ").trim();
    return e.getAttribute("aria-label") || text || e.name || e.tagName; })()"""


def test_jobs_are_filtered_and_paged(scene: Scene, tab: Tab) -> None:
    scene.submit(*(stage.person("Judy", labels={"lot": "7"}) for _ in range(55)))
    page = tab(f"{scene.url}/jobs")
    page.get_by_label("Label").fill("lot:7")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    expect(page.locator("tbody tr")).to_have_count(5)
    page.get_by_label("State").select_option("escalated")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#part")).to_contain_text("No jobs match")


PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "story": "/jobs/{repaired}",
    "story-escalated": "/jobs/{escalated}",
    "failures": "/failures",
    "failure": "/failures/{signature}",
    "cycles": "/cycles",
    "escalations": "/escalations?show=all",
    "escalation-group": "/escalations/{signature}?show=all",
    "operations": "/operations",
    "runbook": "/runbook",
    "login": "/login",
}
LOOKS: tuple[tuple[int, Literal["light", "dark"]], ...] = (
    (1280, "light"),
    (1280, "dark"),
    (390, "light"),
    (390, "dark"),
)


def address(scene: Scene, name: str) -> str:
    filled = scene.filled
    signature = quote(filled.signature, safe="")
    return PAGES[name].format(
        repaired=filled.repaired, escalated=filled.escalated, signature=signature
    )


@pytest.mark.parametrize("name", PAGES)
def test_every_page_fits_its_screen(scene: Scene, tab: Tab, name: str) -> None:
    page = tab(scene.url + address(scene, name))
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.get_by_role("main")).to_be_visible()
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{wide} px too wide at {width}"
        page.screenshot(path=ARTIFACTS / f"{name}-{scheme}-{width}.png", full_page=True)
