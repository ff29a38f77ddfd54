"""Agents that hang, repeat themselves or are stopped: ended with all their processes."""

from __future__ import annotations

import secrets
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from support.waiting import wait_for

from mulligan.policies.jobs.job import Message, Output
from mulligan.policies.loops.progress import AgentProgress
from mulligan.policies.loops.stuck import RuleName, changed_rules
from mulligan.policies.value import Json
from mulligan.tasks.ports.errors import RunnerError
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.sessions import SessionEvent
from mulligan.workers.runners.command import CommandRunner
from mulligan.workers.sandbox.confinement import Confinement

SANDBOXES = [
    "landlock",
    pytest.param(
        "bubblewrap",
        marks=pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
    ),
]
#: An agent with a child, and a grandchild in a session of its own.
FAMILY = """if True:
    import subprocess, sys, time
    print("begun", flush=True)
    nested = "import subprocess, sys; subprocess.run(['setsid', 'sleep', sys.argv[1]])"
    subprocess.run([sys.executable, "-c", nested, sys.argv[1]])
"""
#: What scripted agents need to print events as Claude Code does.
EVENTS = """if True:
    import json, sys, time
    def say(kind, **fields):
        print(json.dumps({"type": kind, **fields}), flush=True)
    def message(number, *blocks):
        say("assistant", message={"id": f"msg_{number}", "content": list(blocks)})
    def act(number, command, error=None):
        message(number, {"type": "tool_use", "id": f"t{number}", "name": "Bash",
                         "input": {"command": command, "description": f"thought {number}"}})
        if error is not None:
            said = {"type": "tool_result", "tool_use_id": f"t{number}", "content": error,
                    "is_error": bool(error)}
            say("user", message={"content": [said]})
    def end():
        say("result", subtype="success", is_error=False, result="done")
"""


class Watched:
    """A request whose session and progress are kept."""

    def __init__(self) -> None:
        self.events: list[SessionEvent] = []
        self.progress: list[AgentProgress | None] = []

    def emit(self, event: SessionEvent) -> None:
        self.events.append(event)

    def request(self, text: str = "Do it.") -> Request:
        messages = (Message(role="user", content=text),)
        return Request(messages=messages, session=self, progress=self.progress.append, timeout=60)

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if event.kind == "note"]

    def shown(self, holds: Callable[[AgentProgress], object]) -> bool:
        return any(each is not None and holds(each) for each in list(self.progress))


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def seconds() -> str:
    """A time to sleep that no other process has."""
    return f"3600.{secrets.randbelow(10**9):09}"


def agent(
    code: str,
    *args: str,
    sandbox: str = "auto",
    stuck: dict[RuleName, float] | None = None,
    **options: Json,
) -> CommandRunner:
    argv = [sys.executable, "-c", code, *args]
    return CommandRunner.from_options(
        {"argv": argv, **options},
        confinement=Confinement.model_validate({"kind": sandbox}),
        stuck=changed_rules(stuck or {}, {}),
    )


def scripted(code: str, stuck: dict[RuleName, float] | None = None, **options: Json) -> Any:
    body = "".join(f"    {line}\n" for line in code.strip().splitlines())
    return agent(EVENTS + body, stuck={"stopped": 1, **(stuck or {})}, format="claude", **options)


def failure(runner: CommandRunner, watched: Watched) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        runner.answer(watched.request())
    return caught.value


def family(seconds: str) -> list[psutil.Process]:
    """Return the launcher, the agent and all below it, from above to below."""
    found = [p for p in psutil.process_iter() if _arguments(p)[-2:] == ["sleep", seconds]]
    if len(found) < 1:
        return []
    above = [p for p in found[0].parents() if seconds in _arguments(p)]
    return [*reversed(above), found[0]]


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


# -- stopped by a signal ---------------------------------------------------------------------------


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("which", ["launcher", "wrapper", "agent", "child", "all"])
def test_a_stopped_agent_ends_with_all_its_processes(
    which: str, sandbox: str, seconds: str, watched: Watched
) -> None:
    """When the launcher, bubblewrap, the agent, a child of it or all of them are stopped, then the
    attempt fails, and nothing of it is left."""
    errors: list[RunnerError] = []
    runner = agent(FAMILY, seconds, sandbox=sandbox, stuck={"stopped": 1})
    thread = threading.Thread(target=lambda: errors.append(failure(runner, watched)))
    thread.start()
    wait_for(lambda: watched.shown(lambda each: each.processes >= 2 and "output" in each.at), "it")
    wait_for(lambda: family(seconds), "its processes")
    processes = family(seconds)
    chosen = {
        "launcher": processes[:1],
        "wrapper": processes[1:2],
        "agent": processes[-3:-2],
        "child": processes[-1:],
        "all": processes,
    }[which]
    assert chosen
    for process in chosen:
        process.suspend()
    thread.join(30)
    assert not thread.is_alive()
    (error,) = errors
    assert error.evidence["class"] == "stuck.stopped"
    assert not error.final
    assert "was ended as stuck: it was stopped by a signal for 1" in str(error)
    assert watched.notes[-1] == str(error)
    assert watched.shown(lambda each: each.state == "T" and "stopped" in each.finding)
    assert watched.progress[-1] is None
    wait_for(lambda: not family(seconds), "the end of its processes")


def test_a_stopped_tool_is_no_reason_while_the_agent_waits_for_its_model(watched: Watched) -> None:
    """Given an agent whose tool has left a stopped process behind."""
    code = """
import os, signal, subprocess
act(1, "start", "")
child = subprocess.Popen(["sleep", "3600"])
os.kill(child.pid, signal.SIGSTOP)
time.sleep(2.5)
end()
"""
    assert scripted(code, {"stopped": 0.5}).answer(watched.request()).text == "done"


