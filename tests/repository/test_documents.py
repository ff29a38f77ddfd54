"""The documents agree with the code: settings, options, commands, files and examples."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings
from ruamel.yaml import YAML
from support.deploy_files import compose
from support.job_file_cases import is_loop_file
from typer.core import TyperGroup
from typer.main import get_command

from mulligan.console.app import create_console
from mulligan.console.cli.main import create_cli
from mulligan.console.http.context import open_context
from mulligan.console.jobfiles.job_file import find_jobs
from mulligan.console.loopfiles.references import Parameter
from mulligan.console.mcp.loop_tools import TOOLS
from mulligan.policies.failures.failure import FailureKind
from mulligan.policies.jobs.job import (
    Budget,
    DelayedVerification,
    Job,
    PolicySpec,
    RunnerSpec,
    VerifierSpec,
    Workspace,
)
from mulligan.policies.loops.budget import LoopBudget
from mulligan.policies.loops.spec import ItemSpec, LoopConfig, SpecDocument
from mulligan.workers.app import app
from mulligan.workers.celery.broker.queues import QUEUES, SUBMIT_QUEUE, pools
from mulligan.workers.runners.command_options import CommandOptions
from mulligan.workers.runners.external import ExternalOptions
from mulligan.workers.runners.local import LocalOptions
from mulligan.workers.runners.openai import OpenAIOptions
from mulligan.workers.runners.runner_registry import SAFE_OVERRIDES, RunnerRegistry
from mulligan.workers.runners.scripted import ScriptedAnswer, ScriptedOptions
from mulligan.workers.settings.config_file import OTHER_VARIABLES
from mulligan.workers.settings.model import Settings, load_settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LAYERS = ("policies", "tasks", "workers", "console")
RUNNERS: dict[str, type[BaseModel]] = {
    "openai": OpenAIOptions,
    "command": CommandOptions,
    "local": LocalOptions,
    "scripted": ScriptedOptions,
    "external": ExternalOptions,
}
VERIFIERS = VerifierRegistry(plugins=lambda: [])


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(text: str) -> Iterator[list[str]]:
    """Yield the rows of all tables, without headings and rulers."""
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("|") and before.startswith("|") and not line.startswith("|--"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def named_in(text: str) -> set[str]:
    """Return the names in the first cells of all tables."""
    return {name for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])}


def section(text: str, title: str) -> str:
    """Return the text from a heading to the next one of its level or above."""
    level = len(title) - len(title.lstrip("#"))
    found = re.search(
        rf"^{re.escape(title)}$(.*?)(?=^#{{1,{level}}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found, f"there is no heading {title!r}"
    return found[1]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(name), re.MULTILINE | re.DOTALL)


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


# -- settings --------------------------------------------------------------------------------------


def settings_rows() -> dict[str, list[str]]:
    found = rows(text_of("docs/configuration.md"))
    return {row[0].strip("`"): row for row in found if len(row) == 4}


def test_exactly_the_settings_are_documented() -> None:
    assert settings_rows().keys() == Settings.model_fields.keys()


def test_every_group_of_settings_has_a_section() -> None:
    sections = re.split(r"^## ", text_of("docs/configuration.md"), flags=re.MULTILINE)
    tables = [{row[0].strip("`") for row in rows(part) if len(row) == 4} for part in sections]
    groups = [b for b in Settings.__bases__ if issubclass(b, BaseModel) and b is not BaseSettings]
    assert len(groups) > 10
    assert [base.__name__ for base in groups if set(base.model_fields) not in tables] == []


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_a_setting_is_documented_with_its_variable_and_default(name: str) -> None:
    _, variable, default, meaning = settings_rows()[name]
    assert variable == f"`MULLIGAN_{name.upper()}`"
    assert meaning
    field = Settings.model_fields[name]
    if default.startswith("`"):
        value = tomllib.loads(f"it = {default.strip('`')}")["it"]
        assert getattr(load_settings(**{name: value}), name) == field.get_default(
            call_default_factory=True
        )
    else:
        computed = field.default is PydanticUndefined
        pair = (default, computed)
        assert (default, field.default) == ("none", None) or pair == ("processors", True)


def test_the_complete_file_has_every_setting_at_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = blocks("docs/configuration.md", "toml")
    shown = set(re.findall(r"^(?:# )?([a-z_]+) = ", example.partition("\n[")[0], re.MULTILINE))
    tables = set(re.findall(r"^\[(\w+)", example, re.MULTILINE))
    assert shown | tables == Settings.model_fields.keys()
    settings = settings_of(example, tmp_path, monkeypatch)
    plain = load_settings().model_dump(exclude={*tables})
    assert settings.model_dump(exclude={*tables}) == plain


def settings_of(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    path = tmp_path / "example.toml"
    path.write_text(text)
    with monkeypatch.context() as inside:
        inside.setenv("MULLIGAN_CONFIG", str(path))
        settings = load_settings()
        inside.delenv("MULLIGAN_CONFIG")
        assert RunnerRegistry(profiles=settings.runners).check_profiles() == []
        return settings


def test_every_named_variable_exists() -> None:
    known = {f"MULLIGAN_{name.upper()}" for name in Settings.model_fields}
    known |= OTHER_VARIABLES
    names = [name for name in tracked() if name.endswith((".md", ".yml", "Procfile", "Dockerfile"))]
    for name in names:
        found = set(re.findall(r"\bMULLIGAN_[A-Z]+(?:_[A-Z]+)*", text_of(name)))
        found.discard("MULLIGAN_RUNNERS__small__kind")
        assert found <= known, f"{name} names {found - known}"
    listed = set(re.findall(r"`(MULLIGAN_\w+)`", text_of("docs/configuration.md")))
    assert known <= listed


# -- jobs, verifiers, runners ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "model"),
    [
        ("## The fields of a job", Job),
        ("### policy", PolicySpec),
        ("### budget", Budget),
        ("### workspace", Workspace),
        ("### delayed_verification", DelayedVerification),
        ("## Verifiers", VerifierSpec),
        ("## Runners", RunnerSpec),
    ],
)
def test_every_field_of_a_job_is_documented(title: str, model: type[BaseModel]) -> None:
    assert model.model_fields.keys() <= named_in(section(text_of("docs/job-files.md"), title))


@pytest.mark.parametrize(
    ("title", "model"),
    [
        ("## loop.yaml", LoopConfig),
        ("### budget", LoopBudget),
        ("## Spec files", SpecDocument),
        ("## Spec files", ItemSpec),
        ("## Parameters and variables", Parameter),
    ],
)
def test_every_field_of_a_loop_is_documented(title: str, model: type[BaseModel]) -> None:
    assert model.model_fields.keys() <= named_in(section(text_of("docs/loop-files.md"), title))


def test_every_failure_kind_and_memory_scope_is_documented() -> None:
    text = text_of("docs/job-files.md")
    scopes = get_args(Job.model_fields["memory_scope"].annotation)
    names = [*(kind.value for kind in FailureKind), *scopes]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_verifier_and_its_options_are_documented() -> None:
    text = text_of("docs/verifiers.md")
    overview = text.partition("\n## ")[0]
    assert sorted(named_in(overview)) == VERIFIERS.names(), "the table at the top of the page"
    for name in VERIFIERS.names():
        page = section(text, f"## `{name}`")
        fields = VERIFIERS._class(name).Options.model_fields
        options = {field.alias or option for option, field in fields.items()}
        extra = {"command"} if name == "command.subprocess" else set()
        assert {n for n in named_in(page) if n.isidentifier()} == options | extra, name
        assert "Evidence:" in page


def test_every_runner_and_its_options_are_documented() -> None:
    assert RunnerRegistry().kinds() == sorted(RUNNERS)
    for kind, model in RUNNERS.items():
        page = section(text_of("docs/runners.md"), f"## `{kind}`")
        options = set(model.model_fields)
        if kind == "scripted":
            options |= set(ScriptedAnswer.model_fields)
        assert named_in(page) == options, kind
    for name in ("docs/runners.md", "docs/job-files.md"):
        assert [n for n in SAFE_OVERRIDES if f"`{n}`" not in text_of(name)] == []


def yaml_examples() -> list[Any]:
    return [
        pytest.param(name, block, id=f"{name}-{number}")
        for name in sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))
        for number, block in enumerate(blocks(name, "yaml"))
        if not is_loop_file(block)  # test_loop_schema.py checks these
    ]


@pytest.mark.parametrize(("name", "block"), yaml_examples())
def test_a_job_example_is_a_valid_job(name: str, block: str, tmp_path: Path) -> None:
    """Missing fields of a fragment are added; a profile must be one that the page shows."""
    data = YAML(typ="safe").load(block)
    if isinstance(data, dict) and "jobs" not in data:
        rest = {"task_type": "example", "prompt": "x", "verifiers": ["json.object"],
                "runner": {"kind": "scripted", "answers": ["x"]}}  # fmt: skip
        data = {**rest, **data}
    path = tmp_path / "job.yaml"
    YAML(typ="safe").dump(data, path)
    (tmp_path / "summary.txt").write_text("Summarise in {{words}} words of {{language}}.")
    settings = tomllib.loads("\n".join(blocks(name, "toml")))
    runners = RunnerRegistry(profiles=settings.get("runners", {}))
    for found in find_jobs([str(path)]):
        assert runners.check(found.job.runner, allow_inline=True) == []
        assert VERIFIERS.check(found.job.verifiers, found.job.workspace) == []


@pytest.mark.parametrize(
    ("name", "block"),
    [
        pytest.param(f"docs/{path.name}", block, id=f"{path.stem}-{number}")
        for path in sorted(DOCS.glob("*.md"))
        for number, block in enumerate(blocks(f"docs/{path.name}", "toml"))
    ],
)
def test_a_toml_example_is_a_valid_file(
    name: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block.startswith("[project.entry-points."):
        groups = set(tomllib.loads(block)["project"]["entry-points"])
        assert groups <= set(tomllib.loads(text_of("pyproject.toml"))["project"]["entry-points"])
        return
    settings_of(block, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").rglob("mulligan.toml")), ids=lambda path: path.parent.name
)
def test_a_configuration_among_the_examples_is_valid(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_of(path.read_text("utf-8"), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "path",
    # test_gallery.py runs the files that use a plug-in (beside a pyproject.toml);
    # test_examples_edits.py runs the plans and suites of edits; test_loop_file.py and
    # test_coding_loop.py read the loops.
    [
        path
        for path in sorted((ROOT / "examples").rglob("*.yaml"))
        if not (path.parent / "pyproject.toml").exists()
        and not {"edits", "loops", "coding_loop"} & set(path.parts)
    ],
    ids=lambda path: path.parent.name,
)
def test_a_job_file_among_the_examples_is_valid(path: Path) -> None:
    for found in find_jobs([str(path)]):
        if found.job.runner.kind is not None:
            assert RunnerRegistry().check(found.job.runner, allow_inline=True) == []
        assert VERIFIERS.check(found.job.verifiers, found.job.workspace) == []


def test_the_plug_ins_in_the_documents_work() -> None:
    for name in ("docs/verifiers.md", "docs/runners.md"):
        (block,) = blocks(name, "python")
        scope: dict[str, Any] = {"__name__": "example"}
        exec(compile(block, name, "exec"), scope)  # noqa: S102 - our own example
        if "Echo" in scope:
            assert scope["make"]({}).provider == "echo"
        else:
            from mulligan.policies.jobs.job import Output
            from mulligan.tasks.ports.verifiers import Candidate

            verifier = scope["EvenLength"](scope["EvenLength"].Options())
            candidate = Candidate(output=Output(text="odd"), text="odd")
            assert verifier.verify(candidate).status == "fail"


# -- the HTTP API ----------------------------------------------------------------------------------


def test_exactly_the_routes_of_the_api_are_documented() -> None:
    context = open_context(load_settings(broker_url="redis://localhost"))  # never connects
    paths = create_console(context).openapi()["paths"]
    routes = {f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs}
    documented = set(re.findall(r"`([A-Z]+ /api/[^`?]+)", text_of("docs/api.md")))
    assert documented == {route for route in routes if "/api/" in route}


def test_every_tool_for_agents_is_documented() -> None:
    documented = {cells[0]: cells[3] for cells in rows(section(text_of("docs/mcp.md"), "## Tools"))}
    assert documented == {f"`{name}`": call.effect for name, call in TOOLS.items()}


# -- the command line ------------------------------------------------------------------------------


def commands(command: Any, path: str = "mulligan") -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for name, child in command.commands.items():
            yield from commands(child, f"{path} {name}")
    else:
        yield path, command.load()


def test_every_command_and_option_is_documented() -> None:
    text = text_of("docs/cli.md")
    titles = re.findall(r"^#+ `(mulligan [^`]*)`$", text, re.MULTILINE)
    found = dict(commands(get_command(create_cli())))
    leaves = {title: re.sub(r" [^a-z].*", "", title) for title in titles}
    groups = {path.rpartition(" ")[0] for path in found}
    assert set(leaves.values()) - groups == found.keys()
    for title, path in leaves.items():
        if path not in found:
            continue
        level = next(line for line in text.splitlines() if line.endswith(f"# `{title}`"))
        documented = {word for cell in named_in(section(text, level)) for word in cell.split()}
        options = [p for p in found[path].params if p.param_type_name == "option"]
        # An option with a negative form has both as opts of one parameter.
        expected = {flag for o in options for flag in (*o.opts, *o.secondary_opts)}
        expected -= {"--help", "-h"}
        assert {word for word in documented if word.startswith("--")} == expected, path


# -- processes -------------------------------------------------------------------------------------


def test_compose_persists_the_ledger_and_publishes_only_local_ports() -> None:
    data = compose()
    services = data["services"]
    for name in ("ledger", "broker"):
        argv = shlex.split(services[name]["command"])
        options = dict(zip(argv[1::2], argv[2::2], strict=True))
        assert options["--appendonly"] == "yes"
        assert options["--maxmemory-policy"] == "noeviction"
        assert services[name]["volumes"] == [f"{name}:/data"]
        assert name in data["volumes"]
    for name, service in services.items():
        assert service["healthcheck"]["test"], name
        assert service["stop_grace_period"], name
        assert "container_name" not in service, "it would forbid --scale"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        for key, value in service.get("environment", {}).items():
            secret = any(word in key for word in ("KEY", "AUTH", "TOKEN", "PASSWORD"))
            assert not secret or re.fullmatch(r"\$\{\w+:[-?][^}]*\}", value), f"{name}: {key}"
    assert "MODEL_KEY" not in services["verify"]["environment"]
    flower = services["flower"]
    assert "--read_only=True" in flower["command"]
    assert "FLOWER_BASIC_AUTH" in flower["environment"]


def test_the_configuration_in_compose_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(compose()["configs"]["mulligan"]["content"], tmp_path, monkeypatch)
    assert settings.runners


def test_the_image_copies_existing_files_and_runs_without_root() -> None:
    lines = text_of("deploy/Dockerfile").splitlines()
    copied = [word for line in lines if line.startswith("COPY ") and "--from" not in line
              for word in line.split()[1:-1]]  # fmt: skip
    included = {line[1:] for line in text_of(".dockerignore").splitlines() if line.startswith("!")}
    assert set(copied) == included
    assert all((ROOT / name).exists() for name in copied)
    user = next(line for line in lines if line.startswith("USER "))
    assert user.split()[1] not in ("0", "root")


def test_every_queue_and_task_is_on_the_map() -> None:
    text = architecture_and_map()
    tasks = [name for name in app.tasks if name.startswith("mulligan.")]
    names = [*QUEUES, SUBMIT_QUEUE, *tasks, *(pool.name for pool in pools(load_settings()))]
    missing = [name for name in names if f"`{name}`" not in text]
    assert missing == [], "add them to docs/architecture.md or docs/map.md"


# -- files and links -------------------------------------------------------------------------------


def documents() -> list[str]:
    return sorted(name for name in tracked() if name.endswith(".md"))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub creates them."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_relative_link_has_a_target() -> None:
    for name in documents():
        prose = re.sub(r"^```.*?^```$", "", text_of(name), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            if "://" in link or link.startswith("mailto:"):
                continue
            path, _, anchor = link.partition("#")
            target = (ROOT / name).parent / path if path else ROOT / name
            assert target.exists(), f"{name}: {link}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target.read_text("utf-8")), f"{name}: {link}"


_POINTER = re.compile(r"[\w.-]+(?:/[\w.-]+)*\.(?:py|lua|md|toml|yml)(?:::?[\w.]+)?")


def architecture_and_map() -> str:
    return text_of("docs/architecture.md") + text_of("docs/map.md")


def pointers() -> list[str]:
    """Return everything in backticks that is a file, with or without a name in it."""
    quoted = re.findall(r"`([^`\n]+)`", architecture_and_map())
    return [word for word in quoted if _POINTER.fullmatch(word)]


def defined_in(path: Path) -> set[str]:
    """Return every name that a module defines at its top or in a class."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def test_every_pointer_to_the_code_exists() -> None:
    found = pointers()
    assert len(found) > 100
    for pointer in found:
        path, name = (*re.split("::?", pointer), "")[:2]
        if path == "mulligan.toml":
            continue
        assert (ROOT / path).is_file(), pointer
        if name:
            assert set(name.split(".")) <= defined_in(ROOT / path), pointer


