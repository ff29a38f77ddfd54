"""Commands that need no model, and what all commands have in common."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from support.cli_process import invoke, write_file
from typer.testing import CliRunner

from mulligan.console.cli.commands import verify
from mulligan.console.cli.error_report import report
from mulligan.console.cli.exit_codes import ExitCode
from mulligan.console.cli.main import create_cli
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import load_settings

SCHEMA = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}


def job(**changes: Any) -> dict[str, Any]:
    return {
        "task_type": "person",
        "prompt": "Extract the age.",
        "runner": {"kind": "scripted", "answers": ["x"]},
        "verifiers": ["json.object", {"id": "contract.schema", "schema": SCHEMA}],
        **changes,
    }


# -- all commands ----------------------------------------------------------------------------------


def test_version_and_help_are_printed() -> None:
    assert invoke("--version").stdout.startswith("mulligan ")
    shown = invoke("--help").stdout
    for name in ("run", "up", "submit", "jobs", "queue", "verify", "classify", "report", "doctor"):
        assert f"  {name} " in shown


def test_help_imports_nothing_heavy() -> None:
    heavy = "celery", "redis", "openai", "pydantic", "ruamel"
    code = (
        "import sys\nsys.argv = ['mulligan', '--help']\n"
        "from mulligan.console.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"sys.exit(', '.join(set({heavy!r}) & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("argv", "code", "expected"),
    [
        (["rnu"], 2, "No such command"),
        (["run"], 2, "Missing argument"),
        (["run", "none.yaml"], 2, "none.yaml: there is no such file"),
        (["run", "--timeout", "soon", "x"], 2, "must be a number (got 'soon')"),
        (["jobs", "list", "--state", "odd"], 2, "'--state': 'odd' is not one of 'queued'"),
        (["report", "immediate-loop", "--window-days", "366"], 2, "must be at most 365"),
        (["report", "immediate-loop", "--limit", "9"], 2, "must be at least 10"),
        (["queue", "pause", "queue:celery"], 2, "use queue:repair"),
        (["jobs", "list"], 3, "nothing has run there yet. Start `mulligan up`"),
        (["submit", "job.json"], 3, "start it with `mulligan up`, or set MULLIGAN_BROKER_URL"),
    ],
)
def test_a_wrong_command_has_its_exit_code_and_message(
    argv: list[str], code: int, expected: str
) -> None:
    write_file("job.json", job())
    assert expected in invoke(*argv, code=code).stderr


@pytest.mark.parametrize("argv", [["submit", "job.json"], ["jobs", "list"], ["run", "job.json"]])
def test_an_unreachable_broker_is_exit_code_3(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("MULLIGAN_SUBMIT_PATIENCE", "0.1")
    monkeypatch.setenv("MULLIGAN_ALLOW_INLINE", "true")
    write_file("job.json", job())
    assert "cannot reach the ledger at 127.0.0.1:1 (" in invoke(*argv, code=3).stderr


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nonsense://x", "there is no transport 'nonsense'; use redis://localhost:6379/0"),
        ("nonsense", "this is not an address; use redis://localhost:6379/0"),
        ("redis://:s3cret@h:notaport/0", "its port must be a number"),
        ("redis://:s3/cret@h:6379/0", "percent-encode special characters in a password"),
        ("redis://h:6379/jobs", "its database must be a number"),
        ("amqp://h:port//", "its port must be a number"),
        ("qpid://localhost", "the client of this broker cannot be loaded"),
    ],
)
def test_nothing_is_accepted_for_an_invalid_broker_url(
    url: str,
    expected: str,
    ledger: RedisLedger,
    redis_socket: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULLIGAN_LEDGER_URL", f"unix://{redis_socket}")
    monkeypatch.setenv("MULLIGAN_BROKER_URL", url)
    monkeypatch.setenv("MULLIGAN_ALLOW_INLINE", "true")
    error = invoke("submit", write_file("job.json", job()), code=2).stderr
    assert "broker_url: " in error
    assert expected in error
    assert "cret" not in error
    assert ledger.jobs(limit=1) == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://h", "ledger_url: the ledger is a Redis, not 'amqp'"),
        ("redis://h:notaport/0", "ledger_url: its port must be a number"),
        ("redis+sentinel://h:26379/0", "ledger_url: addresses of Sentinel are not supported"),
        ("redis://h/0?socket_timeout=soon", "ledger_url, else broker_url): Invalid value"),
    ],
)
def test_an_invalid_ledger_url_is_bad_input(
    url: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_LEDGER_URL", url)
    assert expected in invoke("jobs", "list", code=2).stderr


@pytest.mark.parametrize(
    "url",
    [
        "redis://h", "rediss://:pa%2Fss@h:6380/3?ssl_cert_reqs=none", "redis+socket:///run/redis.sock",
        "amqp://guest:guest@h:5672//", "amqp://a;amqp://b:5673/vhost", "memory://", "sqs://",
        "sqla+sqlite:///queue.db",
        "azureservicebus://policy:a/key=@namespace", "redis://[::1]:6379/0",
    ],
)  # fmt: skip
def test_every_form_of_celery_s_broker_urls_is_accepted(url: str) -> None:
    assert load_settings(broker_url=url).broker_url == url


def test_a_broker_behind_sentinel_is_refused() -> None:
    """Celery accepts the address and needs a master's name, which no setting gives."""
    with pytest.raises(BadInput, match="a name or a proxy that follows the primary"):
        load_settings(broker_url="sentinel://a:26379;sentinel://b:26379")


