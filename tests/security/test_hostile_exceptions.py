"""Exceptions of a user's task that cannot be read still reach the caller."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from support.user_tasks import delivered

from mulligan import RepairingTask, install
from mulligan.workers.celery.state_task import Escalated
from mulligan.workers.user_tasks.repairing_task import UnreadableError


class UnreadableAttributes(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attribute can be read")


class UnreadableText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NoPickle(Exception):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("no pickle")


KINDS = (UnreadableAttributes, UnreadableText, NoPickle)


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("tasks", broker=redis_url, backend=redis_url, set_as_current=False)
    install(app)
    return app


def task_of(app: Celery, kind: type[Exception], **options: Any) -> Any:
    def fails() -> None:
        raise kind("x")

    return app.task(base=RepairingTask, name=f"tasks.{kind.__name__}", **options)(fails)


def test_celery_gets_an_exception_that_it_can_report(app: Celery) -> None:
    """Given a task that is only observed. In a pool of threads, its caller waited for ever."""
    task = task_of(app, UnreadableAttributes, mode="observe")
    for _ in range(2):  # recorded, and then again as the same message
        with delivered(task), pytest.raises(UnreadableError, match="UnreadableAttributes, whose"):
            task()


@pytest.mark.parametrize("kind", KINDS)
def test_an_enforced_task_is_escalated_with_a_clear_error(
    app: Celery, kind: type[Exception]
) -> None:
    task = task_of(app, kind, policy={"max_attempts": 2})
    with pytest.raises(Escalated, match="max_attempts: unknown"):
        task.apply().get()
