"""A verdict without isolation, or with less than tests may need, says so to people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.console_server import client_of, new_token
from support.finished_jobs import run_jobs
from support.ledger_scenario import SettingsMaker

from mulligan.client.job_story import tell
from mulligan.console.cli.output.job_story import print_story
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.sandbox import isolation


@pytest.fixture
def unsafe(settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleContext]:
    """A computer without bubblewrap and without Landlock, whose operator allows it."""
    monkeypatch.setattr(isolation, "_why_no_bubblewrap", lambda: "not installed")
    monkeypatch.setattr(isolation, "_why_no_landlock", lambda: "not in this kernel")
    monkeypatch.setattr(isolation, "_found", {})
    opened = open_context(settings(allow_inline=True, unsafe_sandbox=True))
    yield opened
    opened.close()


def shown(context: ConsoleContext, view: JobView, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what the page, the command line and the client show of a job."""
    client = client_of(context, new_token(context, role="ops", texts=True))
    page = client.get(f"/jobs/{view.id}", headers={"Accept": "text/html"}).text
    print_story(view, diff=False, attempt=None)
    return [page, capsys.readouterr().out, tell(view)]


def test_a_verdict_without_isolation_says_so(
    unsafe: ConsoleContext, capsys: pytest.CaptureFixture[str]
) -> None:
    job: dict[str, Any] = {
        "task_type": "code",
        "prompt": "Write f.",
        "runner": {"kind": "scripted", "answers": ["x"]},
        "verifiers": [
            {"id": "command.subprocess", "argv": ["true"]},
            {"id": "text.match", "contains": "x"},
        ],
    }
    [view] = run_jobs(unsafe, job)
    page, printed, told = shown(unsafe, view, capsys)
    assert page.count(">not confined</a>") == 1
    assert "unsafe_sandbox" in page
    for text in (printed, told):
        [line] = [line for line in text.splitlines() if "not confined" in line]
        assert "command.subprocess" in line
