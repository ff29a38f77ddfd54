"""The ``external`` runner: a person or another system answers, through the API."""

from __future__ import annotations

from collections.abc import Mapping

from mulligan.policies.jobs.job import EXTERNAL, Output
from mulligan.policies.value import Json, Value
from mulligan.tasks.ports.errors import RunnerError
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners.runner_options import read_options


class ExternalOptions(Value):
    """No options: the job's subject names who answers."""


class ExternalRunner:
    """Never called: its attempts wait in their subject's lane, not in a queue."""

    Options = ExternalOptions

    provider = EXTERNAL

    @classmethod
    def from_options(cls, options: Mapping[str, Json]) -> ExternalRunner:
        read_options(ExternalOptions, options)
        return cls()

    def answer(self, request: Request) -> Output:
        raise RunnerError(f"{request.job_id} is answered through the API, not by a worker")
