"""An agent drives loops with the official client, over stdio, against a real console."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

import pytest
from support.cli_process import invoke
from support.console_server import RunningConsole, new_token, running_console
from support.ledger_scenario import SettingsMaker
from support.loops import item, work_on_loop
from support.mcp_agent import Agent, connected_agent, stdio_agent

from mulligan.client.http_requests import ConsoleConnection
from mulligan.console.mcp.loop_tools import INSTRUCTIONS, TOOLS
from mulligan.console.mcp.tool_server import create_server

GOOD = {"kind": "scripted", "answers": ["{}"]}
BAD = {"kind": "scripted", "answers": ["no " + "x" * 5000, "no", "no"]}
LOOP = {"name": "alpha", "runner": GOOD, "concurrency": 10}

AgentMaker = Callable[..., Agent]


@pytest.fixture
def console(settings: SettingsMaker, tmp_path: Path) -> Iterator[RunningConsole]:
    with running_console(settings(allow_inline=True, loop_templates=tmp_path)) as console:
        yield console


@pytest.fixture
def agent(console: RunningConsole) -> Iterator[AgentMaker]:
    """Connect agents: ``agent(role="producer", tenant="acme")``."""
    with ExitStack() as opened:

        def connect(**token: Any) -> Agent:
            text = new_token(console.context, **token)
            connection = opened.enter_context(
                closing(ConsoleConnection(console.url, text, patience=5.0))
            )
            return opened.enter_context(connected_agent(create_server(connection)))

        yield connect


def test_an_agent_drives_a_loop_over_stdio(console: RunningConsole, tmp_path: Path) -> None:
    """Given a loop whose second item fails, the agent asks why, skips it and sees the end."""
    token = new_token(console.context, role="producer", name="ada")
    log = tmp_path / "mcp.log"
    with stdio_agent("--url", console.url, log=log, MULLIGAN_TOKEN=token) as ada:
        found = _drive(console, ada)
    assert log.read_text() == ""
    with console.client(token) as http:
        assert http.get("/api/loops/alpha").json() == found


def _drive(console: RunningConsole, ada: Agent) -> Any:
    items = [item("a"), item("b", "a", runner=BAD), item("c", "b")]
    plan = ada.call("create_loop", loop=LOOP, items=items, dry_run=True)
    assert (plan["order"], plan["ready"]) == (["a", "b", "c"], ["a"])
    assert ada.call("list_loops")["loops"] == []
    assert ada.call("create_loop", loop=LOOP, items=items)["created"] == "created"
    assert ada.call("why", loop="alpha")["cause"] == "not_started"
    assert ada.call("start_loop", loop="alpha")["status"] == "running"
    work_on_loop(console.context)

    (failed,) = ada.call("list_items", loop="alpha", state="failed")["tests"]
    assert failed["id"] == "b"
    assert len(ada.call("get_item", loop="alpha", item="b")["attempts"]) == 3
    reason = ada.call("why", loop="alpha", item="c")
    assert (reason["cause"], reason["command"]) == ("dependency", "mulligan loops reset alpha b")

    assert ada.call("reset_item", loop="alpha", item="b")["state"] == "pending"
    work_on_loop(console.context)
    assert ada.call("get_item", loop="alpha", item="b")["runs"] == 2
    ada.call("skip_item", loop="alpha", item="b", reason="cannot be done")
    ada.call("add_items", loop="alpha", items=[item("d")])
    work_on_loop(console.context)

    found = ada.call("get_loop", loop="alpha")
    assert (found["status"], found["counts"]) == ("completed", {"passed": 3, "skipped": 1})
    notes = {each["note"]: each["by"] for each in ada.call("loop_log", loop="alpha")["log"]}
    assert notes["b was skipped: cannot be done"] == "ada"
    return found


def test_an_agent_creates_a_loop_from_a_template(agent: AgentMaker, tmp_path: Path) -> None:
    template = {
        "parameters": {"word": {"description": "What to say"}},
        "loop": {**LOOP, "name": "say-${word}"},
        "items": [item("a", prompt="Say ${word}.")],
    }
    (tmp_path / "say.yaml").write_text(json.dumps(template))
    ada = agent(role="producer")
    made = ada.call("create_loop", template="say", parameters={"word": "yes"})
    assert made["id"] == "say-yes"
    assert ada.call("get_item", loop="say-yes", item="a")["prompt"] == "Say yes."
    assert "there is no template 'sya'" in ada.refusal("create_loop", template="sya")


def test_an_agent_controls_a_loop(console: RunningConsole, agent: AgentMaker) -> None:
    ada = agent(role="producer")
    ada.call("create_loop", loop=LOOP, items=[item("a")], start=True)
    assert ada.call("pause_loop", loop="alpha")["status"] == "paused"
    assert ada.call("why", loop="alpha")["cause"] == "pause"
    changed = ada.call("configure_loop", loop="alpha", changes={"priority": 1, "concurrency": 2})
    assert (changed["priority"], changed["config"]["concurrency"]) == (1, 2)
    assert ada.call("resume_loop", loop="alpha")["status"] == "running"
    assert ada.call("loop_health", loop="alpha")["holders"] == []
    assert "stop" in ada.refusal("delete_loop", loop="alpha")
    assert ada.call("stop_loop", loop="alpha")["status"] == "stopped"
    assert ada.text("delete_loop", loop="alpha") == "done"
    assert ada.refusal("get_loop", loop="alpha") == "there is no loop 'alpha'"


def test_a_repeated_call_with_its_key_changes_nothing(
    console: RunningConsole, agent: AgentMaker
) -> None:
    """Given a call that was made, when it is repeated after a later change, the change stays."""
    ada = agent(role="producer")
    ada.call("create_loop", loop=LOOP, items=[item("a")], start=True)
    ada.call("pause_loop", loop="alpha", idempotency_key="pause-1")
    ada.call("resume_loop", loop="alpha")
    assert ada.call("pause_loop", loop="alpha", idempotency_key="pause-1")["status"] == "running"
    assert ada.call("pause_loop", loop="alpha")["status"] == "paused"


def test_long_answers_are_cut_and_come_in_pages(console: RunningConsole, agent: AgentMaker) -> None:
    ada = agent(role="producer")
    items = [item(f"i{n}", runner=BAD) for n in range(3)]
    ada.call("create_loop", loop=LOOP, items=items, start=True)
    work_on_loop(console.context)
    page = ada.call("transcripts", loop="alpha", limit=2, max_chars=100)
    assert [each["item"] for each in page["transcripts"]] == ["i0"] * 3 + ["i1"] * 3
    answer = page["transcripts"][0]["answer"]
    assert answer == BAD["answers"][0][:100] + "… [4903 more characters]"
    rest = ada.call("transcripts", loop="alpha", limit=2, cursor=page["cursor"])
    assert [each["item"] for each in rest["transcripts"]] == ["i2"] * 3
    assert rest["cursor"] is None


# -- rights and errors -----------------------------------------------------------------------------


def test_a_token_of_another_tenant_sees_nothing(console: RunningConsole, agent: AgentMaker) -> None:
    ours, theirs = (agent(role="producer", tenant=name) for name in ("acme", "other"))
    ours.call("create_loop", loop=LOOP, items=[item("a")])
    assert len(ours.call("list_loops")["loops"]) == 1
    assert theirs.call("list_loops")["loops"] == []
    for name, more in (("get_loop", {}), ("start_loop", {}), ("get_item", {"item": "a"})):
        assert theirs.refusal(name, loop="alpha", **more) == "there is no loop 'alpha'"
    assert ours.call("get_loop", loop="alpha")["status"] == "created"


def test_a_refusal_has_the_words_of_the_api(console: RunningConsole, agent: AgentMaker) -> None:
    bob = agent(role="ops")
    refusal = bob.refusal("create_loop", loop=LOOP, items=[item("a")])
    assert refusal.endswith("refuses (403): this needs the role producer or admin, not ops")
    assert bob.call("list_loops")["loops"] == []


def test_every_problem_of_a_loop_is_reported_at_once(
    console: RunningConsole, agent: AgentMaker
) -> None:
    ada = agent(role="producer")
    items = [item("a", "x"), item("b", verifiers=["json.objet"])]
    problems = ada.refusal("create_loop", loop=LOOP, items=items).splitlines()
    assert len(problems) == 2
    assert any("a depends on x, which does not exist" in each for each in problems)
    assert any("json.objet" in each for each in problems)
    assert ada.refusal("start_loop", lop="alpha").splitlines() == [
        "loop: is required",
        "lop: there is no such argument; did you mean 'loop'?",
    ]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_agents_of_old_and_new_protocols_read_what_they_may_do(
    mode: Literal["legacy", "auto"],
) -> None:
    with (
        closing(ConsoleConnection("http://127.0.0.1:9", None, patience=0)) as console,
        connected_agent(create_server(console), mode=mode) as agent,
    ):
        assert [each.name for each in agent.tools()] == list(TOOLS)
        assert agent.client.instructions == INSTRUCTIONS
        assert "did you mean 'get_loop'?" in agent.refusal("get_lop")


def test_a_missing_console_is_one_clear_line(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    environment = {"MULLIGAN_CONSOLE_URL": url, "MULLIGAN_SUBMIT_PATIENCE": "0.1"}
    with stdio_agent(log=tmp_path / "mcp.log", **environment) as agent:
        (line,) = agent.refusal("list_loops").splitlines()
    assert line.startswith(f"no console at {url}; is `mulligan up` running? (")
    assert (tmp_path / "mcp.log").read_text() == ""


def test_a_wrong_url_is_refused_at_once() -> None:
    result = invoke("mcp", "--url", "console", code=2)
    assert result.stdout == ""
    assert result.stderr == "mulligan: url: is not a console's URL: http://host:8700\n"


def test_stdout_has_nothing_but_messages(tmp_path: Path) -> None:
    """Given lines that are no messages, the server answers in JSON and ends with stdin."""
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    done = subprocess.run(
        [sys.executable, "-m", "mulligan.console", "mcp"],
        input=f"nonsense\n{json.dumps(ping)}\n",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"jsonrpc": "2.0", "id": 1, "result": {}} in lines
    assert "Traceback" not in done.stderr
