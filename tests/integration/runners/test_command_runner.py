"""The command runner with real programs in real private copies."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.doubles import fake_blobs

from mulligan.policies.jobs.job import Message, RunnerSpec, Workspace
from mulligan.policies.value import Json
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.cancellation import Cancellation, cancelled_by
from mulligan.tasks.ports.errors import BadInput, CallCancelled, OutOfCredits, RunnerError
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners.command import CommandRunner, prompt_text
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.sandbox.diff import apply_diff
from mulligan.workers.sandbox.workspace import pack, unpack

ECHO = "import sys; sys.stdout.write(sys.stdin.read().upper())"


def python(code: str, blobs: BlobStore | None = None, **options: Json) -> CommandRunner:
    argv = [sys.executable, "-c", code]
    return CommandRunner.from_options({"argv": argv, **options}, blobs=blobs)


def request(text: str = "hello", **fields: Any) -> Request:
    return Request(messages=(Message(role="user", content=text),), **fields)


def error_of(runner: CommandRunner, **fields: Any) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        runner.answer(request(**fields))
    return caught.value


@pytest.fixture
def exercise(tmp_path: Path) -> Path:
    folder = tmp_path / "exercise"
    folder.mkdir()
    (folder / "main.py").write_text("print('before')\n")
    (folder / "gone.txt").write_text("delete me\n")
    return folder


def test_the_prompt_is_on_stdin_and_the_answer_on_stdout() -> None:
    output = python(ECHO).answer(request("grüße\n"))
    assert output.text == "GRÜSSE\n"
    assert output.diff is None
    assert output.usage.total_tokens is None
    assert output.elapsed_seconds > 0


def test_a_conversation_becomes_one_text() -> None:
    system = Message(role="system", content="Be brief.")
    user, assistant = Message(role="user", content="a"), Message(role="assistant", content="b")
    assert prompt_text([system, user]) == "Be brief.\n\na"
    assert prompt_text([user, assistant, user]) == "User: a\n\nAssistant: b\n\nUser: a"


def test_changes_become_a_diff_and_the_original_stays(exercise: Path) -> None:
    # Given an agent that edits, adds and deletes files in its working directory
    code = (
        "from pathlib import Path;"
        "Path('main.py').write_text('after'); Path('gone.txt').unlink();"
        r"Path('new.bin').write_bytes(b'\x00\xff'); print('done')"
    )
    blobs = fake_blobs()
    snapshot = pack(exercise, max_bytes=1 << 20)
    workspace = Workspace(snapshot=blobs.put(snapshot))
    # When it answers
    output = python(code, blobs).answer(request(workspace=workspace))
    # Then the diff turns the snapshot into the agent's result, and the original is untouched
    assert output.text == "done\n"
    assert output.diff is not None
    rebuilt = exercise.parent / "rebuilt"
    unpack(snapshot, rebuilt)
    apply_diff(rebuilt, blobs.get(output.diff))
    names = {path.name: path.read_bytes() for path in rebuilt.iterdir()}
    assert names == {"main.py": b"after", "new.bin": b"\x00\xff"}
    assert (exercise / "main.py").read_text() == "print('before')\n"


def test_an_unchanged_workspace_has_no_diff(exercise: Path) -> None:
    workspace = Workspace(path=str(exercise))
    assert (
        python("print(open('main.py').read())", fake_blobs())
        .answer(request(workspace=workspace))
        .text.startswith("print('before')")
    )
    assert python(ECHO, fake_blobs()).answer(request(workspace=workspace)).diff is None


def test_changes_without_a_blob_store_are_refused(exercise: Path) -> None:
    runner = python("open('x', 'w').close()")
    assert "no blob store" in str(error_of(runner, workspace=Workspace(path=str(exercise))))


def test_without_a_workspace_the_program_runs_in_an_empty_directory() -> None:
    code = "import os; print(os.listdir('.'), os.getcwd())"
    text = python(code).answer(request()).text
    assert text.startswith("[] ")
    assert not Path(text.removeprefix("[] ").strip()).exists()


def test_a_failure_has_evidence() -> None:
    runner = python("import sys; sys.stderr.write('first\\nthe reason\\n'); sys.exit(3)")
    error = error_of(runner)
    assert not error.final
    assert str(error).endswith("exited with code 3: the reason")
    assert error.evidence["kind"] == "command_failed"
    assert error.evidence["argv"][0] == sys.executable
    assert error.evidence["exit_code"] == 3
    assert error.evidence["stderr_tail"] == "first\nthe reason\n"
    assert error.evidence["timed_out"] is False


def test_a_failure_names_the_first_error_without_paths_of_the_worker(exercise: Path) -> None:
    """Given an agent that fails on a file of its copy and then sums up what happened."""
    code = (
        "import pathlib, sys; place = pathlib.Path('main.py').resolve();"
        " sys.stderr.write(f'{place}:1:7: error: bad\\nFound 1 error.\\n'); sys.exit(1)"
    )
    blobs = fake_blobs()
    workspace = Workspace(snapshot=blobs.put(pack(exercise, max_bytes=1 << 20)))
    error = error_of(python(code, blobs), workspace=workspace)
    assert str(error).endswith("exited with code 1: main.py:1:7: error: bad")
    assert error.evidence["stderr_tail"] == "main.py:1:7: error: bad\nFound 1 error.\n"
    assert error.evidence["error"] == "main.py:1:7: error: bad"


def test_a_signal_is_reported() -> None:
    error = error_of(python("import os; os.kill(os.getpid(), 9)"))
    assert (error.evidence["signal"], error.evidence["exit_code"]) == (9, None)


@pytest.mark.parametrize(("configured", "requested"), [("300ms", 60.0), (60, 0.3)])
def test_the_shorter_timeout_ends_it(configured: Json, requested: float) -> None:
    error = error_of(python("import time; time.sleep(60)", timeout=configured), timeout=requested)
    assert error.evidence["timed_out"] is True
    assert "did not end within" in str(error)


def test_an_exit_code_of_the_profile_means_out_of_credits() -> None:
    code = "import sys; print('working'); sys.exit(75)"
    runner = python(code, out_of_credits_exit_codes=[75, 76], provider="agent-account")
    with pytest.raises(OutOfCredits) as caught:
        runner.answer(request())
    assert caught.value.provider == "agent-account"
    assert "exited with code 75: out of credits or quota" in str(caught.value)


def test_no_text_of_a_program_means_out_of_credits() -> None:
    """Given agents that quote such a message, in an answer and on stderr."""
    said = "You exceeded your 5-hour limit. insufficient_quota"
    runner = python(f"print({said!r})", out_of_credits_exit_codes=[75])
    assert runner.answer(request()).text == said + "\n"
    failing = f"import sys; print({said!r}, file=sys.stderr); sys.exit(1)"
    error = error_of(python(failing, out_of_credits_exit_codes=[75]))
    assert (error.evidence["kind"], error.final) == ("command_failed", False)


def test_a_timeout_is_no_lack_of_credits() -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); time.sleep(60)"
    error = error_of(python(code, out_of_credits_exit_codes=[75]), timeout=0.5)
    assert error.evidence["timed_out"]


def test_a_missing_program_is_final_and_says_what_to_do() -> None:
    error = error_of(CommandRunner.from_options({"argv": ["no-such-agent-4711"]}))
    assert error.final
    assert "no-such-agent-4711" in str(error)
    assert "install it" in str(error)


def test_the_program_gets_only_the_named_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_MODE", "fast")
    monkeypatch.setenv("SOME_API_KEY", "sk-not-for-you")
    code = "import os; print(os.environ.get('AGENT_MODE'), os.environ.get('SOME_API_KEY'))"
    assert python(code, env=["AGENT_MODE"]).answer(request()).text == "fast None\n"


def test_a_missing_variable_is_named() -> None:
    error = error_of(python(ECHO, env=["NO_SUCH_VARIABLE_4711"]))
    assert "NO_SUCH_VARIABLE_4711" in str(error)


def test_keys_are_redacted_in_output_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_KEY", "sk-secret-4711")
    code = "import os, sys; print(os.environ['AGENT_KEY'], file={}); sys.exit({})"
    printing = python(code.format("sys.stdout", 0), env=["AGENT_KEY"])
    assert printing.answer(request()).text == "***\n"
    error = error_of(python(code.format("sys.stderr", 1), env=["AGENT_KEY"]))
    assert "sk-secret" not in str(error) + repr(error.evidence)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "runner.argv"),
        ({"argv": []}, "runner.argv"),
        ({"argv": "rm -rf"}, "runner.argv"),
        ({"argv": ["x"], "env": ["A=B"]}, "runner.env[0]"),
        ({"argv": ["x"], "cwd": "/"}, "runner.cwd"),
        ({"argv": ["x"], "limits": {"memory": 1}}, "runner.limits.memory"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Json], field: str) -> None:
    spec = RunnerSpec.model_validate({"kind": "command", **options})
    problems = RunnerRegistry().check(spec, allow_inline=True)
    assert [problem.field for problem in problems] == [field]


def test_the_registry_passes_the_blob_store(exercise: Path) -> None:
    blobs = fake_blobs()
    profile = {"kind": "command", "argv": [sys.executable, "-c", "open('x', 'w').close()"]}
    runner = RunnerRegistry({"agent": profile}, blobs=blobs).resolve(
        RunnerSpec(profile="agent"), allow_inline=False
    )
    output = runner.answer(request(workspace=Workspace(path=str(exercise))))
    assert output.diff is not None
    assert blobs.get(output.diff)


def test_a_job_cannot_change_the_program() -> None:
    registry = RunnerRegistry({"agent": {"kind": "command", "argv": ["true"]}})
    spec = RunnerSpec.model_validate({"profile": "agent", "argv": ["evil"]})
    with pytest.raises(BadInput, match=r"runner\.argv: a job may override only"):
        registry.resolve(spec, allow_inline=False)


def test_a_lost_lease_ends_the_program() -> None:
    """Given a program that would run for an hour, when its attempt's lease is lost, then it is
    killed and the call is cancelled."""
    cancellation = Cancellation()
    endless = python("import time; time.sleep(3600)")
    threading.Timer(0.3, cancellation.cancel).start()
    with cancelled_by(cancellation), pytest.raises(CallCancelled):
        endless.answer(request(timeout=3600))