def test_the_console_has_the_documented_runbook() -> None:
    page = ROOT / "console" / "page" / "runbook.md"
    assert page.resolve() == ROOT / "docs" / "runbook.md", "make it a link to docs/runbook.md"


def test_every_script_is_on_the_map() -> None:
    text = text_of("docs/map.md")
    scripts = [
        f"workers/ledger/lua/{path.name}" for path in (ROOT / "workers/ledger/lua").glob("*.lua")
    ]
    assert [name for name in scripts if f"`{name}`" not in text] == []
    finding = list(rows(section(text, "## Where do I find…")))
    assert len(finding) >= 20


def drawn_rooms() -> dict[str, set[str]]:
    """Return the folders in the picture of the architecture, by layer."""
    (picture,) = blocks("docs/architecture.md", "text")
    rooms: dict[str, set[str]] = {}
    for line in picture.splitlines():
        names = re.findall(r"(\w+)/", line)
        if names and names[0] in LAYERS:
            rooms[names[0]] = set()
        elif names:
            rooms[list(rooms)[-1]] |= set(names)
    return rooms


def test_the_picture_shows_the_rooms_of_every_layer() -> None:
    folders = {
        layer: {path.parent.name for path in (ROOT / layer).glob("*/__init__.py")}
        for layer in LAYERS
    }
    assert drawn_rooms() == folders


