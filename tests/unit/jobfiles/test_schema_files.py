"""The JSON Schemas for editors agree with the loader on every example and small mistake."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML
from support.job_file_cases import (
    INVALID,
    LOADER_ONLY,
    VALID,
    is_loop_file,
    job,
    with_defaults,
)

from mulligan.console.cli.commands.schema import Kind, schema_for
from mulligan.console.jobfiles import model_schema
from mulligan.console.jobfiles.job_file import find_jobs
from mulligan.policies.jobs.job import Job, parse_duration
from mulligan.policies.loops.numbers import refuse_boolean
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.admission.intake import check_job
from mulligan.workers.runners import runner_registry
from mulligan.workers.runners.runner_registry import SAFE_OVERRIDES, RunnerRegistry
from mulligan.workers.settings.model import Settings, load_settings
from mulligan.workers.verifiers import text_match, verifier_registry
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

ROOT = Path(__file__).resolve().parents[3]
SETTINGS: dict[str, Any] = {
    "runners": {"small": {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:8080/v1"}},
    "commands": {"lint": {"argv": ["true"]}},
}


@cache
def validator(kind: Kind) -> Any:
    return jsonschema_rs.Draft202012Validator(schema_for(kind))


def schema_accepts(data: Any) -> bool:
    return bool(validator("job").is_valid(data))


def loader_accepts(data: Any, folder: Path) -> bool:
    """Return whether `mulligan run` would accept a file."""
    (folder / "exercise").mkdir(exist_ok=True)
    (folder / "hello.txt").write_text("Hello {{who}}")
    path = folder / "jobs.json"
    path.write_text(json.dumps(data))
    try:
        found = find_jobs([str(path)])
    except BadInput:
        return False
    return not any(check_job(each.job, **intake()) for each in found)


@cache
def intake() -> dict[str, Any]:
    settings = load_settings(allow_inline=True, **SETTINGS)
    runners = RunnerRegistry(profiles=settings.runners)
    verifiers = VerifierRegistry()
    return {"settings": settings, "runners": runners, "verifiers": verifiers, "local_paths": True}


@pytest.mark.parametrize("name", VALID)
def test_schema_and_loader_accept_valid_files(name: str, tmp_path: Path) -> None:
    assert loader_accepts(VALID[name], tmp_path)
    assert [str(error) for error in validator("job").iter_errors(VALID[name])] == []


@pytest.mark.parametrize("name", INVALID)
def test_schema_and_loader_refuse_invalid_files(name: str, tmp_path: Path) -> None:
    assert not loader_accepts(INVALID[name], tmp_path)
    assert not schema_accepts(INVALID[name])


@pytest.mark.parametrize("name", LOADER_ONLY)
def test_some_files_are_refused_only_by_the_loader(name: str, tmp_path: Path) -> None:
    assert not loader_accepts(LOADER_ONLY[name], tmp_path)
    assert schema_accepts(LOADER_ONLY[name])


# -- every file with every small mistake -----------------------------------------------------------

REPLACEMENTS: tuple[Any, ...] = (None, -1, 2.5, "", "zz", "10m", [], ["zz"], {}, {"zz": 1})


def mutations(data: Any) -> Iterator[tuple[str, Any]]:
    """Return copies of the data with one value removed, replaced, or an unknown key added."""
    for path in paths_of(data):
        parent, key = at(data, path[:-1]), path[-1]
        for number, value in enumerate(REPLACEMENTS):
            changed = copy.deepcopy(data)
            at(changed, path[:-1])[key] = value
            yield f"{path}={value!r}", changed
            if number == 0 and isinstance(parent, dict):
                changed = copy.deepcopy(data)
                del at(changed, path[:-1])[key]
                yield f"{path} removed", changed
        if isinstance(at(data, path), dict):
            changed = copy.deepcopy(data)
            at(changed, path)["unknown"] = "x"
            yield f"{path} with an unknown key", changed


def paths_of(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in inside:
        yield (*path, key)
        if isinstance(value, dict | list) and key != "schema":
            yield from paths_of(value, (*path, key))


def at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


#: The schema cannot know the existing names: profiles, commands, directories, files, vars.
NAMES = re.compile(r"'(runner|profile|command|path|workspace|prompt_file|vars|who|args)'")


@pytest.mark.parametrize("name", VALID)
def test_schema_and_loader_refuse_the_same_small_mistakes(name: str, tmp_path: Path) -> None:
    false_alarms, missed = [], []
    for mutation, data in mutations(VALID[name]):
        loader, schema = loader_accepts(data, tmp_path), schema_accepts(data)
        # An editor should mark a mistake in a default that no job uses.
        if loader and not schema and not mutation.startswith("('defaults'"):
            false_alarms.append(mutation)
        # The schema cannot merge defaults into jobs.
        if schema and not loader and not NAMES.search(mutation) and "defaults" not in VALID[name]:
            missed.append(mutation)
    assert (false_alarms, missed) == ([], [])


@pytest.mark.parametrize(
    "text", ["3", "20s", " 1.5 h ", "250ms", "7d", "0", "", "s", "-1", "1 min", "1e3", ".5", "1."]
)
def test_schema_and_loader_accept_the_same_durations(text: str) -> None:
    try:
        parse_duration(text)
        valid = True
    except ValueError:
        valid = False
    assert schema_accepts(job(deadline=text)) is valid


# -- the files of the repository -------------------------------------------------------------------


def test_every_rule_of_the_schema_names_code_that_exists() -> None:
    schema_for("job")  # imports every model
    classes = {each.__qualname__: each for each in _subclasses(BaseModel)}
    rules = {
        *model_schema.ACCEPT_TEXT,
        *model_schema.ACCEPT_WORD,
        *model_schema.ACCEPT_THE_SAME,
        *model_schema.FIELD_RULES,
    }
    missing = set(model_schema.MODEL_RULES) - set(classes)
    for name in rules - {each.__qualname__ for each in (text_match.as_tuple, refuse_boolean)}:
        owner = name.rpartition(".")[0]
        known = {*vars(classes[owner]), *classes[owner].model_fields}
        missing |= {name} - {f"{owner}.{each}" for each in known}
    assert not missing


def _subclasses(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def test_both_schemas_are_valid_and_complete() -> None:
    for kind in ("job", "config"):
        jsonschema_rs.meta.validate(schema_for(kind))
    schema = schema_for("job")
    fields = schema["$defs"]["job"]["properties"]
    assert fields.keys() == {*Job.model_fields, "prompt_file", "vars"}
    assert all("title" in f or "$ref" in f or "anyOf" in f for f in fields.values())
    assert fields["priority"]["default"] == 5
    assert fields["deadline"]["description"]
    verifiers = {n.removeprefix("verifier.") for n in schema["$defs"] if n.startswith("verifier.")}
    assert sorted(verifiers) == VerifierRegistry().names()
    kinds = [n.split(".")[1] for n in schema["$defs"] if re.fullmatch(r"runner\.\w+", n)]
    assert sorted({*kinds} - {"part", "profile"}) == RunnerRegistry().kinds()
    assert schema["$defs"]["runner.profile"]["properties"].keys() >= SAFE_OVERRIDES
    assert schema_for("config")["properties"].keys() == Settings.model_fields.keys()


def blocks(path: Path, language: str) -> list[str]:
    text = path.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def examples(pattern: str) -> list[Any]:
    found = sorted((ROOT / "examples").rglob(pattern))
    if pattern == "*.yaml":  # not plans, suites, loops and specs
        found = [path for path in found if not {"edits", "loops", "coding_loop"} & set(path.parts)]
    return [pytest.param(path, id=str(path.relative_to(ROOT / "examples"))) for path in found]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:
    """Return the validator of job files with the plug-ins of a folder's pyproject.toml."""

    def install(folder: Path) -> Any:
        project = folder / "pyproject.toml"
        if not project.exists():
            return validator("job")
        groups = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"]
        points = {
            group: [EntryPoint(name, value, group) for name, value in names.items()]
            for group, names in groups.items()
        }
        monkeypatch.syspath_prepend(str(folder))
        for registry in (runner_registry, verifier_registry):
            monkeypatch.setattr(registry, "entry_points", lambda group: points.get(group, []))
        return jsonschema_rs.Draft202012Validator(schema_for("job"))

    return install