# -- silence ---------------------------------------------------------------------------------------


def test_a_silent_agent_is_ended(watched: Watched) -> None:
    error = failure(agent("import time; time.sleep(600)", stuck={"silent": 1}), watched)
    assert error.evidence["class"] == "stuck.silent"
    assert error.output is not None
    assert (error.output.stuck or "").startswith("did nothing for 1")


def test_silence_before_the_threshold_is_no_reason(watched: Watched) -> None:
    """Given an agent that waits for its model, then its progress says so, and it goes on."""
    code = "message(1, {'type': 'text', 'text': 'Hm.'}); time.sleep(1.5); end()"
    output = scripted(code, {"silent": 30, "stopped": 0.5}).answer(watched.request())
    assert output.text == "done"
    assert output.stuck is None
    assert watched.shown(lambda each: each.waits_on == "model" and each.at.get("event", 0.0) > 0.2)


def test_a_tool_has_more_time(watched: Watched) -> None:
    """Given an agent whose tool says nothing, then it is ended by another threshold."""
    code = "act(1, 'sleep 3600'); time.sleep(600)"
    error = failure(scripted(code, {"silent": 0.5, "tool": 2}), watched)
    assert error.evidence["class"] == "stuck.tool"
    assert "waited 2" in str(error)
    assert "for `sleep 3600`" in str(error)


@pytest.mark.parametrize(
    ("code", "signal"),
    [
        ("print('.', flush=True)", "output"),
        ("sys.stderr.write('.'); sys.stderr.flush()", "output"),
        ("open('new', 'a').write('.')", "files"),
        ("[x for x in range(3_000_000)]", "cpu"),
    ],
)
def test_each_sign_of_work_keeps_an_agent(code: str, signal: str, watched: Watched) -> None:
    loop = f"""if True:
    import sys, time
    until = time.monotonic() + 3
    while time.monotonic() < until:
        {code}
        time.sleep(0.01)
    """
    agent(loop, stuck={"silent": 1.5}).answer(watched.request())
    assert watched.shown(lambda each: each.at.get(signal, 9.0) < 1)  # type: ignore[call-overload]


def test_cpu_time_alone_does_not_keep_it_for_ever(watched: Watched) -> None:
    error = failure(agent("while True: pass", stuck={"silent": 60, "busy": 1}), watched)
    assert error.evidence["class"] == "stuck.busy"


def test_a_storm_of_processes_is_ended(watched: Watched) -> None:
    code = """if True:
    import os, time
    while True:
        try:
            if os.fork() == 0:
                time.sleep(600)
        except OSError:
            print("no more", flush=True)
            time.sleep(0.1)
    """
    error = failure(agent(code, stuck={"storm": 1}, limits={"processes": 40}), watched)
    assert error.evidence["class"] == "stuck.storm"
    assert watched.shown(lambda each: each.processes >= 36)


# -- repetition ------------------------------------------------------------------------------------


def test_an_agent_that_repeats_an_error_is_ended_and_starts_over(watched: Watched) -> None:
    code = """
for number in range(4):
    act(number, "pytest -q", f"1 failed in 0.{number}s")
time.sleep(600)
"""
    error = failure(scripted(code), watched)
    assert error.evidence["class"] == "stuck.same_failure"
    said = "ran `pytest -q` 4 times with the same error"
    assert said in str(error)
    assert error.evidence["stuck"] == f"{said}. Do something else first"
    assert error.evidence["start_over"] is True


def test_an_agent_that_finds_its_way_is_not_ended(watched: Watched) -> None:
    code = """
for number in range(3):
    act(number, "pytest -q", "1 failed")
act(7, "cat cart.py", "")
time.sleep(1)
act(8, "pytest -q", "1 failed")
time.sleep(1)
end()
"""
    assert scripted(code).answer(watched.request()).stuck is None


def test_what_an_agent_could_not_hear_is_told_to_the_next_attempt(watched: Watched) -> None:
    code = """
for number in range(3):
    act(number, "pytest -q", "1 failed")
time.sleep(1.5)
end()
"""
    output = scripted(code).answer(watched.request())
    said = "ran `pytest -q` 3 times, and it always failed. Do something else first"
    assert output.stuck == said
    assert not output.start_over
    assert f"nudge: it {said}" in watched.notes


def test_an_agent_that_hears_a_nudge_changes_its_mind(watched: Watched) -> None:
    """Given an agent that reads messages from stdin: the prompt, a nudge, and then no more."""
    code = """
import os
told = json.loads(sys.stdin.readline())["message"]["content"][0]["text"]
for number in range(3):
    act(number, "pytest -q", "1 failed")
told += "|" + json.loads(sys.stdin.readline())["message"]["content"][0]["text"]
act(7, "cat cart.py", "")
say("result", subtype="success", is_error=False, result=told)
assert sys.stdin.read() == ""
"""
    output: Output = scripted(code, nudge="stream-json").answer(watched.request())
    nudge = "You ran `pytest -q` 3 times, and it always failed. Do something else first."
    assert output.text == f"Do it.|{nudge}"
    assert output.stuck is None


def test_only_one_format_can_hear() -> None:
    with pytest.raises(Exception, match='nudge = "stream-json" needs format = "claude"'):
        CommandRunner.from_options({"argv": ["x"], "nudge": "stream-json"})
