"""The texts of the page: the live list, the heat map, the runbook, and the contrast of colours."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from support.jobs import make_job, read_job

from mulligan.console.page import job_story_page as story
from mulligan.console.page import live_list as live
from mulligan.console.page import runbook_page as runbook
from mulligan.console.page.failure_pages import heat_map
from mulligan.console.page.render import STATIC

# -- the live list ---------------------------------------------------------------------------------


def attempt(number: int, state: str, **more: Any) -> dict[str, Any]:
    return {"type": "attempt", "job": "p00-a", "attempt": number, "state": state, **more}


REPAIRED: list[dict[str, Any]] = [
    {"type": "job", "job": "p00-a", "state": "queued", "task_type": "extract", "name": "invoice",
     "tenant": "acme"},
    attempt(1, "running"),
    attempt(1, "settled", score=40.0, success=False, kind="schema_invalid", next="retry"),
    attempt(2, "running"),
    attempt(2, "settled", score=100.0, success=True),
    {"type": "job", "job": "p00-a", "state": "succeeded", "first_try": False, "attempts": 2},
]  # fmt: skip
EXPECTED = [
    ("queued", ""),
    ("running", ""),
    ("schema_invalid, retrying", "40"),
    ("attempt 2 running", "40"),
    ("attempt 2 passed", "40→100"),
    ("repaired", "40→100"),
]


@pytest.mark.parametrize("step", range(len(EXPECTED)))
def test_a_row_follows_its_job(step: int) -> None:
    events = [(f"{place}-0", data) for place, data in enumerate(REPAIRED[: step + 1], 1)]
    (row,) = live.fold(events, tenant=None)
    assert (row.how, row.path) == EXPECTED[step]
    assert (row.name, row.job) == ("invoice", "p00-a")


def test_the_newest_job_is_first_and_a_tenant_sees_only_its_jobs() -> None:
    other = {"type": "job", "job": "p00-b", "state": "queued", "task_type": "x", "tenant": "globex"}
    events = [("1-0", REPAIRED[0]), ("2-0", other), ("3-0", REPAIRED[1])]
    assert [row.job for row in live.fold(events, tenant=None)] == ["p00-a", "p00-b"]
    assert [row.job for row in live.fold(events, tenant="globex")] == ["p00-b"]


# -- tables, files, texts --------------------------------------------------------------------------


def test_a_heat_map_is_ranked_and_sums_up_the_rest() -> None:
    counts = {"a": {f"type{n}": n for n in range(1, 11)}, "b": {"type10": 100}}
    heat = heat_map(counts)
    assert heat.types[0] == "type10"
    assert heat.types[-1] == "others"
    assert [row[0] for row in heat.rows] == ["b", "a"]
    for _, cells, total in heat.rows:
        assert sum(number for number, _ in cells) == total


def test_a_copied_job_file_is_read_as_the_same_job() -> None:
    job = make_job(prompt="Two\nlines: # with signs", labels={"a": "1"}, idempotency_key="k")
    from ruamel.yaml import YAML

    copy = read_job(YAML(typ="safe").load(story.job_file(job)))
    assert copy == job.model_copy(update={"idempotency_key": None})


def test_the_runbook_is_rendered_with_anchors() -> None:
    html = runbook.render(
        "# Runbook\n\nSee `x` & **y**.\n\n## Breaker open\n\n1. one\n2. two\n   more\n\n"
        "```sh\nmulligan doctor\n\nnext\n```\n\n- a\n- [b](#c) and [d](other.md)\n\n"
        "## budget_exhausted\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    )
    assert '<h2 id="breaker-open">Breaker open</h2>' in html
    assert '<h2 id="budget_exhausted">' in html
    assert "<code>x</code> &amp; <strong>y</strong>" in html
    assert "<li>two\nmore</li>" in html
    assert "mulligan doctor\n\nnext\n</code></pre>" in html
    assert '<li><a href="#c">b</a> and d</li>' in html
    assert '<div class="scroll"><table>' in html
    assert "<td>2</td>" in html


class Elements(HTMLParser):
    """The elements and attributes of an HTML text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += attrs


HOSTILE = [
    "<script>alert(1)</script>",
    "text <img src=x onerror=alert(1)> text",
    '<a href="javascript:alert(1)">x</a>',
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "<javascript:alert(1)>",
    "![x](https://example.org/x.png)",
    "![x](x onerror=alert(1))",
    '[x](https://example.org/"onmouseover="alert(1))',
    '[x](#a "" onmouseover=alert(1) x="")',
    '## "><script>alert(1)</script>',
    "| <script> |\n|---|\n| <iframe src=x> |",
    '```"><script>\nx\n```',
    "[a]: javascript:alert(1)\n\n[a]",
]


@pytest.mark.parametrize("markdown", HOSTILE)
def test_hostile_markdown_stays_text(markdown: str) -> None:
    found = Elements(runbook.render(markdown))
    allowed = {"p", "a", "h2", "div", "table", "thead", "tbody", "tr", "th", "td", "pre", "code"}
    assert found.names <= allowed
    assert {name for name, _ in found.attributes} <= {"href", "id", "title", "class"}
    for name, value in found.attributes:
        if name == "href":
            assert (value or "").startswith(("#", "/", "https://", "http://"))
        if name == "id":
            assert re.fullmatch(r"[\w-]*", value or "")


# -- colours ---------------------------------------------------------------------------------------

PAIRS = [
    *((ink, ground) for ink in ("ink", "dim", "link", "good", "bad", "odd", "busy")
      for ground in ("ground", "sheet", "raised")),
    ("good", "good-wash"), ("bad", "bad-wash"), ("odd", "odd-wash"), ("sheet", "link"),
]  # fmt: skip


def palettes() -> dict[str, dict[str, str]]:
    css = STATIC["page.css"][0].decode()
    light, dark = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]
    found = re.compile(r"--([\w-]+): (#[0-9a-f]{6})")
    return {"light": dict(found.findall(light)), "dark": dict(found.findall(dark))}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("ink", "ground"), PAIRS)
def test_every_text_has_enough_contrast(scheme: str, ink: str, ground: str) -> None:
    """WCAG 2 AA: 4.5 to 1."""
    colours = palettes()[scheme]
    lighter, darker = sorted((_luminance(colours[ink]), _luminance(colours[ground])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def _luminance(colour: str) -> float:
    """Return the relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