def test_the_architecture_fits_on_two_screens() -> None:
    assert len(text_of("docs/architecture.md").splitlines()) <= 110


def test_decisions_have_a_number_of_their_own_and_three_sections() -> None:
    files = sorted((DOCS / "decisions").glob("*.md"))
    numbers = [int(path.name[:4]) for path in files]
    assert len(numbers) == len(set(numbers))
    for path in files:
        text = path.read_text("utf-8")
        assert text.startswith(f"# {path.name[:4]}: ")
        titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert [title.split(",")[0] for title in titles] == ["Context", "Choice", "What it costs"]


#: Put together from parts, so that this file does not contain what it forbids.
FORBIDDEN = re.compile(
    "|".join(
        [
            "pypi" + r"\.org/simple",
            "python" + "hosted",
            r"(?:extra-)?" + "index" + "[-_]url",
            "arti" + "factory",
            r"(?<![\w.}])/(?:" + "home/(?!ada/)" + "|Users/|root/(?!project/)|work/" + r")\w",
        ]
    ),
    re.IGNORECASE,
)


def test_no_file_names_a_registry_or_a_home_directory() -> None:
    """The exceptions are the invented homes in tests of masks."""
    for name in tracked():
        data = (ROOT / name).read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8").splitlines(), 1):
            assert not FORBIDDEN.search(line), f"{name}:{number}: {line.strip()[:120]}"
