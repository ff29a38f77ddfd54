"""`mulligan loops`: every command, what it prints, and what people get wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.cli_process import Shell, new_shell
from support.ledger_scenario import SettingsMaker
from support.loops import document, item, work_on_loop

from mulligan.console.http.context import ConsoleContext, open_context
from mulligan.tasks.loops import change
from mulligan.tasks.loops.plan import run_plan

RUNNERS = """
[runners.good]
kind = "scripted"
answers = [{text = "{}", usage = {total_tokens = 10}}]

[runners.bad]
kind = "scripted"
answers = ["no"]
"""
LOOP: dict[str, Any] = {"name": "nightly", "runner": "good", "specs": ["specs/*.json"]}


@pytest.fixture
def context(settings: SettingsMaker) -> ConsoleContext:
    """The other side of the ledger: its planner and its workers."""
    runners = {
        "good": {"kind": "scripted", "answers": [{"text": "{}", "usage": {"total_tokens": 10}}]},
        "bad": {"kind": "scripted", "answers": ["no"]},
    }
    return open_context(settings(runners=runners))


@pytest.fixture
def shell(redis_url: str) -> Iterator[Shell]:
    with new_shell(MULLIGAN_BROKER_URL=redis_url, COLUMNS="200") as found:
        found.write("mulligan.toml", RUNNERS)
        found.write("loop.yaml", LOOP)
        (found.folder / "specs").mkdir()
        items = [item("a"), item("b", "a", runner="bad"), item("c", "b")]
        found.write("specs/1.json", {"items": items})
        yield found


def say(shell: Shell, *argv: str, code: int = 0) -> str:
    """Run a command of `mulligan loops` and return what it prints."""
    result = shell.invoke("loops", *argv, code=code)
    return f"{result.stdout}{result.stderr}".strip()


def test_a_loop_from_its_file_to_its_end(shell: Shell, context: ConsoleContext) -> None:
    assert say(shell, "lint", ".") == "no problems"
    assert (
        say(shell, "create", ".", "--dry-run") == "nightly: 3 items, nothing was created\nfirst: a"
    )
    assert say(shell, "list") == "no loops"
    made = say(shell, "create", ".", "--by", "ada")
    assert made == "nightly created\nto start it: `mulligan loops start nightly`"
    assert say(shell, "why", "nightly").endswith("do: mulligan loops start nightly")
    assert say(shell, "start", "nightly") == "nightly started"
    assert say(shell, "start", "nightly") == "nightly is running already"
    work_on_loop(context, "nightly")
    assert "1 passed, 1 blocked, 1 failed" in say(shell, "show", "nightly")
    failed = say(shell, "why", "nightly", "c")
    assert failed.startswith("c waits: dependency b failed (")
    assert failed.endswith("do: mulligan loops reset nightly b")
    assert "score 0" in say(shell, "item", "nightly", "b")
    assert "no" in say(shell, "transcripts", "nightly", "--item", "b")
    assert say(shell, "reset", "nightly", "b") == "b was reset"
    assert say(shell, "skip", "nightly", "b", "--reason", "later") == "b was skipped"
    shell.write("more.json", {"items": [item("d", "c")]})
    assert say(shell, "add", "nightly", "more.json") == "nightly: added d"
    assert say(shell, "set", "nightly", "--priority", "1") == "nightly: changed priority"
    work_on_loop(context, "nightly")
    assert say(shell, "why", "nightly") == "every item passed or was skipped"
    states = {each["id"]: each["state"] for each in emitted(shell, "items", "nightly")["tests"]}
    assert states == {"a": "passed", "b": "skipped", "c": "passed", "d": "passed"}
    log = [each["note"] for each in emitted(shell, "log", "nightly")["log"]]
    assert {"created", "started", "b was reset", "b was skipped: later", "added d"} <= set(log)
    assert "nightly  completed     3/4  1" in say(shell, "list")
    assert say(shell, "delete", "nightly", "--yes") == "nightly was deleted"


def emitted(shell: Shell, *argv: str) -> Any:
    return json.loads(say(shell, *argv, "--json"))


def test_a_wait_for_what_is_not_there_is_warned_about(
    shell: Shell, context: ConsoleContext
) -> None:
    loops = context.services.loops
    change.create_loop(
        loops, document(item("a", emits=["ready"]), name="other", runner="good"), by="ada"
    )
    items = [item("a", "othr/a"), item("b", "other/a", waits_for=["ready", "redy"])]
    shell.write("specs/1.json", {"items": items})
    warnings = [
        "a: waits for othr/a: there is no loop 'othr' yet; did you mean 'other'?",
        "b: waits for the event redy, which nothing gives off yet; did you mean 'ready'?",
    ]
    found = shell.invoke_json("loops", "lint", ".")
    assert (found["ok"], found["warnings"]) == (True, warnings)
    assert say(shell, "lint", ".").splitlines()[-1] == "no problems, 2 warnings"
    found = shell.invoke_json("loops", "check", ".")
    messages = [each["message"] for each in found["findings"] if each["code"] == "unknown_wait"]
    assert messages == [each.partition(": ")[2] for each in warnings]
    said = say(shell, "create", ".")
    assert all(f"warning: {each}" in said for each in warnings)


def test_nothing_is_warned_about_without_a_ledger() -> None:
    with new_shell() as shell:
        shell.write("mulligan.toml", RUNNERS)
        shell.write("loop.yaml", LOOP)
        (shell.folder / "specs").mkdir()
        shell.write("specs/1.json", {"items": [item("a", "othr/a")]})
        assert say(shell, "lint", ".") == (
            "no problems\nno ledger tells whether there is what items wait for in other loops"
        )


def test_pausing_and_stopping(shell: Shell, context: ConsoleContext) -> None:
    say(shell, "create", ".", "--start")
    assert say(shell, "pause", "nightly") == "nightly paused; running attempts finish"
    assert say(shell, "resume", "nightly") == "nightly resumed"
    run_plan(context.services.loops, "nightly")
    stopped = say(shell, "stop", "nightly")
    assert stopped == "nightly stopped; what was running was cancelled"
    assert say(shell, "pause", "nightly", code=2).endswith("that is stopped: it does not run")
    assert say(shell, "health", "nightly").startswith("nightly is idle")
    assert say(shell, "health").startswith("nightly is idle")
    assert say(shell, "create", ".", "--start") == "nightly exists already; it is stopped"


def test_documents_are_those_of_the_api(shell: Shell, context: ConsoleContext) -> None:
    created = emitted(shell, "create", ".", "--start")
    assert (created["id"], created["created"], created["status"]) == (
        "nightly",
        "created",
        "running",
    )
    assert emitted(shell, "create", ".")["created"] == "seen"
    plan = emitted(shell, "create", ".", "--dry-run")
    assert (plan["dry_run"], plan["name_in_use"], plan["ready"]) == (True, True, ["a"])
    assert emitted(shell, "slots", "3") == {"slots": 3, "set": True}
    assert emitted(shell, "slots", "--default")["set"] is False
    assert emitted(shell, "health", "nightly").keys() >= {"status", "silent_seconds", "holders"}
    (row,) = emitted(shell, "health")["loops"]
    assert (row["id"], row["status"], row["incidents"]) == ("nightly", "healthy", [])
    assert emitted(shell, "start", "nightly") == {
        "loop": "nightly",
        "done": "start",
        "changed": False,
    }
    remedy = emitted(shell, "why", "nightly")["remedy"]
    assert (remedy["action"], remedy["request"]) == ("start_worker", None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["show", "nightley"], "there is no loop 'nightley'; did you mean 'nightly'?"),
        (["item", "nightly", "x"], "the loop 'nightly' has no item 'x'"),
        (["add", "nightly", "loop.yaml"], "loop.yaml: this is a loop file: create the loop with"),
        (["add", "nightly", "job.json"], "job.json: this is a job file: run it with `mulligan run"),
        (["add", "nightly", "specs/1.json"], "the loop has a, b, c already"),
        (["add", "nightly", "ghost.json"], "ghost.json:1: items[0].depends_on[0]: d depends on"),
        (["add", "nightly", "done.json"], "done.json:1: states: only a new loop may have items"),
        (["create", "specs/1.json"], "this is a spec file: name it under `specs:` of a loop.yaml"),
        (["create", "job.json"], "this is a job file: run it with `mulligan run job.json`"),
        (["set", "nightly"], "nothing to change: give an option, such as --priority 1"),
        (["set", "nightly", "--budget", "days.tokens=1"], "days: there is no such field; did you"),
        (["reset", "nightly", "a"], "a is pending: there is nothing to reset"),
        (["delete", "nightly"], "Pass --yes"),
    ],
)
def test_mistakes_get_a_clear_message(shell: Shell, argv: list[str], message: str) -> None:
    say(shell, "create", ".")
    shell.write("job.json", {"task_type": "t", "prompt": "p", "verifiers": ["json.object"]})
    shell.write("ghost.json", {"items": [item("d", "ghost")]})
    shell.write("done.json", {"items": [item("d")], "states": {"d": "passed"}})
    assert message in say(shell, *argv, code=2)


def test_a_job_command_names_the_command_for_loops(shell: Shell) -> None:
    printed = shell.invoke("run", "loop.yaml", code=2).stderr
    assert printed.strip().endswith(
        "this is a loop file: create the loop with `mulligan loops create loop.yaml`"
    )
