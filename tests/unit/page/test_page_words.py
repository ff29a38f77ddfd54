"""What the page says: numbers, times, the live list, the heat map, the runbook, its colours."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.ledger_stage import make_job

from mulligan.console.page import format as shown
from mulligan.console.page import job_story_page as story
from mulligan.console.page import live_list as live
from mulligan.console.page import runbook_page as runbook
from mulligan.console.page.failure_pages import heat_map
from mulligan.console.page.render import STATIC
from mulligan.tasks.jobs.submit import read_job


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (0, "0"), (9120, "9,120"), (48_120, "48.1k"), (2.3e6, "2.3M"), (4e9, "4.0G")],
)
def test_counts(value: float | None, expected: str) -> None:
    assert shown.count(value) == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [(None, "–"), (0.0, "0%"), (1.0, "100%"), (0.037, "3.7%"), (0.61, "61%"),
     (0.9996, "99.9%"), (0.0002, "<0.1%"), (0.04, "4%")],
)  # fmt: skip
def test_a_share_is_never_rounded_to_all_or_nothing(share: float | None, expected: str) -> None:
    assert shown.percent(share) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, "–"), (0, "0 s"), (0.021, "21 ms"), (4.0, "4 s"), (4.2, "4.2 s"), (99, "99 s"),
     (180, "3 min"), (9000, "2.5 h"), (400_000, "5 d")],
)  # fmt: skip
def test_spans(seconds: float | None, expected: str) -> None:
    assert shown.span(seconds) == expected


def test_a_score_is_cut_and_never_looks_like_a_pass() -> None:
    assert shown.score(69.9) == "69"


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
TOLD = [
    ("queued", ""),
    ("running", ""),
    ("schema_invalid, retrying", "40"),
    ("attempt 2 running", "40"),
    ("attempt 2 passed", "40→100"),
    ("repaired", "40→100"),
]


@pytest.mark.parametrize("step", range(len(TOLD)))
def test_a_row_follows_its_job(step: int) -> None:
    events = [(f"{place}-0", data) for place, data in enumerate(REPAIRED[: step + 1], 1)]
    (row,) = live.fold(events, tenant=None)
    assert (row.how, row.path) == TOLD[step]
    assert (row.name, row.job) == ("invoice", "p00-a")


def test_the_newest_is_first_and_a_tenant_sees_its_own() -> None:
    other = {"type": "job", "job": "p00-b", "state": "queued", "task_type": "x", "tenant": "globex"}
    events = [("1-0", REPAIRED[0]), ("2-0", other), ("3-0", REPAIRED[1])]
    assert [row.job for row in live.fold(events, tenant=None)] == ["p00-a", "p00-b"]
    assert [row.job for row in live.fold(events, tenant="globex")] == ["p00-b"]


# -- tables, files, texts --------------------------------------------------------------------------


def test_a_heat_map_ranks_and_sums_what_has_no_room() -> None:
    counts = {"a": {f"type{n}": n for n in range(1, 11)}, "b": {"type10": 100}}
    heat = heat_map(counts)
    assert heat.types[0] == "type10"
    assert heat.types[-1] == "others"
    assert [row[0] for row in heat.rows] == ["b", "a"]
    for _, cells, total in heat.rows:
        assert sum(number for number, _ in cells) == total


def test_a_job_file_reads_back_as_the_same_job() -> None:
    job = make_job(prompt="Two\nlines: # with signs", labels={"a": "1"}, idempotency_key="k")
    from ruamel.yaml import YAML

    again = read_job(YAML(typ="safe").load(story.job_file(job)))
    assert again == job.model_copy(update={"idempotency_key": None})


def test_the_runbook_is_headings_lists_and_code_and_nothing_else() -> None:
    html = runbook.render(
        "# Runbook\n\nSee `x` & **y** <script>.\n\n## BreakerOpen\n\n1. one\n2. two\n   more\n\n"
        "```sh\nmulligan doctor\n\nnext\n```\n\n- a\n- [b](#c) and [d](other.md)\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |"
    )
    assert '<h2 id="breakeropen">BreakerOpen</h2>' in html
    assert "<code>x</code> &amp; <strong>y</strong> &lt;script&gt;." in html
    assert "<ol><li>one</li><li>two more</li></ol>" in html
    assert "<pre>mulligan doctor\n\nnext</pre>" in html
    assert '<li><a href="#c">b</a> and d</li>' in html
    assert "<th>a</th><th>b</th>" in html
    assert "<td>1</td><td>2</td>" in html


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
def test_every_text_has_contrast_enough(scheme: str, ink: str, ground: str) -> None:
    """WCAG 2 AA: 4.5 to 1."""
    colours = palettes()[scheme]
    lighter, darker = sorted((_light(colours[ink]), _light(colours[ground])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def _light(colour: str) -> float:
    """Relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
