"""Chains, groups, chords and links of repairing tasks follow the attempt that settles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from support.canvases import CANVASES, noted, outcome, register, start
from support.user_tasks import UserProject, user_project
from support.waiting import wait_for

from mulligan import install
from mulligan.testing import InMemoryStack

CODE = """
import os
import sys
from pathlib import Path

from celery import Celery

from mulligan import install

sys.path.insert(0, {tests!r})
from support.canvases import register

app = Celery("mine", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.worker_prefetch_multiplier = 1
install(app, sweep_interval=0.3, lease=5)
register(app, Path(__file__).parent)
"""
TESTS = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserProject]:
    folder = tmp_path_factory.mktemp("c")
    options = ("-P", "threads", "-c", "4")
    with user_project(folder, CODE.format(tests=TESTS), *options) as project:
        project.start_worker()
        yield project
        # A result that is deleted later would wait for the server, to unsubscribe.
        project.app.backend.result_consumer.subscribed_to.clear()


def test_in_a_worker_a_canvas_follows_the_attempt_that_settles(project: UserProject) -> None:
    """Given tasks with and without mulligan, then a canvas has the same outcome."""
    home = project.stack.home
    kinds = register(project.app, home)
    started = {
        (name, number): start(case, tasks, f"{name} {number}")
        for name, case in CANVASES.items()
        for number, tasks in enumerate(kinds)
    }
    for (name, number), result in started.items():
        assert outcome(result) == CANVASES[name].value, (name, number)
    # Links are sent before the result is stored, but may run after it.
    for name, number in started:
        wait_for_notes(home, f"{name} {number}", CANVASES[name].notes)


def wait_for_notes(folder: Path, key: str, expected: tuple[str, ...]) -> None:
    wait_for(lambda: len(noted(folder, key)) >= len(expected), key)
    assert noted(folder, key) == expected, key


def run_inline(app: Celery, folder: Path) -> None:
    for number, tasks in enumerate(register(app, folder)):
        for name, case in CANVASES.items():
            key = f"{name} {number}"
            found = outcome(start(case, tasks, key)), noted(folder, key)
            assert found == (case.value, case.notes), key


def test_an_eager_canvas_has_the_same_outcome(redis_url: str, tmp_path: Path) -> None:
    app = Celery("mine", broker=redis_url, backend="cache+memory://", set_as_current=False)
    install(app)
    app.conf.update(task_always_eager=True)
    run_inline(app, tmp_path)


def test_a_canvas_on_the_in_memory_stack_has_the_same_outcome(
    mulligan_stack: InMemoryStack, tmp_path: Path
) -> None:
    app = Celery("mine", broker="memory://", set_as_current=False)
    mulligan_stack.install(app)
    run_inline(app, tmp_path)
