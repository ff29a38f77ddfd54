"""Chains, groups, chords and links of repairing tasks follow the attempt that settles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import Celery, chain, chord
from celery.exceptions import ChordError
from support.canvases import CANVASES, noted, outcome, register, start
from support.rabbitmq_server import running_rabbitmq
from support.user_tasks import UserProject, user_project
from support.waiting import wait_for

from mulligan import install
from mulligan.tasks.ports.ledger import Ended
from mulligan.testing import InMemoryStack
from mulligan.workers.celery.state_task import Escalated
from mulligan.workers.ledger.stored import job_ids
from mulligan.workers.user_tasks.repairing_task import JobCancelled

CODE = """
import os
import sys
from pathlib import Path

from celery import Celery

from mulligan import install

sys.path.insert(0, {tests!r})
from support.canvases import register

ledger = os.environ["BROKER"]
app = Celery("mine", broker={broker}, backend={backend})
app.conf.worker_prefetch_multiplier = 1
install(app, ledger_url=ledger, sweep_interval=0.3, lease=5, outbox_grace=0.3)
register(app, Path(__file__).parent)
"""
TESTS = str(Path(__file__).parents[2])


@contextmanager
def running_worker(
    folder: Path, *, broker: str | None = None, backend: str | None = None
) -> Iterator[UserProject]:
    """Start a worker and a client. By default, the ledger's Redis is also broker and backend."""
    given = {
        "broker": repr(broker) if broker else "ledger",
        "backend": repr(backend) if backend else "ledger",
    }
    code = CODE.format(tests=TESTS, **given)
    with user_project(folder, code, "-P", "threads", "-c", "4") as project:
        if broker or backend:
            url = project.server.url
            project.app = Celery(
                "client", broker=broker or url, backend=backend, set_as_current=False
            )
        project.start_worker()
        yield project
        # A result that is deleted later would wait for the server, to unsubscribe.
        if backend is None:
            project.app.backend.result_consumer.subscribed_to.clear()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserProject]:
    with running_worker(tmp_path_factory.mktemp("c")) as project:
        yield project


def run_in_worker(project: UserProject, *names: str) -> None:
    """Run canvases of tasks with and without mulligan at the same time."""
    home = project.stack.home
    kinds = register(project.app, home)
    started = {
        (name, number): start(CANVASES[name], tasks, f"{name} {number}")
        for name in names
        for number, tasks in enumerate(kinds)
    }
    for (name, number), result in started.items():
        assert outcome(result) == CANVASES[name].value, (name, number)
    # Links are sent before the result is stored, but may run after it.
    for name, number in started:
        wait_for_notes(home, f"{name} {number}", CANVASES[name].notes)


def test_in_a_worker_a_canvas_follows_the_attempt_that_settles(project: UserProject) -> None:
    run_in_worker(project, *CANVASES)


def test_a_canvas_with_a_backend_that_cannot_count(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Given results in files, then Celery polls the parts of a chord by their ids."""
    folder = tmp_path_factory.mktemp("f")
    (folder / "results").mkdir()
    with running_worker(folder, backend=f"file://{folder}/results") as project:
        run_in_worker(project, "a chain", "a chord", "a chord with a failure")


def test_a_canvas_on_rabbitmq_with_rpc_results(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Given results that are messages, then they reach the caller, who knows the first id."""
    folder = tmp_path_factory.mktemp("r")
    with (
        running_rabbitmq() as server,
        running_worker(folder, broker=server.url, backend="rpc://") as project,
    ):
        run_in_worker(
            project, "a chain", "a chain that stops", "links to repaired tasks", "a group"
        )


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


# -- ends outside a delivery -----------------------------------------------------------------------


def test_the_caller_hears_of_a_cancelled_task(project: UserProject) -> None:
    tasks, _ = register(project.app, project.stack.home)
    project.ledger.pause("task_type:stubborn")
    try:
        part = tasks.stubborn.s("tea").on_error(tasks.failed.s("cancelled"))
        body = chord([tasks.good.s("milk"), part], tasks.join.s()).apply_async()
        (held,) = [each.id for each in body.parent.results if each.id != body.parent.results[0].id]
        job_id = job_ids.user_task_job_id(held, partitions=1)
        wait_for(lambda: _state(project, job_id) == "waiting", "the task to wait")
        project.ledger.cancel(job_id, detail="by ada")
        with pytest.raises(JobCancelled, match="by ada"):
            project.app.AsyncResult(held).get(timeout=60)
        with pytest.raises((ChordError, JobCancelled)):
            body.get(timeout=60)
        wait_for_notes(project.stack.home, "cancelled", ("failed",))
    finally:
        project.ledger.resume("task_type:stubborn")


def _state(project: UserProject, job_id: str) -> str | None:
    view = project.ledger.job(job_id)
    return view.state if view is not None else None


def test_a_requeued_task_continues_its_chain(project: UserProject) -> None:
    home = project.stack.home
    tasks, _ = register(project.app, home)
    first = tasks.stubborn.s("tea").on_error(tasks.failed.s("requeued"))
    last = chain(first, tasks.note.s("requeued")).apply_async()
    with pytest.raises(Escalated):
        last.get(timeout=60)
    view = project.wait_until_ended(last.parent.id)
    (home / "allowed").touch()
    escalation = f"{view.id}:{len(view.attempts)}"
    assert isinstance(project.ledger.end_escalation(escalation, how="requeued", by="ada"), Ended)
    wait_for_notes(home, "requeued", ("failed", "tea"))
    # A client remembers a failure that it has seen.
    url = project.server.url
    client = Celery("another", broker=url, backend=url, set_as_current=False)
    for step in (last.parent, last):
        assert client.AsyncResult(step.id).get(timeout=60) == "tea"