def test_every_bad_setting_is_reported() -> None:
    write_file("mulligan.toml", "leese = 3\nlease = -1\n")
    error = invoke("run", write_file("job.json", job()), code=2).stderr
    assert "setting lease:" in error
    assert "setting leese: there is no such setting; did you mean 'lease'?" in error


def test_a_bug_is_reported_in_one_line_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh\nno")

    monkeypatch.setattr(verify, "_choose", broken)
    argv = ("verify", write_file("job.json", job()), "--answer", write_file("a.txt", "{}"))
    error = invoke(*argv, code=1).stderr
    assert "a bug in mulligan: ZeroDivisionError: oh no" in error
    assert "MULLIGAN_DEBUG=1" in error
    assert "Traceback" not in error
    monkeypatch.setenv("MULLIGAN_DEBUG", "1")
    result = CliRunner().invoke(create_cli(), list(argv))
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize("argv", ["verify job.json --answer job.json", "schema job"])
@pytest.mark.parametrize("more", ["", " --json"])
def test_a_closed_pipe_is_quiet(argv: str, more: str) -> None:
    write_file("job.json", job())
    more = "" if argv.startswith("schema") else more
    # The command begins to write when its reader is gone.
    line = f"exec 3> >(:); wait $!; {sys.executable} -m mulligan.console {argv}{more} >&3"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("src", "workspace.output_file: src is a directory; name a file in it"),
        ("it.py/x.py", "workspace.output_file: it.py/x.py: it.py is a file, not a directory"),
        ("out/x.py", "workspace.output_file: out/x.py leaves the workspace"),
    ],
)
def test_an_output_file_that_cannot_be_written_is_refused_before_running(
    name: str, expected: str
) -> None:
    Path("w/src").mkdir(parents=True)
    Path("w/it.py").touch()
    Path("w/out").symlink_to(Path.cwd())
    file = write_file("job.json", job(workspace={"path": "w", "output_file": name}))
    assert expected in invoke("run", file, code=2).stderr
    assert not Path(".mulligan").exists()


def test_options_common_to_all_verifiers_are_suggested() -> None:
    file = write_file("job.json", job(verifiers=[{"id": "json.object", "weigth": 3, "zzz": 1}]))
    error = invoke("run", file, code=2).stderr
    assert "verifiers[0].weigth: there is no such option; did you mean 'weight'?" in error
    assert "verifiers[0].zzz: there is no such option; there are: name, weight, required" in error


