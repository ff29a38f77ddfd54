"""The command runner with agents that print events: replayed sessions of real agents."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mulligan.policies.jobs.job import Message, RunnerSpec, Usage
from mulligan.policies.value import Json
from mulligan.tasks.ports.cancellation import Cancellation, cancelled_by
from mulligan.tasks.ports.errors import CallCancelled, OutOfCredits, RunnerError, TransportFault
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.sessions import SessionEvent
from mulligan.workers.runners.command import CommandRunner
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.sandbox.private import private_directory

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "agent_sessions"
#: The answer of the sessions that go well.
ANSWER = "`total` rounds to cents now, and the test passes."
#: Prints what it gets on stdin. Its last argument is its exit code.
REPLAY = "import sys; sys.stdout.write(sys.stdin.read()); sys.exit(int(sys.argv[1]))"


class Kept:
    """A session that keeps its events, and a meter that keeps its tokens."""

    def __init__(self) -> None:
        self.events: list[SessionEvent] = []
        self.metered: list[float] = []

    def emit(self, event: SessionEvent) -> None:
        self.events.append(event)

    def meter(self, used: Mapping[Any, float]) -> None:
        assert set(used) == {"tokens"}
        self.metered.append(used["tokens"])

    def texts(self, kind: str) -> list[str]:
        return [event.text for event in self.events if event.kind == kind]


@pytest.fixture
def kept() -> Kept:
    return Kept()


def agent(code: str, form: str, *args: str, **options: Json) -> CommandRunner:
    argv = [sys.executable, "-c", code, *args]
    return CommandRunner.from_options({"argv": argv, "format": form, **options})


def replaying(name: str, exit_code: int = 0, **options: Json) -> CommandRunner:
    return agent(REPLAY, name.partition("_")[0], str(exit_code), **options)


def request(kept: Kept, text: str = "x") -> Request:
    messages = (Message(role="user", content=text),)
    return Request(messages=messages, session=kept, meter=kept.meter)


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.jsonl").read_text("utf-8")


def failure(runner: CommandRunner, asked: Request) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        runner.answer(asked)
    return caught.value


@pytest.mark.parametrize(
    ("name", "model", "usage"),
    [
        ("claude", "claude-opus-4-8", (51339, 255, 51594)),
        ("codex", None, (31500, 360, 31860)),
        ("gemini", "gemini-3.8-flash", (38200, 350, 38550)),
    ],
)
def test_the_answer_is_the_last_message_with_its_usage(
    kept: Kept, name: str, model: str | None, usage: tuple[int, int, int]
) -> None:
    asked = request(kept, recorded(f"{name}_success"))
    output = replaying(f"{name}_success").answer(asked)
    assert (output.text, output.model) == (ANSWER, model)
    prompt, completion, total = usage
    assert output.usage == Usage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=total
    )
    assert kept.metered[-1] == total
    assert kept.metered == sorted(set(kept.metered))
    assert kept.texts("action")
    assert kept.texts("note")[-1].endswith("exited with code 0")


def test_events_come_while_the_agent_works(kept: Kept) -> None:
    """Given an agent that waits until its first message was counted."""
    lines = recorded("claude_success").splitlines()
    code = f"""if True:
        import os, time
        print({lines[2]!r}, flush=True)
        while not os.path.exists("counted"):
            time.sleep(0.01)
        print({lines[-1]!r})
    """
    with private_directory() as work:

        def meter(used: Mapping[Any, float]) -> None:
            kept.meter(used)
            (work / "counted").touch()

        asked = Request(
            messages=(Message(role="user", content="x"),), session=kept, meter=meter, timeout=30
        )
        output = agent(code, "claude").work_in(asked, work)
    assert kept.metered == [8305, 51594]
    assert output.text == ANSWER


def test_plain_text_stays_as_it_was(kept: Kept) -> None:
    output = agent(REPLAY, "text", "0").answer(request(kept, "one\n\n{}\r\ntwo"))
    assert output.text == "one\n\n{}\r\ntwo"
    assert output.usage == Usage()
    assert kept.texts("text") == ["one", "{}", "two"]
    assert kept.metered == []


def test_text_is_the_default() -> None:
    runner = CommandRunner.from_options({"argv": ["true"]})
    assert runner.Options(argv=("true",)).format == "text"


def test_an_unknown_format_is_refused() -> None:
    spec = RunnerSpec.model_validate({"kind": "command", "argv": ["x"], "format": "cobol"})
    (problem,) = RunnerRegistry().check(spec, allow_inline=True)
    assert problem.field == "runner.format"


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exit_code", [0, 1])
def test_an_error_result_is_a_failure_whatever_the_exit_code(kept: Kept, exit_code: int) -> None:
    runner = replaying("claude_max_turns", exit_code)
    error = failure(runner, request(kept, recorded("claude_max_turns")))
    assert not error.final
    said = "Reached maximum number of turns (2)"
    assert str(error).endswith(f"exited with code {exit_code}: {said}")
    assert error.evidence["kind"] == "command_failed"
    assert error.evidence["error"] == said
    assert error.evidence["stdout_tail"] == said
    # Then what it used and said is not lost.
    assert kept.metered[-1] == 16790
    assert error.output is not None
    assert error.output.usage.total_tokens == 16790
    assert error.output.text == "I'll look at the module."


def test_a_crash_keeps_what_was_used(kept: Kept) -> None:
    """Given an agent that is killed in the middle of a line."""
    begun = recorded("claude_success")[:-2000]
    code = (
        f"import os, sys; sys.stdout.write({begun!r}); sys.stdout.flush(); os.kill(os.getpid(), 9)"
    )
    error = failure(agent(code, "claude"), request(kept))
    assert error.evidence["signal"] == 9
    assert error.output is not None
    assert error.output.usage.total_tokens == kept.metered[-1] > 20_000


def test_an_exit_code_counts_after_a_good_result(kept: Kept) -> None:
    error = failure(replaying("codex", 3), request(kept, recorded("codex_success")))
    assert error.evidence["exit_code"] == 3


@pytest.mark.parametrize("printed", ["", "All done.\n", '{"type": "turn.started"}\n'])
def test_a_session_without_an_end_is_a_failure(kept: Kept, printed: str) -> None:
    """Given an agent whose profile lacks the argument for events."""
    error = failure(replaying("codex"), request(kept, printed))
    assert "it printed no result in the format codex" in str(error)
    assert error.evidence["exit_code"] == 0


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("claude_used_up", "rate_limit"),
        ("claude_credit", "billing_error"),
        ("claude_billing", "billing_error"),
        ("gemini_used_up", "TerminalQuotaError"),
    ],
)
@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_structured_code_means_out_of_credits(
    kept: Kept, name: str, code: str, exit_code: int
) -> None:
    runner = replaying(name, exit_code, provider="agent-account")
    with pytest.raises(OutOfCredits) as caught:
        runner.answer(request(kept, recorded(name)))
    assert caught.value.provider == "agent-account"
    assert code in str(caught.value)
    assert kept.metered


def test_the_end_of_a_quota_is_waited_for(kept: Kept) -> None:
    later = recorded("claude_used_up").replace("1795100000", str(int(time.time()) + 1800))
    with pytest.raises(OutOfCredits) as caught:
        replaying("claude").answer(request(kept, later))
    assert caught.value.retry_after == pytest.approx(1800, abs=60)


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [("claude_rate", 1), ("claude_overloaded", 1), ("gemini_overloaded", 503 % 256)],
)
def test_a_busy_provider_is_asked_again_later(kept: Kept, name: str, exit_code: int) -> None:
    with pytest.raises(TransportFault) as caught:
        replaying(name, exit_code).answer(request(kept, recorded(name)))
    assert not isinstance(caught.value, OutOfCredits)
    assert caught.value.maybe_served


@pytest.mark.parametrize(
    ("name", "status"), [("gemini_billing", 402), ("gemini_credit", 429), ("gemini_rate", 429)]
)
def test_gemini_cli_exits_with_the_status_of_its_api(kept: Kept, name: str, status: int) -> None:
    """An exit code has 8 bits of it. The events have no code."""
    with pytest.raises(OutOfCredits):
        replaying(name, status % 256).answer(request(kept, recorded(name)))
    assert kept.metered == [12930]


def test_an_exit_code_alone_is_no_refusal(kept: Kept) -> None:
    """Given a session that went well, or that is not one of Gemini CLI."""
    failure(replaying("gemini", 429 % 256), request(kept, recorded("gemini_success")))
    failure(replaying("codex", 429 % 256), request(kept, recorded("codex_rate")))


@pytest.mark.parametrize(("name", "exit_code"), [("claude_key", 1), ("gemini_unauthorized", 145)])
def test_a_refused_key_is_final(kept: Kept, name: str, exit_code: int) -> None:
    error = failure(replaying(name, exit_code), request(kept, recorded(name)))
    assert error.final
    assert error.evidence["class"] == "key_refused"
    assert "its provider refused its key" in str(error)


def test_no_sentence_means_out_of_credits(kept: Kept) -> None:
    """Given agents that quote such a message, as an answer and as an error without a code."""
    error = failure(replaying("codex", 1), request(kept, recorded("codex_credit")))
    assert isinstance(error, RunnerError)
    quoted = recorded("claude_success").replace("rounds to cents now", "billing_error rate_limit")
    assert "billing_error" in replaying("claude").answer(request(kept, quoted)).text


# -- what leaves the worker ------------------------------------------------------------------------


def test_keys_and_private_paths_are_removed_from_events(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_KEY", 'sk-"4711"')
    code = """if True:
        import json, os
        key, here = os.environ["AGENT_KEY"], os.getcwd()
        tool = {"type": "tool_use", "id": key, "name": "Bash",
                "input": {"command": f"curl -H {key} {here}/main.py"}}
        text = {"type": "text", "text": f"The key is {key}."}
        print(json.dumps({"type": "assistant", "message": {"content": [text, tool]}}))
        print(json.dumps({"type": "result", "subtype": "success", "is_error": False,
                          "result": f"I used {key}."}))
    """
    output = agent(code, "claude", env=["AGENT_KEY"]).answer(request(kept))
    assert output.text == "I used ***."
    assert "4711" not in repr(kept.events)
    (action,) = (event for event in kept.events if event.kind == "action")
    assert action.data == {"command": "curl -H *** main.py"}


def test_a_session_that_fails_does_not_stop_the_agent(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Kept):
        def emit(self, event: SessionEvent) -> None:
            raise ConnectionError("away")

    failing = Failing()
    caplog.set_level(logging.ERROR)
    output = replaying("codex").answer(request(failing, recorded("codex_success")))
    assert output.text == ANSWER
    assert failing.metered == [31860]
    assert caplog.text.count("are no longer kept") == 1


def test_the_events_before_a_lost_lease_are_kept(kept: Kept) -> None:
    """Given an agent that works on and on, when its lease is lost, then its last events arrive."""
    line = json.dumps({"type": "item.completed", "item": {"type": "agent_message", "text": "Hi"}})
    code = f"import time; print({line!r}, end='', flush=True); time.sleep(3600)"
    cancellation = Cancellation()
    threading.Timer(0.5, cancellation.cancel).start()
    with cancelled_by(cancellation), pytest.raises(CallCancelled):
        agent(code, "codex").answer(request(kept))
    # The line had no end yet.
    assert kept.texts("text") == ["Hi"]


def test_a_frozen_worker_loses_its_agent(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mulligan.workers.sandbox.life_pipe.LifePipe.beat", lambda _pipe: None)
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    runner = CommandRunner.from_options({"argv": argv}, heartbeat_seconds=0.5)
    error = failure(runner, request(kept))
    assert "heard nothing from its worker for 0.5 s" in str(error)
