"""Every program of examples/gallery, run as a reader would run it, in a clean copy.

01, 02 and 07 need nothing else. 04 to 06, 08 and 09 share one fleet; 03 has its own worker.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from support.console_server import running_console
from support.fleet import Fleet, running_fleet
from support.redis_server import RedisServer
from support.waiting import wait_for

from mulligan.workers.local.supervisor import Stack
from mulligan.workers.settings.model import Settings

GALLERY = Path(__file__).resolve().parents[3] / "examples" / "gallery"
MARK = "GALLERY_TEST_MARK"
#: The runners of 05 and 06 call no model.
ALLOWED_RUNNERS = "except:phrasebook,command"
CELERY = (sys.executable, "-P", "-m", "celery")


def clean_environment(**extra: str) -> dict[str, str]:
    """Return the environment without variables that the programs read, and with models disabled."""
    hidden = ("MULLIGAN_", "BROKER_URL", "RUNNER", "PYTHONPATH")
    visible = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**visible, "MULLIGAN_NO_MODELS": ALLOWED_RUNNERS, **extra}


def run(*argv: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run a program, which must succeed and leave no process behind, and return its output."""
    mark = uuid4().hex
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        env={**clean_environment(**(environment or {})), MARK: mark},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{argv}:\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    wait_for(lambda: not remaining_processes(mark), f"the last process of {argv}", seconds=5)
    return done.stdout


def remaining_processes(mark: str) -> list[str]:
    """Return the command lines of living processes with this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def install(program: Path, target: Path) -> None:
    """Install a module and its entry points as `pip install .` does, without pip."""
    project = tomllib.loads((program / "pyproject.toml").read_text())["project"]
    info = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    fields = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{fields}")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module in program.glob("*.py"):
        shutil.copy(module, target)


@pytest.fixture(scope="module")
def gallery() -> Iterator[Path]:
    """A writable copy of the gallery."""
    # Not tmp_path: the kernel allows 108 bytes for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="gallery-") as folder:
        ignore = shutil.ignore_patterns("__pycache__", ".mulligan")
        yield Path(shutil.copytree(GALLERY, Path(folder) / "gallery", ignore=ignore))


@pytest.fixture(scope="module")
def plugin_environment(gallery: Path) -> dict[str, str]:
    """An environment with the plug-ins installed and the agent on the PATH."""
    packages = gallery.parent / "site"
    install(gallery / "04_own_verifier", packages)
    install(gallery / "05_own_runner", packages)
    path = f"{gallery / '06_command_agent'}{os.pathsep}{os.environ['PATH']}"
    return {"PYTHONPATH": str(packages), "PATH": path}


@pytest.fixture(scope="module")
def fleet(gallery: Path, plugin_environment: dict[str, str]) -> Iterator[Fleet]:
    """The workers that `mulligan up` starts in 08_on_done, and the shop's worker."""
    folder, services = gallery.parent / "fleet", gallery / "08_on_done"
    environment = {
        **plugin_environment,
        "BROKER_URL": f"redis+socket://{folder / 'redis' / 'r.sock'}",
        "MULLIGAN_CONFIG": str(services / "mulligan.toml"),
        "MULLIGAN_NO_MODELS": ALLOWED_RUNNERS,
    }
    with running_fleet(folder, environment=environment) as fleet:
        worker = ("--workdir", str(services), "-A", "shop", "worker", "-Q", "shop", "-P", "solo")
        fleet.stack.add("shop", [*CELERY, *worker, "-l", "warning"])
        yield fleet


@pytest.fixture(scope="module")
def celery_app_broker(gallery: Path) -> Iterator[str]:
    """The broker of 03's Celery app, with its worker running."""
    program, mark = gallery / "03_own_celery_app", uuid4().hex
    server = RedisServer(gallery.parent / "own")
    server.start()
    environment = clean_environment(BROKER_URL=server.url, PYTHONPATH=str(program))
    stack = Stack(gallery.parent / "own", {**environment, MARK: mark})
    worker = ("--workdir", str(program), "-A", "tasks", "worker", "-B", "-P", "threads")
    stack.add("own", [*CELERY, *worker, "-l", "warning"])
    try:
        yield server.url
    finally:
        stack.stop()
        server.kill()
        assert not remaining_processes(mark)


@pytest.fixture(scope="module")
def run_output(gallery: Path, fleet: Fleet, plugin_environment: dict[str, str]) -> str:
    """The output of `mulligan run` for the three job files together, without column padding."""
    environment = {
        **plugin_environment,
        "MULLIGAN_BROKER_URL": fleet.server.url,
        "MULLIGAN_ALLOW_INLINE": "true",
    }
    programs = ("04_own_verifier", "05_own_runner", "06_command_agent")
    files = [gallery / program / "job.yaml" for program in programs]
    output = run("-m", "mulligan.console", "run", *files, cwd=gallery, environment=environment)
    return re.sub(" +", " ", output)


