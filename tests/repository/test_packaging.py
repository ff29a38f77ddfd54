"""The wheel in an empty environment, and projects whose modules have the names of our folders.

Needs the package registry that `make setup` used; uv answers nearly all of it from its cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mulligan.workers.celery.broker.queues import CONTROL_QUEUE, JOB_QUEUES
from mulligan.workers.ledger.connection.scripts import SCRIPTS
from mulligan.workers.local.embedded_redis import EmbeddedRedis

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
GALLERY = ROOT / "examples" / "gallery"
FOLDERS = ("policies", "tasks", "workers", "console")
CONSTRAINTS = ROOT / "constraints.txt"


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that affect Python or mulligan."""
    hidden = ("PYTHON", "MULLIGAN_", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def run(*argv: str | Path, cwd: Path | None = None) -> str:
    """Run a program and return its output."""
    environment = clean_environment()
    done = subprocess.run(
        argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{argv}:\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def environment_in(folder: Path) -> Path:
    """Create an empty environment and return its Python."""
    run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy of the repository, because builders leave files behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("mulligan", *FOLDERS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    pinned = ["--python", sys.executable, "--build-constraints", str(CONSTRAINTS)]
    run(UV, "build", "--wheel", "--quiet", *pinned, "--out-dir", source / "dist", source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with only the wheel and every extra."""
    return _install(f"mulligan[all] @ {wheel.as_uri()}", tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel without extras."""
    return _install(f"mulligan @ {wheel.as_uri()}", tmp_path_factory.mktemp("core"))


def _install(requirement: str, folder: Path) -> Path:
    python = environment_in(folder / "venv")
    pinned: list[str | Path] = ["--python", python, "--constraints", CONSTRAINTS]
    run(UV, "pip", "install", "--quiet", *pinned, requirement)
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project whose modules have the names of our folders."""
    (tmp_path / "tasks.py").write_text("OWNER = 'the user'\n")
    for name in ("workers", "policies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'the user'\n")
    return tmp_path


def test_the_package_links_to_the_folders_by_relative_links() -> None:
    for name in FOLDERS:
        assert str((ROOT / "mulligan" / name).readlink()) == f"../{name}"


def test_the_wheel_has_every_module_and_script_and_only_mulligan(wheel: Path, source: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"mulligan"}
    expected = {
        f"mulligan/{path.relative_to(source).as_posix()}"
        for folder in FOLDERS
        for path in (source / folder).rglob("*")
        if path.suffix in (".py", ".lua")
    }
    assert expected - names == set(), "add the package to [tool.setuptools] packages"
    assert {"mulligan/__init__.py", "mulligan/py.typed"} <= names
    assert any(name.endswith("/settle.lua") for name in expected)


def test_the_wheel_works_in_an_empty_environment_from_another_directory(
    installed: Path, tmp_path: Path
) -> None:
    assert run(installed.with_name("mulligan"), "--version", cwd=tmp_path) == "mulligan 0.1.0"
    code = (
        "import mulligan.policies.repair.retry, mulligan.tasks.jobs.attempt;"
        "import mulligan.workers.app as a;"
        "from mulligan.workers.ledger.connection.scripts import SCRIPTS;"
        "print(sorted(n for n in a.app.tasks if n.startswith('mulligan.')), len(SCRIPTS))"
    )
    tasks = [
        "attempt",
        "bulk",
        "deliver",
        "edit",
        "edits",
        "fold",
        "monitor",
        "plan",
        "recheck",
        "repositories",
        "submit",
        "sweep",
        "verify",
        "webhooks",
    ]
    scripts = len(SCRIPTS)
    assert run(installed, "-c", code, cwd=tmp_path) == (
        f"{[f'mulligan.{name}' for name in tasks]} {scripts}"
    )


def test_a_project_with_modules_of_the_same_names_can_import_both(
    installed: Path, project: Path
) -> None:
    """Given a project with tasks.py, workers/ and policies/, it and mulligan import their own."""
    code = (
        "import tasks, workers, policies; import mulligan.workers.app, mulligan.tasks.jobs.submit;"
        "import mulligan.policies.repair.retry as r;"
        "print({m.OWNER for m in (tasks, workers, policies)}, r.PASSING_SCORE)"
    )
    assert run(installed, "-c", code, cwd=project) == "{'the user'} 70.0"
    report = ("-m", "celery", "-A", "mulligan.workers.app", "report")
    assert "software -> celery" in run(installed, *report, cwd=project)


def test_the_client_and_a_users_tasks_work_in_such_a_project(
    installed: Path, project: Path
) -> None:
    """Given two programs of the gallery, they find both mulligan's and the project's modules."""
    shutil.copy(GALLERY / "01_client.py", project)
    output = run(installed, "01_client.py", cwd=project)
    assert output.endswith("Person(name='Alice', age=31), attempts: 2, score: 100")
    shutil.copy(GALLERY / "03_own_celery_app" / "tasks.py", project)
    code = (
        "import tasks, workers, policies; from mulligan import RepairingTask;"
        "print(tasks.extract.name, isinstance(tasks.extract, RepairingTask),"
        " 'mulligan.sweep' in tasks.app.tasks, workers.OWNER)"
    )
    assert run(installed, "-c", code, cwd=project) == "tasks.extract True True the user"


# -- without extras --------------------------------------------------------------------------------

_PRODUCER = """
import sys
from pydantic import BaseModel
from mulligan import Client
class Person(BaseModel):
    name: str
with Client(sys.argv[1]) as client:
    result = client.run("Who?", returns=Person, timeout=60, runner="script")
print(result.value.name, len(result.attempts))
"""
_USER_APP = """
import sys
from celery import Celery
from pydantic import BaseModel
from mulligan import RepairingTask, install
app = Celery("shop", broker=sys.argv[1], task_always_eager=True)
install(app)
class Price(BaseModel):
    amount: int
answers = iter(['{"amount": "many"}', '{"amount": 3}'])
@app.task(base=RepairingTask, verifiers=[Price], name="shop.price")
def price():
    return next(answers)
print(price.delay().get())
"""


def test_the_core_installs_no_package_of_an_extra(core: Path, tmp_path: Path) -> None:
    code = (
        "from importlib.util import find_spec;"
        "from mulligan.extras import EXTRA_OF;"
        "print([name for name in EXTRA_OF if find_spec(name)])"
    )
    assert run(core, "-c", code, cwd=tmp_path) == "[]"


def test_the_core_runs_a_job_over_a_broker_and_a_users_task(core: Path, tmp_path: Path) -> None:
    """Given a broker and a worker without extras, a job and a user's task are repaired."""
    runner = """[runners.script]
kind = "scripted"
answers = ['{"nam": "Alice"}', '{"name": "Alice"}']
"""
    (tmp_path / "mulligan.toml").write_text(runner)
    server = EmbeddedRedis(tmp_path / "redis")
    server.start()
    try:
        queues = ",".join((*JOB_QUEUES, CONTROL_QUEUE))
        argv = ["-m", "celery", "-A", "mulligan.workers.app", "worker", "-P", "threads", "-Q"]
        with worker_process([core, *argv, queues], tmp_path, server.url):
            assert run(core, "-c", _PRODUCER, server.url, cwd=tmp_path) == "Alice 2"
        assert run(core, "-c", _USER_APP, server.url, cwd=tmp_path) == '{"amount": 3}'
    finally:
        server.stop()


@contextmanager
def worker_process(argv: Sequence[str | Path], folder: Path, broker_url: str) -> Iterator[None]:
    environment = clean_environment() | {"MULLIGAN_BROKER_URL": broker_url}
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(argv, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(60)


def test_the_core_has_no_command_line_and_names_its_extra(core: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [core.with_name("mulligan"), "--help"], cwd=tmp_path, env=clean_environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().endswith("run: pip install 'mulligan[console]'")
    assert len(done.stderr.splitlines()) == 1


def test_an_editable_install_exposes_only_mulligan(source: Path, tmp_path: Path) -> None:
    """From another directory, `import tasks` does not find mulligan's folder."""
    python = environment_in(tmp_path / "venv")
    pinned: list[str | Path] = ["--python", python, "--build-constraints", CONSTRAINTS]
    run(UV, "pip", "install", "--quiet", "--no-deps", *pinned, "--editable", source)
    code = (
        "from importlib.util import find_spec;"
        "import mulligan.policies, mulligan.tasks, mulligan.workers, mulligan.console;"
        f"print([n for n in {FOLDERS!r} if find_spec(n)], mulligan.tasks.__file__)"
    )
    output = run(python, "-c", code, cwd=tmp_path)
    assert output == f"[] {source}/mulligan/tasks/__init__.py"
