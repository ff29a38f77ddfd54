"""A verdict that was reached in the answer's own process says so, wherever it is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.console_server import client_of, new_token
from support.finished_jobs import run_jobs
from support.ledger_scenario import SettingsMaker

from mulligan.console.cli.output.job_story import print_story
from mulligan.console.http.context import ConsoleContext, open_context

TEST = "from it import f\n\ndef test_f():\n    assert f() == 1\n"


@pytest.fixture
def context(settings: SettingsMaker) -> Iterator[ConsoleContext]:
    opened = open_context(settings(allow_inline=True))
    yield opened
    opened.close()


def test_the_record_the_api_the_page_and_the_command_line_say_it(
    context: ConsoleContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exercise").mkdir()
    (tmp_path / "exercise" / "test_it.py").write_text(TEST)
    job: dict[str, Any] = {
        "task_type": "code",
        "prompt": "Write f.",
        "runner": {"kind": "scripted", "answers": ["def f():\n    return 1\n"]},
        "workspace": {"path": str(tmp_path / "exercise"), "output_file": "it.py"},
        "verifiers": [
            "pytest.subprocess",
            {"id": "command.subprocess", "argv": ["true"]},
            {"id": "text.match", "contains": "def"},
        ],
    }
    [view] = run_jobs(context, job)
    verdict = view.attempts[0].verdict
    assert verdict is not None
    said = {result.verifier_id: result.in_process for result in verdict.results}
    assert said == {"pytest.subprocess": True, "command.subprocess": False, "text.match": False}

    client = client_of(context, new_token(context, role="ops"))
    document = client.get(f"/api/jobs/{view.id}").json()
    shown = document["attempts"][0]["results"]
    assert [result.get("in_process") for result in shown] == [True, None, None]
    page = client.get(f"/jobs/{view.id}", headers={"Accept": "text/html"}).text
    assert page.count(">judged in its own process</a>") == 1
    assert "could have forged this verdict" in page
    assert "in_process" not in page
    assert "ot confined" not in page
    print_story(view, diff=False, attempt=None)
    printed = capsys.readouterr().out.splitlines()
    marked = [line.split()[1] for line in printed if "judged in its own process" in line]
    assert marked == ["pytest.subprocess"]
