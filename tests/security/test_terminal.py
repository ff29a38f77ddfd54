"""No text of a job commands a terminal: not in what a command prints, and not in a log."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.cli_process import Shell, new_shell
from support.console_server import client_of, post_json
from support.ledger_scenario import SettingsMaker
from support.loops import item, work_on_loop
from typer.testing import CliRunner

from mulligan.console.cli.main import create_cli
from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.console.http.routes.edit_routes import edit_engine
from mulligan.policies.terminal_text import terminal_json, terminal_text
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.plain_logs import PlainRecords

#: The title, the clipboard and a link of the terminal; its screen, its line, its direction.
HOSTILE = (
    "\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x1b\\\x1b]8;;http://evil\x07link\x1b]8;;\x07\x1b[2J\x1bc"
    "\x9b31m\x9d0;owned\x9c\x85\x7f\x00\x08\r\x0b\u202eevil\u2066\u200f\u061c\u2028"
    "[red]marked[/red][link=http://evil]up[/link] end"
)
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: What rich writes itself on a terminal: colours.
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SHORT = HOSTILE[:200]
LOOP = "nightly"


@pytest.fixture
def context(settings: SettingsMaker, tmp_path: Path) -> ConsoleContext:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "notes.txt").write_text("before\n")
    return open_context(
        settings(allow_inline=True, workspaces={"shop": tree}, home=tmp_path / "home")
    )


@pytest.fixture
def shell(redis_url: str, tmp_path: Path) -> Iterator[Shell]:
    home = str(tmp_path / "home")
    with new_shell(MULLIGAN_BROKER_URL=redis_url, MULLIGAN_HOME=home) as found:
        yield found


class Hostile:
    """A ledger in which everything that takes a text has a hostile one."""

    def __init__(self, context: ConsoleContext) -> None:
        self.context = context
        self.api: TestClient = client_of(context)
        self.job = self._escalated_job()
        self._report_external_work()
        self._refuse_a_submission()
        self._run_a_loop()
        self.session = self._begin_edits()
        context.tokens.create(role="producer", name=HOSTILE, tenant="acme", lifetime=None)
        context.tokens.create(role="ops", name=HOSTILE, lifetime=60)

    def _escalated_job(self) -> str:
        job = {
            "task_type": "hostile",
            "prompt": HOSTILE,
            "system": HOSTILE,
            "labels": {"note" + HOSTILE: HOSTILE},
            "idempotency_key": SHORT,
            "runner": {"kind": "scripted", "answers": [HOSTILE, json.dumps({HOSTILE: HOSTILE})]},
            "verifiers": [
                "json.object",
                {"id": "contract.schema", "schema": {"type": "object", "required": [HOSTILE, "x"]}},
            ],
            "policy": {"max_attempts": 2},
        }
        (accepted,) = post_json(self.api, "/api/jobs", 202, **job)["jobs"]
        for number in (1, 2):
            entry = Entry("attempt", accepted["id"], number)
            run_attempt(self.context.services.context, entry)
        return str(accepted["id"])

    def _report_external_work(self) -> None:
        report: dict[str, Any] = {
            "subject": "mia",
            "task_type": "hostile.person",
            "prompt": HOSTILE,
            "answer": HOSTILE,
            "score": 20,
            "feedback": HOSTILE,
            "findings": [{"message": HOSTILE, "path": HOSTILE, "code": SHORT[:100]}],
            "model": SHORT,
            "delayed_verification": {"mode": "reformulate"},
        }
        post_json(self.api, "/api/attempts", 201, **report)

    def _refuse_a_submission(self) -> None:
        post_json(self.api, "/api/jobs", 422, **{"task_type": SHORT, HOSTILE: HOSTILE})

    def _run_a_loop(self) -> None:
        bad = {"kind": "scripted", "answers": [HOSTILE]}
        items = [
            item("one", prompt=HOSTILE, pass_criteria=[HOSTILE], touches=[HOSTILE], runner=bad),
            item("two", "one", prompt=HOSTILE),
        ]
        loop = {"name": LOOP, "runner": bad, "max_attempts": 2}
        post_json(self.api, "/api/loops", 201, loop=loop, items=items, start=True)
        work_on_loop(self.context, LOOP)

    def _begin_edits(self) -> str:
        edits = [
            {
                "id": f"e{number}",
                "op": op,
                "target": "notes.txt",
                "payload": {"content": HOSTILE},
                "rationale": HOSTILE,
                "references": [HOSTILE],
                "expected_improvement": HOSTILE,
            }
            for number, op in enumerate(("write_file", "delete_file", SHORT[:100]))
        ]
        body = {"plan": {"edits": edits, "benchmark": {"policy": "allow"}}, "workspace": "shop"}
        session = str(post_json(self.api, "/api/edits", 202, **body)["session"])
        engine = edit_engine(self.context)
        while engine.work(session).phase != "done":
            pass
        return session


def commands(found: Hostile, shell: Shell) -> list[list[str]]:
    """Return every command that reads, and those that change something and say what."""
    job, session = found.job, found.session
    shell.write("jobs.json", {"task_type": "x", "prompt": HOSTILE, HOSTILE: [HOSTILE]})
    shell.write("answer.txt", HOSTILE)
    shell.write("job.json", {
        "task_type": "x", "prompt": HOSTILE, "runner": {"kind": "scripted", "answers": ["{}"]},
        "verifiers": ["json.object"],
    })  # fmt: skip
    groups = found.context.ledger.groups(limit=10)
    return [
        ["jobs", "list"],
        ["jobs", "show", job],
        ["jobs", "watch", job],
        ["jobs", "cancel", job],
        ["jobs", "refused"],
        ["jobs", "lint", "jobs.json"],
        ["jobs", "show", HOSTILE.replace("\0", "")],
        ["verify", "job.json", "--answer", "answer.txt"],
        ["loops", "list"],
        ["loops", "show", LOOP],
        ["loops", "items", LOOP],
        *(["loops", "item", LOOP, each] for each in ("one", "two")),
        ["loops", "why", LOOP, "two"],
        ["loops", "transcripts", LOOP],
        ["loops", "log", LOOP],
        ["loops", "health", LOOP],
        ["queue", "list"],
        ["providers"],
        ["outbox", "list"],
        ["escalations", "list"],
        *(["escalations", "show", group.signature] for group in groups),
        ["escalations", "resolve", "--reason", "max_attempts", "--dry-run"],
        ["edits", "review", "list"],
        ["edits", "review", "show", f"{session}/e0"],
        ["edits", "review", "show", f"{session}/e1"],
        ["edits", "history"],
        ["token", "list"],
        ["report", "immediate-loop"],
        ["report", "delayed-verification"],
        ["report", "budget"],
        ["report", "failures"],
        ["report", "cost", "--by", "label,model,task_type"],
        ["webhooks", "list"],
        ["config", "show"],
    ]


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_no_command_prints_what_commands_a_terminal(
    context: ConsoleContext, shell: Shell, terminal: bool
) -> None:
    found = Hostile(context)
    printed = ""
    for argv in commands(found, shell):
        for more in ([],) if terminal else ([], ["--json"]):
            text = output_of(shell, *argv, *more, terminal=terminal)
            shown = COLOURS.sub("", text)
            assert terminal or shown == text
            assert not UNSAFE.findall(shown), (argv, more, shown)
            printed += shown
    # The texts themselves were printed, and their brackets were no markup.
    assert printed.count("[red]marked[/red]") > 10
    assert printed.count("owned") > 20


def output_of(shell: Shell, *argv: str, terminal: bool) -> str:
    """Return what a command prints. It may fail, with a message."""
    colours = {"FORCE_COLOR": "1"} if terminal else {"NO_COLOR": "1"}
    with chdir(shell.folder):
        result = CliRunner().invoke(
            create_cli(), list(argv), env={**shell.environment, **colours, "COLUMNS": "150"}
        )
    assert result.exit_code in (0, 1, 2), (argv, result.exception)
    assert not isinstance(result.exception, UnicodeError), argv
    return f"{result.stdout_bytes.decode()}{result.stderr_bytes.decode()}"


def test_json_keeps_its_values() -> None:
    text = json.dumps({"text": HOSTILE + "\ud800"}, ensure_ascii=False)
    safe = terminal_json(text)
    assert not UNSAFE.search(safe)
    assert safe.encode()
    assert json.loads(safe) == {"text": HOSTILE + "\ud800"}


def test_text_keeps_what_is_harmless() -> None:
    harmless = "tab\tline\nÄ 日本語 👩‍🚀 עברית e\u0301"
    assert terminal_text(harmless) == harmless
    assert terminal_text("a\ud800b").encode()


def test_no_log_line_commands_a_terminal_or_looks_like_another() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    handler.addFilter(PlainRecords())
    log = logging.getLogger("test.terminal")
    log.propagate = False
    log.addHandler(handler)
    try:
        log.warning("refused %s", HOSTILE + "\nERROR forged")
        log.error("failed for %s", HOSTILE, exc_info=ValueError(HOSTILE))
        log.warning("%d", "not a number")
    finally:
        log.removeHandler(handler)
    written = stream.getvalue()
    assert not UNSAFE.findall(written)
    assert "\nERROR forged" not in written
    assert "ERROR failed for" in written
    assert "ValueError: " in written
