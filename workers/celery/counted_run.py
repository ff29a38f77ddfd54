"""Runs of what nothing claims: a submission, and the plan of a loop.

One that ends its process comes back, from the broker or from the sweep, and would end the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mulligan.policies.figures.format import counted
from mulligan.policies.problem import Problem
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.crash_points import step
from mulligan.workers.services import Services

log = logging.getLogger(__name__)


@contextmanager
def counted_run(services: Services, name: str, *, most: int) -> Iterator[None]:
    """Run something, unless ``most`` other processes began it and never ended.

    Raises BadInput then, and records it with the refused submissions.
    """
    runs = services.ledger.unfinished_runs
    lost = runs.begin(name, process=services.context.worker)
    if lost >= most:
        problem = Problem(f"{counted(lost, 'process', 'processes')} ended while working on it")
        services.ledger.refused_submissions.note([problem], id=name, origin="celery", raw=None)
        log.error("%.200r is not tried again: %s", name, problem)
        raise BadInput(str(problem))
    step("begun", name)
    try:
        yield
    finally:
        runs.end(name)
