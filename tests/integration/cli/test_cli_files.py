"""`init`, `schema` and `jobs lint`: files that help while typing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from ruamel.yaml import YAML
from support.cli_process import Shell, invoke, new_shell, write_file

from mulligan.console.cli.commands import init

SCRIPTED = {"kind": "scripted", "answers": ["x"]}
CONTRACT = {"id": "contract.schema", "schema": {"type": "object", "required": ["age"]}}


def job(**changes: Any) -> dict[str, Any]:
    return {
        "task_type": "person",
        "prompt": "Extract the age.",
        "runner": SCRIPTED,
        "verifiers": ["json.object", CONTRACT],
        **changes,
    }


_MODELS = """
from pydantic import BaseModel, field_validator

class Person(BaseModel):
    age: int

    @field_validator("age")
    @classmethod
    def _adult(cls, age):
        if age < 18:
            raise ValueError("must be an adult")
        return age
"""


@pytest.mark.parametrize("by_variable", [False, True], ids=["here", "named by MULLIGAN_CONFIG"])
def test_a_model_of_the_user_s_project_is_found(tmp_path: Path, by_variable: bool) -> None:
    """As the installed command runs: without the current directory on Python's path."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "models.py").write_text(_MODELS)
    (tmp_path / "mulligan.toml").write_text('model_modules = ["pkg"]\nallow_inline = true\n')
    folder = tmp_path / "jobs" if by_variable else tmp_path
    folder.mkdir(exist_ok=True)
    named = [{"id": "contract.schema", "model": "pkg.models:Person"}]
    runner = {"kind": "scripted", "answers": ['{"age": 3}', '{"age": 31}']}
    (folder / "job.json").write_text(json.dumps(job(runner=runner, verifiers=named)))

    def command(*argv: str) -> str:
        config = {"MULLIGAN_CONFIG": str(tmp_path / "mulligan.toml")} if by_variable else {}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mulligan.console", *argv, "job.json"],
            cwd=folder,
            env={**os.environ, **config},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    command("jobs", "lint")
    if not by_variable:  # workers import from the directory they start in
        assert "after repair 1/1" in command("run")


def lint(*argv: str, code: int = 0) -> list[str]:
    """Return the lines that `jobs lint` prints."""
    lines: list[str] = invoke("jobs", "lint", *argv, code=code).stdout.splitlines()
    return lines