def problems(validator: Any, data: Any) -> list[str]:
    return [str(error) for error in validator.iter_errors(data)]


@pytest.mark.parametrize("path", examples("*.yaml"))
def test_job_files_of_the_examples_are_valid(path: Path, installed: Callable[[Path], Any]) -> None:
    assert problems(installed(path.parent), YAML(typ="safe").load(path)) == []


PLUG_INS = {
    "mulligan.verifiers": {"my.even": "plugged:Even", "my.broken": "plugged:none"},
    "mulligan.runners": {"echo": "plugged:echo"},
}
PLUGGED = """\
from pydantic import BaseModel, field_validator
class Even:
    slow = False
    class Options(BaseModel, extra="forbid"):
        tolerance: int = 0
        words: list[str] = []
        @field_validator("words", mode="before")
        @classmethod
        def _split(cls, value): return value.split() if isinstance(value, str) else value
    def __init__(self, options): pass
"""


@pytest.mark.parametrize(
    ("data", "accepted"),
    [
        (job(verifiers=["my.even", "my.broken"]), False),
        (job(verifiers=["my.even", {"id": "my.broken", "any": "thing"}]), True),
        (job(verifiers=[{"id": "my.even", "tolerance": 1, "words": "a b"}]), True),
        (job(verifiers=[{"id": "my.even", "tolerence": 1}]), False),
        (job(runner={"kind": "echo", "any": "thing"}), True),
        (with_defaults({**job(), "runner": {"kind": "echo"}}, {"runner": {"any": "thing"}}), True),
        (job(runner={"kind": "ehco"}), False),
    ],
)
def test_plug_ins_are_part_of_the_schema(
    data: Any, accepted: bool, tmp_path: Path, installed: Callable[[Path], Any]
) -> None:
    (tmp_path / "plugged.py").write_text(PLUGGED)
    lines = ["[project]"]
    for group, names in PLUG_INS.items():
        lines.append(f'[project.entry-points."{group}"]')
        lines += [f'"{name}" = "{value}"' for name, value in names.items()]
    (tmp_path / "pyproject.toml").write_text("\n".join(lines))
    assert installed(tmp_path).is_valid(data) is accepted


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.stem)
def test_job_files_in_the_documents_are_valid(path: Path) -> None:
    """The missing fields of a fragment are added."""
    for block in blocks(path, "yaml"):
        if is_loop_file(block):
            continue
        data = YAML(typ="safe").load(block)
        whole = not isinstance(data, dict) or "jobs" in data
        assert problems(validator("job"), data if whole else {**job(), **data}) == []


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.stem)
def test_configurations_in_the_documents_are_valid(path: Path) -> None:
    for block in blocks(path, "toml"):
        if not block.startswith("[project"):
            assert problems(validator("config"), tomllib.loads(block)) == []


