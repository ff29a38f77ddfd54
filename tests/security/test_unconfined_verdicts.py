"""A verdict without isolation, or with less than tests may need, says so to people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.console_server import client_of, new_token
from support.finished_jobs import run_jobs
from support.ledger_scenario import SettingsMaker

from mulligan.client.job_story import tell
from mulligan.console.cli.output.job_story import print_story
from mulligan.console.cli.output.summary import print_summary
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.ports.ledger import JobView
from mulligan.workers.sandbox import isolation
from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.isolation import NotConfined
from mulligan.workers.sandbox.subprocesses import isolation_of
from mulligan.workers.verifiers.pytest.pytest_subprocess import LANDLOCK_WARNING


@pytest.fixture
def unsafe(settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleContext]:
    """A computer without bubblewrap and without Landlock, whose operator allows it."""
    monkeypatch.setattr(isolation, "_why_no_bubblewrap", lambda: "not installed")
    monkeypatch.setattr(isolation, "_why_no_landlock", lambda: "not in this kernel")
    monkeypatch.setattr(isolation, "_found", {})
    opened = open_context(settings(allow_inline=True, unsafe_sandbox=True))
    yield opened
    opened.close()


@pytest.fixture
def by_landlock(settings: SettingsMaker) -> Iterator[ConsoleContext]:
    try:
        isolation_of(Confinement(kind="landlock"))
    except NotConfined as error:
        pytest.skip(str(error))
    opened = open_context(settings(allow_inline=True, sandbox="landlock"))
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


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ("socket.socket()", True),
        ("multiprocessing.Queue()", True),
        ("open('/tmp/x', 'w')", True),
        ("raise OSError('[Errno 1] Operation not permitted')", True),
        ("assert not f()", False),
    ],
)
def test_people_are_told_that_landlock_may_have_failed_a_test_and_the_model_is_not(
    by_landlock: ConsoleContext,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    line: str,
    warned: bool,
) -> None:
    (tmp_path / "exercise").mkdir()
    (tmp_path / "exercise" / "test_it.py").write_text(
        "import multiprocessing, socket\nfrom it import f\n\n"
        f"def test_f():\n    assert f() == 1\n    {line}\n"
    )
    job: dict[str, Any] = {
        "task_type": "code",
        "prompt": "Write f.",
        "runner": {"kind": "scripted", "answers": ["def f():\n    return 1\n"]},
        "workspace": {"path": str(tmp_path / "exercise"), "output_file": "it.py"},
        "verifiers": ["pytest.subprocess"],
        "policy": {"max_attempts": 2},
    }
    [view] = run_jobs(by_landlock, job)
    assert [attempt.score for attempt in view.attempts] == [0.0, 0.0]
    for text in shown(by_landlock, view, capsys):
        assert text.count(f"warning: {LANDLOCK_WARNING}") == (2 if warned else 0)
    print_summary([view], accepted=1)
    assert capsys.readouterr().err.count("Landlock") == (1 if warned else 0)
    assert "andlock" not in (view.attempts[1].plan.prompt or "")