def test_text_in_place_of_a_list_is_refused_with_an_example() -> None:
    verifiers = [{"id": "command.subprocess", "argv": "ls -l"}]
    error = invoke("run", write_file("job.json", job(verifiers=verifiers)), code=2).stderr
    assert "verifiers[0].argv: must be a list, such as [ls, -l]" in error


def test_help_shows_metavars_instead_of_python_types() -> None:
    shown = invoke("run", "--help").stdout
    assert "run [OPTIONS] FILE...\n" in shown
    assert "--timeout NUMBER " in shown
    assert "init [OPTIONS] [DIR]\n" in invoke("init", "--help").stdout


# -- an unreachable ledger -------------------------------------------------------------------------


def test_an_unreachable_ledger_names_the_setting_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULLIGAN_SUBMIT_PATIENCE", "0")
    write_file("mulligan.toml", 'broker_url = "redis://127.0.0.1:1/0"\n')
    error = invoke("jobs", "list", code=3).stderr
    assert "(connection refused). Is Redis running? Check broker_url in mulligan.toml." in error
    monkeypatch.setenv("MULLIGAN_BROKER_URL", "redis://127.0.0.1:1/0")
    error = invoke("jobs", "list", code=3).stderr
    assert "Check MULLIGAN_BROKER_URL." in error
    monkeypatch.setenv("MULLIGAN_LEDGER_URL", "redis://127.0.0.1:1/0")
    assert "Check MULLIGAN_LEDGER_URL." in invoke("jobs", "list", code=3).stderr


def test_an_unreachable_embedded_redis_names_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(LedgerUnavailable("cannot reach the ledger")) == ExitCode.NO_BROKER
    error = capsys.readouterr().err
    assert "This is the embedded server of .mulligan: see .mulligan/redis.log" in error
    assert "URL" not in error