@pytest.mark.parametrize("path", examples("mulligan.toml"))
def test_configurations_of_the_examples_are_valid(path: Path) -> None:
    assert problems(validator("config"), tomllib.loads(path.read_text("utf-8"))) == []


# -- mulligan.toml ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("", True),
        ('lease = "30s"\npartitions = 2\nallow_inline = true', True),
        ('[runners.a]\nkind = "local"\n[runners.b]\nkind = "scripted"\nanswers = ["x"]', True),
        ('[commands.a]\nargv = ["true"]\ntimeout = "1m"\n[workspaces]\nw = "/srv"', True),
        ("leese = 3", False),
        ('lease = "soon"', False),
        ("lease = 0", False),
        ("partitions = 101", False),
        ('key_prefix = "a b"', False),
        ('exempt_task_types = "read_aloud"', False),
        ("flower_port = 70000", False),
        ("workspaces = {a = 3}", False),
        ('runners = {a = "local"}', False),
        ("[runners.a]\nmax_tokens = 3", False),
        ('[runners.a]\nkind = "opnai"', False),
        ('[runners.a]\nkind = "openai"', False),
        ('[runners.a]\nkind = "local"\nmodel = "x"', False),
        ('[runners.a]\nkind = "local"\ntimeout = "1 min"', False),
        ('[commands.a]\nargv = "true"', False),
        ('[commands.a]\nargs = ["true"]', False),
    ],
)
def test_schema_and_settings_agree_about_mulligan_toml(text: str, accepted: bool) -> None:
    Path("mulligan.toml").write_text(text)
    assert config_is_accepted() is accepted
    assert validator("config").is_valid(tomllib.loads(text)) is accepted


def config_is_accepted() -> bool:
    """Return whether `doctor`, and any job that names one of the commands, would accept it."""
    try:
        settings = load_settings()
    except BadInput:
        return False
    runners = RunnerRegistry(profiles=settings.runners)
    verifiers = VerifierRegistry()
    jobs = [
        Job.model_validate(job(runner={"kind": "local"},
                               verifiers=[{"id": "command.subprocess", "command": name}]))
        for name in settings.commands
    ]  # fmt: skip
    inline = settings.model_copy(update={"allow_inline": True})
    return not runners.check_profiles() and not any(
        check_job(each, settings=inline, runners=runners, verifiers=verifiers, local_paths=True)
        for each in jobs
    )