# -- the programs: each test is named after one ----------------------------------------------------


def test_01_client(gallery: Path, tmp_path: Path) -> None:
    output = run(gallery / "01_client.py", cwd=tmp_path)
    assert "must be the age of an adult" in output
    assert "Person(name='Alice', age=31), attempts: 2, score: 100" in output


def test_02_notebook(gallery: Path, tmp_path: Path) -> None:
    output = run(gallery / "02_notebook.py", cwd=tmp_path)
    assert "positive  attempt 2  Five stars, would buy again." in output
    assert len(output.splitlines()) == 3


_CELLS = """
import asyncio, pathlib, sys

async def kernel():
    cells = pathlib.Path(sys.argv[1]).read_text().split("\\n# %%")
    scope = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        exec(compile(cell if not number else "#" + cell, f"cell {number}", "exec"), scope)
    await asyncio.gather(*scope["asking"])

asyncio.run(kernel())
"""


def test_02_notebook_cell_by_cell_in_a_running_loop(gallery: Path, tmp_path: Path) -> None:
    output = run("-c", _CELLS, gallery / "02_notebook.py", cwd=tmp_path)
    assert "positive  attempt 2  Five stars, would buy again." in output


def test_03_own_celery_app(gallery: Path, celery_app_broker: str) -> None:
    output = run(
        "producer.py",
        cwd=gallery / "03_own_celery_app",
        environment={"BROKER_URL": celery_app_broker},
    )
    assert output == 'invoice: {"customer": "Alice", "total": 12.5}\n'


def test_04_own_verifier(gallery: Path, run_output: str) -> None:
    output = run("own_verifier.py", cwd=gallery / "04_own_verifier")
    assert output == "gallery.line_length keeps the contract of a verifier\n"
    assert "haiku attempt 1 score 0 reasoning_error → immediate retry" in run_output
    assert "haiku attempt 2 score 100" in run_output


def test_05_own_runner(gallery: Path, run_output: str) -> None:
    output = run("own_runner.py", cwd=gallery / "05_own_runner")
    assert output == "phrasebook keeps the contract of a runner: Bonjour!\n"
    assert "greeting attempt 1 score 0 reasoning_error → immediate retry" in run_output
    assert "greeting attempt 2 score 100" in run_output


def test_06_command_agent(gallery: Path, run_output: str) -> None:
    assert "fix_slug attempt 1 score 50 test_failed → immediate retry" in run_output
    assert "fix_slug attempt 2 score 100" in run_output
    untouched = "06_command_agent/project/slug.py"
    assert (gallery / untouched).read_text() == (GALLERY / untouched).read_text()


def test_07_batch(gallery: Path, tmp_path: Path) -> None:
    output = run(gallery / "07_batch.py", cwd=tmp_path)
    assert re.match(r"1000 jobs in [\d.]+ s, \d+ per second\n", output)
    assert "100 of them were repaired, none is wrong" in output


def test_08_on_done(gallery: Path, fleet: Fleet) -> None:
    environment = {"BROKER_URL": fleet.server.url}
    output = run("order.py", cwd=gallery / "08_on_done", environment=environment)
    assert "order 7: submitted" in output
    log = fleet.folder / "logs" / "shop.log"
    wait_for(lambda: "order 7: We are sorry" in log.read_text(), "the shop to receive the result")
    assert "order 7: succeeded after 2 attempts" in log.read_text()


def test_09_over_http(gallery: Path, fleet: Fleet) -> None:
    runners = tomllib.loads((gallery / "08_on_done" / "mulligan.toml").read_text())["runners"]
    settings = Settings(broker_url=fleet.server.url, home=fleet.folder, runners=runners)
    with running_console(settings) as console:
        environment = {"CONSOLE_URL": console.url}
        output = run("09_over_http.py", cwd=gallery, environment=environment)
    assert re.fullmatch(r"attempt 1: score \d+\nattempt 2: score 100\nWe are sorry: .*\n", output)


# -- the gallery itself ----------------------------------------------------------------------------


def programs() -> list[str]:
    return sorted(path.name for path in GALLERY.glob("[0-9]*"))


def test_there_are_at_least_eight_programs() -> None:
    assert len(programs()) >= 8


@pytest.mark.parametrize("program", programs())
def test_every_program_has_a_row_and_a_test(program: str) -> None:
    rows = [line for line in (GALLERY / "README.md").read_text().splitlines() if line[:3] == "| ["]
    (row,) = (line for line in rows if line.startswith(f"| [{program}]("))
    target = row.partition("](")[2].partition(")")[0]
    assert (GALLERY / target).is_file()
    assert f"test_{Path(program).stem}" in globals()