# -- init ------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["local", "scripted"])
def local(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(init, "_local_model", lambda: request.param)
    return bool(request.param)


def test_init_writes_valid_files(local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = invoke("init", "new/place").stdout.splitlines()
    assert shown[1:] == [
        "next: cd new/place && mulligan run jobs.yaml",
        "      mulligan jobs show extract_person --diff",
    ]
    monkeypatch.chdir("new/place")
    config = Path("mulligan.toml").read_text()
    assert tomllib.loads(config)["runners"]["small"]["kind"] == ("local" if local else "scripted")
    for name, header, data in (
        ("config", f"#:schema {schema_path('config')}", tomllib.loads(config)),
        ("job", f"# yaml-language-server: $schema={schema_path('job')}", yaml("jobs.yaml")),
    ):
        text = config if name == "config" else Path("jobs.yaml").read_text()
        assert text.splitlines()[0] == header
        schema = json.loads(Path(schema_path(name)).read_text())
        assert schema == json.loads(invoke("schema", name).stdout)
        jsonschema_rs.Draft202012Validator(schema).validate(data)
    assert lint("jobs.yaml") == ["no problems: 1 job in 1 file"]


def schema_path(kind: str) -> str:
    return f".mulligan/{kind}.schema.json"


def yaml(name: str) -> Any:
    return YAML(typ="safe").load(Path(name))


def test_the_commented_out_configuration_is_valid(local: bool) -> None:
    invoke("init")
    lines = Path("mulligan.toml").read_text().splitlines()
    start = lines.index("# [runners.big]")
    uncommented = tomllib.loads("\n".join(line.removeprefix("# ") for line in lines[start:]))
    schema = json.loads(Path(schema_path("config")).read_text())
    jsonschema_rs.Draft202012Validator(schema).validate(uncommented)


def test_init_overwrites_files_only_with_force(local: bool) -> None:
    write_file("jobs.yaml", "mine")
    error = invoke("init", code=2).stderr
    assert "jobs.yaml: already exists" in error
    assert "--force" in error
    assert Path("jobs.yaml").read_text() == "mine"
    assert not Path("mulligan.toml").exists()
    assert not Path(".mulligan").exists()
    shown = invoke("init", "--force").stdout
    assert "next: mulligan run jobs.yaml" in shown
    assert "extract_person" in Path("jobs.yaml").read_text()
    assert "is a file, not a directory" in invoke("init", "jobs.yaml", code=2).stderr


@pytest.fixture
def shell() -> Iterator[Shell]:
    with new_shell() as shell:
        yield shell


def test_the_files_of_init_run_at_once(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a host without the local model, when the suggested commands run, then the job is
    repaired."""
    monkeypatch.setattr(init, "_local_model", lambda: False)
    shell.invoke("init")
    document = shell.run_json("run", "jobs.yaml")
    assert [each["score"] for each in document["jobs"][0]["attempts"]][1] == 100
    assert document["jobs"][0]["state"] == "succeeded"
    assert "age" in shell.run("jobs", "show", "extract_person", "--diff").stdout


# -- schema ----------------------------------------------------------------------------------------


def test_schema_prints_one_of_two_json_schemas() -> None:
    for kind in ("job", "config"):
        printed = json.loads(invoke("schema", kind).stdout)
        assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "Invalid value" in invoke("schema", "jobs", code=2).stderr


# -- lint ------------------------------------------------------------------------------------------


def test_valid_files_have_no_problems() -> None:
    assert lint(write_file("a.json", job())) == ["no problems: 1 job in 1 file"]
    assert lint(write_file("b.json", [job(), job()]), "a.json") == [
        "no problems: 3 jobs in 2 files"
    ]


BROKEN = """\
defaults:
  runner: {kind: scripted, answer: [x]}
  polcy: {max_attempts: 3}
jobs:
  - task_type: a
    promt: p
    verifiers:
      - json.objet
      - {id: text.match, regex: "("}
      - {weight: 3}
  - task_type: b
    verifiers: [json.object]
    policy: {max_attempts: 1}
    name: "-"
    budget: {seconds: soon}
    workspace: {path: none}
  - just text
"""


def test_every_problem_of_every_file_is_reported_at_once() -> None:
    """Also those of the valid parts of broken jobs. A problem of the defaults is reported once."""
    write_file("broken.yaml", BROKEN)
    shown = lint("broken.yaml", write_file("b.yaml", "a: [\n"), "none.yaml", code=2)
    assert shown == [
        "broken.yaml:2: error: defaults.runner.answers: is required",
        "broken.yaml:2: error: defaults.runner.answer: there is no such option; did you"
        " mean 'answers'?",
        "broken.yaml:3: error: defaults.polcy: there is no such field; did you mean 'policy'?",
        "broken.yaml:6: error: jobs[0].promt: there is no such field; did you mean 'prompt'?",
        "broken.yaml:8: error: jobs[0].verifiers[0].id: unknown verifier 'json.objet';"
        " did you mean 'json.object'?",
        "broken.yaml:9: error: jobs[0].verifiers[1].regex: '(' is not a valid pattern"
        " (JSON Schema dialect, of bounded size)",
        "broken.yaml:10: error: jobs[0].verifiers[2].id: is required",
        "broken.yaml:11: error: jobs[1].prompt: is required, or messages, or prompt_file",
        "broken.yaml:13: error: jobs[1].policy.max_attempts: must be 2 or more, because a score"
        " below 70 is always retried once; or add the task type to exempt_task_types",
        "broken.yaml:14: error: jobs[1].name: may contain only letters, digits, spaces and _.:/@+-;"
        " it must start with a letter, a digit or _ (got '-')",
        "broken.yaml:15: error: jobs[1].budget.seconds: 'soon' is not a duration: use seconds, or"
        " 20s, 10m, 1h",
        f"broken.yaml:16: error: jobs[1].workspace.path: there is no directory {Path.cwd()}/none",
        "broken.yaml:17: error: jobs[2]: a job is a mapping with task_type, prompt, runner and"
        " verifiers, not text",
        "b.yaml:2: error: broken YAML: expected the node content, but found '<stream end>'"
        " (while parsing a flow node)",
        "none.yaml: error: there is no such file",
        "15 errors; 3 jobs in 3 files",
    ]


def test_lint_json_has_positions_and_counts() -> None:
    write_file("broken.yaml", BROKEN)
    document = json.loads(
        invoke("jobs", "lint", "broken.yaml", "none.yaml", "--json", code=2).stdout
    )
    counts = {name: document[name] for name in ("ok", "files", "jobs", "errors", "warnings")}
    assert counts == {"ok": False, "files": 2, "jobs": 3, "errors": 14, "warnings": 0}
    assert document["findings"][2] == {
        "file": "broken.yaml",
        "line": 3,
        "severity": "error",
        "field": "defaults.polcy",
        "message": "there is no such field; did you mean 'policy'?",
        "rule": None,
    }
    assert document["findings"][-1]["line"] is None
    assert json.loads(invoke("jobs", "lint", "-", "--json", stdin=json.dumps(job())).stdout)["ok"]


def test_lint_uses_the_current_configuration() -> None:
    write_file(
        "mulligan.toml", '[runners.small]\nkind = "local"\n[commands.lint]\nargv = ["true"]\n'
    )
    named = {"id": "command.subprocess", "command": "lint"}
    assert lint(write_file("a.json", job(runner="small", verifiers=[named])), "--no-allow-inline")
    write_file("a.json", job(runner="smal", verifiers=[{**named, "command": "lnit"}]))
    assert lint("a.json", code=2)[:2] == [
        "a.json:1: error: runner.profile: no profile 'smal'; did you mean 'small'?",
        "a.json:1: error: verifiers[0].command: no command 'lnit'; did you mean 'lint'?",
    ]


def test_lint_allows_inline_definitions_as_run_does() -> None:
    argv = {"id": "command.subprocess", "argv": ["true"]}
    write_file("a.json", job(verifiers=[argv]))
    assert lint("a.json") == ["no problems: 1 job in 1 file"]
    shown = lint("a.json", "--no-allow-inline", code=2)
    assert "runner.kind: a job may not define its runner here" in shown[0]
    assert "verifiers[0].argv: a job may not define a command here" in shown[1]
    # In a broken job, too; a missing runner is only reported as missing.
    broken = {name: value for name, value in job(verifiers=[argv]).items() if name != "runner"}
    shown = lint(write_file("b.json", broken), "--no-allow-inline", code=2)
    assert [line.split(": ")[2] for line in shown[:-1]] == ["runner", "verifiers[0].argv"]


def test_a_broken_configuration_is_reported_with_the_problems_of_the_files() -> None:
    write_file("mulligan.toml", "leese = 3\n")
    shown = lint(write_file("a.json", job(runner="unknown", promt="x")), code=2)
    assert shown == [
        "mulligan.toml: error: setting leese: there is no such setting; did you mean 'lease'?",
        "a.json:1: error: promt: there is no such field; did you mean 'prompt'?",
        "2 errors; 1 job in 1 file",
    ]


def test_a_workspace_that_cannot_be_packed_is_an_error() -> None:
    Path("exercise").mkdir()
    Path("exercise/link").symlink_to("/etc/passwd")
    (line, _) = lint(write_file("a.json", job(workspace={"path": "exercise"})), code=2)
    assert line.startswith("a.json:1: error: workspace")
    assert "link" in line


def test_a_prompt_over_the_cap_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULLIGAN_PROMPT_CAP", "10")
    assert "prompt: 16 bytes are over the cap of 10" in lint(write_file("a.json", job()), code=2)[0]


OPENAI = {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
LONG = {"type": "object", "required": ["items"], "properties": {
    "items": {"type": "array", "minItems": 50, "items": {"type": "string"}}}}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "rule", "field"),
    [
        ({"verifiers": ["json.object"]}, "no-contract", "verifiers[0]"),
        ({"runner": OPENAI}, "no-budget", ""),
        # 50 texts of 4 characters are 363 with their marks, 90 tokens at the very best.
        (
            {
                "runner": {"kind": "local", "max_tokens": 80},
                "verifiers": [{"id": "contract.schema", "schema": LONG}],
            },
            "small-max-tokens",
            "runner.max_tokens",
        ),
        # 0.2 of 2.2 is 9 %: 90 are left.
        (
            {
                "verifiers": [
                    "json.object",
                    CONTRACT,
                    {"id": "text.match", "max_length": 9, "weight": 0.2},
                ]
            },
            "light-verifier",
            "verifiers[2].weight",
        ),
        (
            {"verifiers": ["pytest.subprocess"], "workspace": {"path": "."}},
            "unused-answer",
            "workspace",
        ),
    ],
)
def test_suspicious_jobs_are_warned_about(changes: dict[str, Any], rule: str, field: str) -> None:
    document = json.loads(
        invoke("jobs", "lint", write_file("a.json", job(**changes)), "--json").stdout
    )
    assert document["ok"] is True
    assert [each["rule"] for each in document["findings"]] == [rule]
    assert document["findings"][0]["severity"] == "warning"
    assert document["findings"][0]["field"] == field or field == ""
    assert f"[{rule}]" in lint("a.json")[0]


def test_different_jobs_with_one_key_are_warned_about() -> None:
    first, same = job(idempotency_key="k"), job(idempotency_key="k")
    write_file("a.json", [first, same])
    assert lint("a.json") == ["no problems: 2 jobs in 1 file"]
    write_file("b.json", job(idempotency_key="k", prompt="Another."))
    assert lint("a.json", "b.json") == [
        "b.json:1: warning: idempotency_key: 'k' is that of another job (a.json:1):"
        " this one will be refused [repeated-key]",
        "1 warning; 3 jobs in 2 files",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"runner": OPENAI, "budget": {"seconds": 60}},
        {"runner": {"kind": "local", "max_tokens": 90},
         "verifiers": [{"id": "contract.schema", "schema": LONG}]},
        {"verifiers": ["json.object", CONTRACT,
                       {"id": "text.match", "max_length": 9, "weight": 0.2, "required": False}]},
    ],
)  # fmt: skip
def test_ordinary_jobs_are_not_warned_about(changes: dict[str, Any]) -> None:
    assert lint(write_file("a.json", job(**changes))) == ["no problems: 1 job in 1 file"]


def test_the_demo_has_no_problems() -> None:
    demo = Path(__file__).resolve().parents[3] / "examples/demo/jobs.yaml"
    assert lint(str(demo)) == ["no problems: 10 jobs in 1 file"]
