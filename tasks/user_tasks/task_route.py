"""The route of a user's Celery task: how to send a retry. Its job has it instead of a runner."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mulligan.policies.jobs.job import USER_TASK, Job, RunnerSpec
from mulligan.policies.value import Json, Value

KIND = USER_TASK
#: Whether a task is repaired, or only recorded.
TaskMode = Literal["enforce", "observe"]


class TaskRoute(Value):
    """The task, the queue of its messages, the arguments as JSON, and what follows the task."""

    task: str
    queue: str
    #: The id of the first message, whose result its sender waits for.
    root: str
    args: list[Json]
    kwargs: dict[str, Json]
    mode: TaskMode = "enforce"
    #: Options of the first message that each retry repeats: its chain, chord, links and so on.
    following: dict[str, Json] = Field(default_factory=dict)

    @property
    def runner(self) -> RunnerSpec:
        """The route as a runner, for the task's job."""
        return RunnerSpec.model_validate({"kind": KIND, **self.model_dump(exclude_defaults=True)})

    @classmethod
    def of(cls, job: Job) -> TaskRoute:
        """Return the route from the job of a user's task."""
        return cls.model_validate({**job.runner.options, "mode": task_mode(job)}, extra="ignore")


def task_mode(job: Job) -> TaskMode | None:
    """Return the mode of a user's task; None for any other job."""
    if job.runner.kind != KIND:
        return None
    # Older jobs have the mode only as a label.
    stored = job.runner.options.get("mode") or job.labels.get("mode")
    return "observe" if stored == "observe" else "enforce"
