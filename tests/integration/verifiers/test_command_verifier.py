"""command.subprocess: real programs judge the answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Output, Workspace
from mulligan.tasks.ports.errors import VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.verifiers.command_subprocess import CommandSubprocess

PASS, FAIL = VerificationStatus.PASS, VerificationStatus.FAIL


def verify(
    *argv: str, text: str = "answer", workspace: Workspace | None = None, **options: Any
) -> VerificationResult:
    limits = options.pop("limits", None)
    verifier = CommandSubprocess(
        CommandSubprocess.Options.model_validate({"argv": argv, **options}), limits=limits
    )
    return verifier.verify(Candidate(output=Output(text=text), text=text, workspace=workspace))


def python(code: str, **options: Any) -> VerificationResult:
    return verify(sys.executable, "-c", code, **options)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "ws"
    root.mkdir()
    (root / "test_it.py").write_text("real\n")
    (root / "other.txt").write_text("other\n")
    return Workspace(path=str(root), output_file="answer.txt")


def test_the_exit_code_decides() -> None:
    passed = verify("true")
    assert passed.status is PASS
    assert passed.evidence["exit_code"] == 0
    failed = python("import sys; print('reason', file=sys.stderr); sys.exit(4)")
    assert failed.status is FAIL
    assert failed.evidence["exit_code"] == 4
    assert failed.evidence["stderr_tail"] == "reason\n"
    assert failed.errors[0].code == "exit_code"
    assert "reason" in failed.errors[0].message


@pytest.mark.parametrize("code", ["pass", "raise SystemExit(1)"])
def test_a_fence_removed_from_the_answer_s_file_is_reported(
    workspace: Workspace, code: str
) -> None:
    result = python(code, text="Sure!\n```\nx\n```\n", workspace=workspace)
    assert result.evidence["coercions"] == ["fence", "prose"]
    assert result.warnings == ("coerced: fence", "coerced: prose")
    assert "coercions" not in python(code, text="x", workspace=workspace).evidence
    assert "coercions" not in python(code, text="```\nx\n```").evidence, "there is no file"


def test_another_exit_code_may_be_expected() -> None:
    assert python("raise SystemExit(3)", expect_exit=3).status is PASS
    assert python("pass", expect_exit=3).status is FAIL
    assert python("raise SystemExit(139)", expect_exit=139).status is PASS
    assert python("import os; os.kill(os.getpid(), 11)", expect_exit=139).status is PASS
    assert python("raise SystemExit(139)").status is FAIL


def test_an_empty_command_is_skipped() -> None:
    result = verify()
    assert result.status is VerificationStatus.SKIPPED
    assert result.score is None


def test_a_missing_program_gives_no_verdict() -> None:
    with pytest.raises(VerifierError, match="mulligan-no-such-program"):
        verify("mulligan-no-such-program")


def test_the_answer_is_on_stdin() -> None:
    code = "import sys; sys.exit(sys.stdin.read() != 'the answer')"
    assert python(code, text="the answer").status is PASS


def test_the_answer_is_in_its_file_and_tests_are_restored(workspace: Workspace) -> None:
    code = "assert open('answer.txt').read() == 'hi'; assert open('test_it.py').read() == 'real\\n'"
    assert python(code, text="hi", workspace=workspace).status is PASS


def test_the_original_workspace_is_never_changed(workspace: Workspace) -> None:
    code = "import os; os.remove('other.txt'); open('new', 'w').write('x')"
    assert python(code, workspace=workspace).status is PASS
    assert workspace.path is not None
    assert sorted(path.name for path in Path(workspace.path).iterdir()) == [
        "other.txt",
        "test_it.py",
    ]


def test_a_timeout_kills_the_program() -> None:
    result = python("import time; time.sleep(3600)", timeout=1)
    assert result.status is FAIL
    assert result.evidence["timed_out"] is True
    assert [error.code for error in result.errors] == ["timeout"]


def test_a_signal_is_reported_by_name() -> None:
    result = python("import os; os.kill(os.getpid(), 9)")
    assert result.evidence["signal"] == 9
    assert result.evidence["exit_code"] is None
    assert result.errors[0].code == "signal"
    assert "SIGKILL" in result.errors[0].message


def test_tails_and_output_are_capped() -> None:
    code = "import sys; sys.stderr.write('y' * 10**6 + 'last words'); print('x' * 10**6); exit(1)"
    result = python(code, limits=Limits(output_bytes=4096))
    assert result.evidence["stderr_tail"].endswith("last words")
    assert len(result.evidence["stderr_tail"]) <= 2000
    assert len(result.evidence["stdout_tail"]) <= 2000
    result.model_dump_json()


def test_secrets_do_not_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "sk-secret")
    assert python("import os, sys; sys.exit('MODEL_KEY' in os.environ)").status is PASS


def test_the_finding_has_the_programs_own_first_error() -> None:
    code = "print('a.py:1:8: F401 unused'); print('Found 1 error.'); exit(1)"
    result = python(code)
    assert result.evidence["error"] == "a.py:1:8: F401 unused"
    assert result.errors[0].message.endswith(" exited with code 1: a.py:1:8: F401 unused")


def test_the_first_error_is_found_before_the_tail() -> None:
    code = "print('a.c:1:2: error: no'); print('note\\n' * 5000); print('1 error'); exit(1)"
    assert python(code).evidence["error"] == "a.c:1:2: error: no"


def test_paths_of_the_worker_are_removed(workspace: Workspace) -> None:
    """Given a program that prints where it runs, then readers see relative paths and no codes."""
    code = (
        "import json, os, sys, tempfile, pytest;"
        "here = os.getcwd();"
        "print(f'\\x1b[31m{here}/answer.txt:1: error: bad\\x1b[0m\\x00', file=sys.stderr);"
        "print(here, tempfile.gettempdir(), os.path.expanduser('~/x'), '/srv/bob/x',"
        " json.__file__, pytest.__file__, sys.executable, sep='\\n', file=sys.stderr);"
        "json.loads('x')"
    )
    result = python(code, text="hi", workspace=workspace)
    tail = str(result.evidence["stderr_tail"])
    kept = ["/srv/bob/x"]
    assert [word for word in tail.split() if word.startswith(("/", '"/'))] == kept
    lines = tail.splitlines()
    assert lines[0] == "answer.txt:1: error: bad\N{REPLACEMENT CHARACTER}"
    assert lines[1:7] == [
        ".",
        "tmp",
        "~/x",
        "/srv/bob/x",
        "json/__init__.py",
        "pytest/__init__.py",
    ]
    assert str(result.errors[0].path) == Path(sys.executable).name
    assert "/" not in str(result.evidence["argv"][0])
