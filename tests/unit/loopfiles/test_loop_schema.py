"""The JSON Schemas of loops and specs agree with the loader."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from ruamel.yaml import YAML
from support.job_file_cases import is_loop_file

from mulligan.console.cli.commands.schema import Kind, schema_for
from mulligan.console.loopfiles.inspect_loop import loop_rules
from mulligan.console.loopfiles.loop_file import lint_loop, read_template
from mulligan.policies.loops.budget import parse_amount
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.model import load_settings

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(
    path for name in ("loops", "coding_loop") for path in (ROOT / "examples" / name).rglob("*.yaml")
)
ITEM: dict[str, Any] = {"id": "A", "prompt": "p", "verifiers": ["json.object"]}
AGENT = {"kind": "command", "argv": ["sh"]}


@cache
def validator(kind: Kind) -> Any:
    return jsonschema_rs.Draft202012Validator(schema_for(kind))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_schema_accepts_the_examples(path: Path) -> None:
    kind: Kind = "spec" if path.parent.name == "specs" else "loop"
    data = YAML(typ="safe").load(path)
    assert [str(error) for error in validator(kind).iter_errors(data)] == []


def blocks() -> list[str]:
    """Return the loops, templates and specs of all documents."""
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    found = [re.findall(r"^```yaml\n(.*?)^```$", each, re.MULTILINE | re.DOTALL) for each in texts]
    return [block for each in found for block in each if is_loop_file(block)]


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.splitlines()[0])
def test_schema_and_loader_accept_the_documents(block: str, tmp_path: Path) -> None:
    data = YAML(typ="safe").load(block)
    kind: Kind = "spec" if block.startswith("# specs/") else "loop"
    assert [str(error) for error in validator(kind).iter_errors(data)] == []
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "0.yaml").write_text(f"items: [{ITEM}]")
    (tmp_path / "loop.yaml").write_text("{name: a, specs: [specs/*.yaml], runner: coder}")
    (tmp_path / ("specs/1.yaml" if kind == "spec" else "loop.yaml")).write_text(block)
    runner = AGENT if "repo" in data else {"kind": "scripted", "answers": ["x"]}
    names = {"coder": runner, "writer": runner}
    prices = {name: {"prompt": 1, "completion": 1} for name in names}
    _, found = lint_loop(
        str(tmp_path),
        parameters={"language": "fr"} if "language" in block else {},
        environment={},
        rules=loop_rules(load_settings(runners=names, prices=prices)),
    )
    # The folder of its workspace does not exist here.
    assert [str(each) for each in found if "workspace" not in str(each)] == []


REPOSITORY: dict[str, Any] = {
    "repo": "project", "branch": "mulligan/a", "base": "main", "protect": ["tests/**"],
    "setup": {"run": [["make", "setup"]], "cache": ["node_modules"], "key": ["package-lock.json"]},
    "already_done": "refuse", "edits": False, "deliver": "branch", "runner": "agent",
}  # fmt: skip
LOOPS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"name": "-"}, False),
    ({"nam": "a"}, False),
    ({"version": 2}, False),
    ({"priority": 1, "weight": 0.5, "concurrency": 3}, True),
    ({"priority": 0}, False),
    ({"concurrency": 0}, False),
    ({"version": True}, False),
    ({"priority": True}, False),
    ({"weight": True}, False),
    ({"concurrency": True}, False),
    ({"max_attempts": True}, False),
    ({"budget": {"loop": {"tokens": True}}}, False),
    ({"budget": {"loop": {"money": True}}}, False),
    ({"budget": {"attempt": {"seconds": True}}}, False),
    ({"budget": {"loop": {"tokens": "٣k"}}}, False),
    ({"budget": {"loop": {"seconds": "٣s"}}}, False),
    ({"max_attempts": 1}, False),
    ({"auto_heal": True}, True),
    ({"auto_heal": ["skip", "rollback"]}, True),
    ({"auto_heal": ["skp"]}, False),
    ({"auto_heal": "skip"}, False),
    ({"on_blocked": "continue"}, True),
    ({"on_blocked": "stop"}, False),
    ({"budget": {"item": {"tokens": "200k", "seconds": "30m"}, "day": {"tokens": 5}}}, True),
    ({"budget": {"item": {"tokens": "0k"}}}, False),
    ({"budget": {"item": {"tokens": "many"}}}, False),
    ({"budget": {"week": {"tokens": 1}}}, False),
    (REPOSITORY, True),
    ({**REPOSITORY, "deliver": {"fast_forward": "main"}, "sync": "main"}, True),
    ({**REPOSITORY, "deliver": {"command": ["make", "deliver"]}}, True),
    ({**REPOSITORY, "deliver": {"push": "main"}}, False),
    ({**REPOSITORY, "deliver": "main"}, False),
    ({**REPOSITORY, "already_done": "maybe"}, False),
    ({**REPOSITORY, "setup": {"cache": ["node_modules"]}}, False),
    ({"workspace": {"git": "project", "ref": "main"}}, True),
    ({"runner": {"profile": "coder", "temperature": 0.2}}, True),
    ({"runner": {"profile": "coder", "temperatur": 0.2}}, False),
]


@pytest.mark.parametrize(("fields", "valid"), LOOPS)
def test_schema_and_loader_agree_on_loops(fields: dict[str, Any], *, valid: bool) -> None:
    loop = {"name": "a", "runner": "coder", **fields}
    assert validator("loop").is_valid(loop) == valid
    assert validator("loop").is_valid({"loop": loop, "items": [ITEM]}) == valid
    assert loads({"loop": loop, "items": [ITEM]}) == valid


ITEMS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"depends_on": ["A-1"]}, True),
    ({"depends_on": ["A 1"]}, False),
    ({"verifiers": []}, False),
    ({"verifiers": [{"id": "json.object", "role": "guard"}]}, True),
    ({"verifiers": [{"id": "json.object", "role": "judge"}]}, False),
    ({"verifiers": [{"id": "text.match", "contains": "a", "min_lenght": 3}]}, False),
    ({"verifiers": ["text.match"]}, False),
    ({"verifiers": ["json.objct"]}, False),
    ({"pass_criteria": ["a"], "touches": ["a.py"], "priority": 9, "title": "t"}, True),
    ({"pass_criteria": "a"}, False),
    ({"promt": "p"}, False),
    ({"priority": True}, False),
    ({"id": "_"}, False),
    ({"workspace": {}}, False),
]


@pytest.mark.parametrize(("fields", "valid"), ITEMS)
def test_schema_and_loader_agree_on_items(fields: dict[str, Any], *, valid: bool) -> None:
    items = [{**ITEM, **fields}, {**ITEM, "id": "A-1"}]
    assert validator("spec").is_valid({"version": 1, "items": items}) == valid
    assert loads({"loop": {"name": "a", "runner": "coder"}, "items": items}) == valid


def loads(document: dict[str, Any]) -> bool:
    runner = {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    try:
        rules = loop_rules(load_settings(runners={"coder": runner, "agent": AGENT}))
        read_template(document, templates=None, rules=rules)
    except BadInput:
        return False
    return True


@pytest.mark.parametrize("field", ["name", "runner", "priority", "weight", "on_blocked", "version"])
def test_every_single_value_may_be_a_reference(field: str) -> None:
    loop = {"name": "a", "parameters": {"x": 1, "y": {"description": "d"}, "z": None}}
    assert validator("loop").is_valid({**loop, field: "${x}"})
    assert validator("loop").is_valid({**loop, field: "${env:X:-1}"})
    assert not validator("loop").is_valid({**loop, field: "?"})


@pytest.mark.parametrize("text", ["5", "200k", "1.5M", " 2 K ", "k", "", "-1k", "1G", "1e3", "5kk"])
def test_schema_and_loader_accept_the_same_amounts(text: str) -> None:
    try:
        parse_amount(text)
        valid = True
    except ValueError:
        valid = False
    loop = {"name": "a", "budget": {"day": {"tokens": text}}}
    assert validator("loop").is_valid(loop) == valid