def test_a_redis_without_memory_says_what_to_raise(
    redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_BROKER_URL", redis_url)
    monkeypatch.setenv("MULLIGAN_ALLOW_INLINE", "true")
    redis_client.config_set("maxmemory", "1")
    try:
        error = invoke("submit", write_file("job.json", job()), code=3).stderr
    finally:
        redis_client.config_set("maxmemory", "0")
    assert "the ledger is full (maxmemory)" in error
    assert "Raise its maxmemory" in error
    assert "EVALSHA" not in error
    assert "script:" not in error
    assert "URL" not in error


# -- verify ----------------------------------------------------------------------------------------


def test_verify_passes_a_good_answer() -> None:
    argv = ("verify", write_file("job.json", job()), "--answer", write_file("a.txt", '{"age": 31}'))
    assert invoke(*argv).stdout.endswith("\npassed\n")
    document = json.loads(invoke(*argv, "--json").stdout)
    assert (document["score"], document["success"], document["next_prompt"]) == (100, True, None)


def test_verify_shows_the_next_prompt_of_a_bad_answer() -> None:
    argv = ("verify", write_file("job.json", job()), "--answer", "-", "--next-prompt")
    shown = invoke(*argv, stdin='{"age": "31"}', code=1).stdout
    assert "✗ contract.schema" in shown
    assert "next: immediate retry: score 50 is below 70" in shown
    assert "--- first prompt\n+++ corrected prompt" in shown
    assert "+$.age must be an integer." in shown
    document = json.loads(invoke(*argv, "--json", stdin='{"age": "31"}', code=1).stdout)
    assert document["failure"]["kind"] == "schema_invalid"
    assert document["decision"]["mode"] == "immediate_retry"
    assert document["next_prompt"].startswith("Extract the age.")


def test_verify_says_that_only_the_decoding_of_the_next_attempt_changes() -> None:
    """Given a runner that constrains answers to the contract, whose form was all that was wrong."""
    runner = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m"}
    contract = {"id": "contract.schema", "schema": {**SCHEMA, "additionalProperties": False}}
    file = write_file("job.json", job(runner=runner, verifiers=[contract]))
    shown = invoke("verify", file, "--answer", "-", "--next-prompt", stdin="31", code=1).stdout
    assert shown.endswith("\nthe prompt stays the same: only the decoding changes\n")


def test_verify_runs_tests_in_a_workspace() -> None:
    Path("exercise").mkdir()
    Path("exercise/test_it.py").write_text("from it import f\n\ndef test_f():\n    assert f() == 1")
    tests = {"id": "pytest.subprocess", "args": ["test_it.py"], "timeout": 60}
    workspace = {"path": "exercise", "output_file": "it.py"}
    file = write_file("job.json", job(verifiers=[tests], workspace=workspace))
    right = write_file("right.py", "```python\ndef f():\n    return 1\n```")
    assert invoke("verify", file, "--answer", right).stdout.endswith("\npassed\n")
    wrong = write_file("wrong.py", "def f():\n    return 2\n")
    assert "test_failed" in invoke("verify", file, "--answer", wrong, "--json", code=1).stdout


@pytest.mark.parametrize(
    ("content", "argv", "expected"),
    [
        ([job(), job(name="second")], [], "has 2 jobs; choose one with --job: person, second"),
        ([job(name="a"), job(name="b")], ["--job", "c"], "no job called 'c'; it has: a, b"),
        (job(verifiers=["json.objet"]), [], "job.json:1: verifiers[0].id: unknown verifier"),
        (job(workspace={"path": "gone"}), [], "there is no directory"),
    ],
)
def test_verify_refuses_bad_input(content: Any, argv: list[str], expected: str) -> None:
    write_file("a.txt", "{}")
    result = invoke("verify", write_file("job.json", content), "--answer", "a.txt", *argv, code=2)
    assert expected in result.stderr


# -- classify --------------------------------------------------------------------------------------

FAILED = {
    "status": "fail",
    "verifier_id": "contract.schema",
    "summary": "1 error",
    "errors": [
        {"message": "no", "code": "type", "path": "$.age", "expected": "integer", "actual": "31"}
    ],
}


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (FAILED, "schema_invalid"),
        ({"kind": "missing_context", "message": "which file?"}, "missing_context"),
        ({"exit_code": 2, "argv": ["ruff", "check"]}, "command_failed"),
        ("JSONDecodeError: Expecting value", "json_invalid"),
    ],
)
def test_classify_shows_the_kind_and_the_instruction(payload: Any, kind: str) -> None:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    document = json.loads(invoke("classify", "-", "--json", stdin=text).stdout)
    assert document["record"]["kind"] == kind
    assert (
        document["signature"]["strict_signature"] == document["record"]["classification_signature"]
    )
    assert document["instruction"]["prompt_suffix"]
    assert kind in invoke("classify", write_file("f.txt", text)).stdout


def test_a_failure_record_is_classified_as_itself() -> None:
    record = json.loads(invoke("classify", "-", "--json", stdin=json.dumps(FAILED)).stdout)
    again = json.loads(invoke("classify", "-", "--json", stdin=json.dumps(record["record"])).stdout)
    assert again == record


def test_classify_names_the_node_of_a_graph() -> None:
    call = ("classify", "-", "--node", "build", "--attempt", "2")
    record = json.loads(invoke(*call, "--json", stdin=json.dumps(FAILED)).stdout)["record"]
    assert (record["source"], record["node_id"], record["attempt"]) == ("graph", "build", 2)
    assert invoke(*call, stdin="exit code 3").stdout.startswith("build: command_failed")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ('{"kind": "no_such_kind"}', "no_such_kind"),
        (json.dumps({**FAILED, "status": "pass"}), "pass"),
        (json.dumps({**FAILED, "score": 101}), "score: must be at most 100"),
        ('{"errors": [1, 2]}', "-: errors[0]: must be a mapping, such as {message: what is wrong}"),
        ('{"findings": [{"message": "m"}, {}]}', "-: findings[1].message: is required"),
        (json.dumps({**FAILED, "errors": [1]}), "-: errors[0]: must be a mapping"),
    ],
)
def test_classify_refuses_bad_input(text: str, expected: str) -> None:
    assert expected in invoke("classify", "-", stdin=text, code=2).stderr


