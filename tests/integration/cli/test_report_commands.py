"""`mulligan report …`: the same figures as text, JSON, Markdown and a self-contained page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.cli_process import invoke
from support.finished_jobs import run_jobs
from support.jobs import GOOD, WRONG_TYPE, scripted
from support.ledger_scenario import SettingsMaker

from mulligan.console.http.context import open_context
from mulligan.console.reports.html_report import as_html
from mulligan.console.reports.report_view import (
    BarChart,
    Change,
    ChangeChart,
    ColumnChart,
    LineChart,
    ReportTable,
    ReportView,
)
from mulligan.console.reports.text_report import as_markdown, as_text

REPORTS = {
    "immediate-loop": "totalCycles",
    "delayed-verification": "validCount",
    "budget": "exhaustedCount",
    "failures": "failures",
    "cost": "lines",
}
SPECIAL = "Zusammenfassung | <script>alert(1)</script>"


@pytest.fixture
def ran(settings: SettingsMaker, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repaired job and an escalated one, whose events are not folded yet."""
    run_jobs(
        open_context(settings(allow_inline=True)),
        scripted(WRONG_TYPE, GOOD, labels={"tenant": "acme"}),
        scripted("no", task_type="other"),
    )
    monkeypatch.setenv("MULLIGAN_BROKER_URL", redis_url)


def report(*argv: str, code: int = 0) -> str:
    return invoke("report", *argv, code=code).output


class Tags(HTMLParser):
    """Every tag of a page and every resource it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "style")]
        self.loads += [f"{tag} {name}" for name, _ in attrs if name.startswith("on")]


def page_of(text: str) -> Tags:
    page = Tags()
    page.feed(text)
    return page


@pytest.mark.parametrize(("name", "field"), REPORTS.items())
def test_a_report_has_every_format(ran: None, name: str, field: str) -> None:
    document: dict[str, Any] = json.loads(report(name, "--json"))
    assert field in document
    assert report(name, "--markdown").startswith("# ")
    assert ": " in report(name)
    wrote = report(name, "--html", "r.html", "--output", "new/r.json")
    assert "wrote r.html" in wrote
    saved = json.loads(Path("new/r.json").read_text())
    changing = {"generatedAt", "generated_at"}
    assert {k: v for k, v in saved.items() if k not in changing} == {
        k: v for k, v in document.items() if k not in changing
    }
    report(name, "--markdown", "--output", "r.md")
    assert Path("r.md").read_text().startswith("# ")
    page = page_of(Path("r.html").read_text())
    assert page.loads == []
    assert "script" not in page.tags
    assert sorted(path.name for path in Path().iterdir() if path.is_file()) == ["r.html", "r.md"]


def test_the_commands_fold_new_events_first(ran: None) -> None:
    document = json.loads(report("failures", "--window", "1h", "--json"))
    assert {row["kind"] for row in document["failures"]} == {"schema_invalid", "json_invalid"}
    cost = json.loads(report("cost", "--by", "task_type", "--json"))
    assert {line["of"]["task_type"] for line in cost["lines"]} == {"extract_person", "other"}
    own = json.loads(report("cost", "--by", "tenant", "--tenant", "acme", "--json"))
    assert own["total"]["attempts"] == 2


PRICES = json.dumps({"scripted": {"prompt": 1, "completion": 1}})


@pytest.mark.parametrize(
    ("prices", "answer", "money", "repairs"),
    [
        ("{}", GOOD, "unknown: no prices set", "0.00"),
        (PRICES, GOOD, "unknown: usage not reported", "0.00"),
        (PRICES, {"text": GOOD, "usage": {"prompt_tokens": 900, "completion_tokens": 100}},
         "0.0010", "0.00"),
        (json.dumps({"other": {"prompt": 1, "completion": 1}}),
         {"text": GOOD, "usage": {"total_tokens": 5}}, "unknown: no price", "0.00"),
    ],
)  # fmt: skip
def test_unknown_costs_say_why(
    settings: SettingsMaker,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    prices: str,
    answer: Any,
    money: str,
    repairs: str,
) -> None:
    run_jobs(open_context(settings(allow_inline=True)), scripted(answer))
    monkeypatch.setenv("MULLIGAN_BROKER_URL", redis_url)
    monkeypatch.setenv("MULLIGAN_PRICES", prices)
    text = report("cost", "--by", "runner", "--markdown")
    (row,) = [line for line in text.splitlines() if line.startswith("| scripted")]
    assert [cell.strip() for cell in row.split("|")][7:9] == [money, repairs]


def test_the_page_of_failures_has_charts(ran: None) -> None:
    report("failures", "--html", "r.html")
    page = page_of(Path("r.html").read_text())
    assert page.tags.count("svg") >= 2
    assert "rect" in page.tags
    assert "schema_invalid" in Path("r.html").read_text()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["cost", "--by", "colour"], "group by task_type"),
        (["cost", "--window", "ever"], "is not a duration"),
        (["failures", "--window", "1s"], "between 1m and 365d"),
        (["budget", "--limit", "9"], "10"),
    ],
)
def test_bad_input_is_refused_with_the_reason(ran: None, argv: list[str], expected: str) -> None:
    assert expected in report(*argv, code=2)


# -- special characters ----------------------------------------------------------------------------

VIEW = ReportView(
    title=SPECIAL,
    about=SPECIAL,
    facts=((SPECIAL, SPECIAL),),
    tables=(
        ReportTable(title=SPECIAL, columns=(SPECIAL, "n"), rows=((SPECIAL, "1"),)),
        ReportTable(title="nothing", columns=("a",), rows=(), empty="no rows"),
    ),
    charts=(
        BarChart(title=SPECIAL, bars=((SPECIAL, 1.0), ("x" * 100, 0.5))),
        ColumnChart(
            title=SPECIAL,
            names=(SPECIAL, "b"),
            columns=tuple((SPECIAL, (n, 1.0)) for n in range(9)),
        ),
        ColumnChart(title="empty", names=("a",), columns=()),
        LineChart(title=SPECIAL, points=((0.0, 3.0), (60.0, 1.0)), ends=(90.0, 120.0)),
        LineChart(title="no points", points=()),
        ChangeChart(
            title=SPECIAL,
            changes=(
                Change(name=SPECIAL, value=0.2, kept=True, note=SPECIAL),
                Change(name="worse", value=-0.1, kept=False),
            ),
        ),
    ),
)


def test_special_characters_are_escaped_on_the_page() -> None:
    text = as_html(VIEW)
    page = page_of(text)
    assert "script" not in page.tags
    assert "&lt;script&gt;" in text
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


def test_special_characters_stay_in_one_markdown_cell() -> None:
    text = as_markdown(VIEW)
    assert "<script>" not in text.replace("\\<", "")
    for line in text.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 3  # two columns
    assert "no rows" in text
    assert "no rows" in as_text(VIEW)


def test_a_terminal_shows_changes_as_bars_around_zero() -> None:
    better, worse = as_text(VIEW).splitlines()[-2:]
    assert f"{'│':>21}{'█' * 20} +0.200" in better
    assert f"{'▒' * 10}│{'':20} −0.100" in worse
