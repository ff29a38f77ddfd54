"""`mulligan loops report`: its formats, and the file that it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.cli_process import Shell, new_shell
from support.ledger_scenario import SettingsMaker
from support.loops import item, work_on_loop

from mulligan.console.http.context import open_context

RUNNERS = '[runners.good]\nkind = "scripted"\nanswers = ["{}"]\n'


@pytest.fixture
def shell(redis_url: str, settings: SettingsMaker) -> Iterator[Shell]:
    """A folder beside a loop of two items, both of which passed."""
    with new_shell(MULLIGAN_BROKER_URL=redis_url, COLUMNS="200") as found:
        found.write("mulligan.toml", RUNNERS)
        found.write("loop.yaml", {"name": "nightly", "runner": "good", "specs": ["s.json"]})
        found.write("s.json", {"items": [item("a"), item("b", "a")]})
        found.invoke("loops", "create", ".", "--start")
        runners = {"good": {"kind": "scripted", "answers": ["{}"]}}
        work_on_loop(open_context(settings(runners=runners)), "nightly")
        yield found


def printed(shell: Shell, *argv: str, code: int = 0) -> str:
    result = shell.invoke("loops", "report", *argv, code=code)
    return result.stdout if code == 0 else result.stderr


def test_a_report_is_printed_as_asked(shell: Shell) -> None:
    text = printed(shell, "nightly")
    assert "passed: 2 of 2\n" in text
    assert "may end: it ended at " in text
    assert "Items left\n" in text
    assert printed(shell, "nightly", "--format", "md").startswith("# Loop nightly\n")
    assert printed(shell, "nightly", "--format", "html").startswith("<!doctype html>")
    document = json.loads(printed(shell, "nightly", "--json"))
    assert (document["status"], document["counts"]) == ("completed", {"passed": 2})
    assert "there is no loop 'other'" in printed(shell, "other", code=2)


def test_a_file_has_the_format_of_its_name(shell: Shell) -> None:
    for name, options, begins in (
        ("r.html", [], "<!doctype html>"),
        ("r.md", [], "# Loop nightly"),
        ("r.json", [], "{"),
        ("r.log", [], "completed, started "),
        ("r.log", ["--format", "md"], "# Loop nightly"),
    ):
        assert printed(shell, "nightly", "--output", name, *options) == ""
        assert (shell.folder / name).read_text().startswith(begins), name