# -- doctor ----------------------------------------------------------------------------------------


def test_doctor_finds_no_problem_on_a_fresh_machine() -> None:
    document = json.loads(invoke("doctor", "--json").stdout)
    found = {check["name"]: check["status"] for check in document["checks"]}
    assert document["ok"] is True
    assert found["python"] == found["redis server"] == found["broker"] == "ok"
    assert not Path(".mulligan").exists(), "doctor leaves nothing behind"


def test_doctor_names_what_to_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = """
[runners.small]
kind = "openai"
model = "m"
api_key_env = "NO_KEY"
[runners.bad]
kind = "opnai"
"""
    write_file("mulligan.toml", profiles)
    monkeypatch.setenv("MULLIGAN_BROKER_URL", "redis://user:secret@127.0.0.1:1/0")
    monkeypatch.setenv("MULLIGAN_SUBMIT_PATIENCE", "0.1")
    shown = invoke("doctor", code=1).stdout
    assert "NO_KEY of [runners.small] is not set here" in shown
    assert "did you mean 'openai'?" in shown
    assert "cannot reach the ledger at 127.0.0.1:1 (connection refused)" in shown
    assert "secret" not in shown


def test_doctor_names_the_webhooks_it_cannot_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = [
        {"url": "https://pager.example/secret-path", "secret_env": "PAGER_SECRET"},
        {"url": "https://chat.example/hook"},
    ]
    monkeypatch.setenv("MULLIGAN_WEBHOOKS", json.dumps(hooks))
    shown = CliRunner().invoke(create_cli(), ["doctor"]).output
    assert "pager.example: PAGER_SECRET is not set here" in shown
    assert "chat.example: alerts are not signed" in shown
    assert "secret-path" not in shown
    monkeypatch.setenv("PAGER_SECRET", "s3cret")
    assert "signed with PAGER_SECRET" in CliRunner().invoke(create_cli(), ["doctor"]).output


def test_doctor_reports_bad_settings() -> None:
    write_file("mulligan.toml", "lease = 'soon'\n")
    # In a new process: this one has already imported the module that reads the settings.
    argv = [sys.executable, "-m", "mulligan.console", "doctor", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["checks"][0]["status"] == "fail"
    assert "lease" in document["checks"][0]["said"]


def test_doctor_reports_settings_that_do_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULLIGAN_BROKER_URL", "amqp://localhost")
    document = json.loads(invoke("doctor", "--json", code=1).stdout)
    failed = [check["said"] for check in document["checks"] if check["status"] == "fail"]
    assert any("ledger_url" in expected for expected in failed)


def test_no_color_turns_colours_off_on_a_terminal_too() -> None:
    write_file("job.json", job())
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm-256color"}
    line = f"{sys.executable} -m mulligan.console verify job.json --answer job.json"
    for argv in (["bash", "-c", line], ["script", "-qec", line, "/dev/null"]):
        done = subprocess.run(argv, capture_output=True, env=environment, check=False)
        assert b"\x1b[3" not in done.stdout


@pytest.mark.parametrize(
    ("runner", "expected"),
    [
        ({"base_url": "http://127.0.0.1:9/v1"}, "runner.base_url: http://127.0.0.1:9/v1 cannot be"),
        ({"api_key_env": "NO_SUCH_KEY"}, "runner.api_key_env: the environment variable NO_SUCH"),
    ],
)
def test_an_unusable_model_is_reported_before_anything_starts(
    runner: dict[str, str], expected: str
) -> None:
    file = write_file("job.json", job(runner={"kind": "openai", "model": "m", **runner}))
    assert expected in invoke("run", file, code=2).stderr
    assert not Path(".mulligan").exists()
