"""What the job of a user's own task has in the place of a runner: how a retry of it is sent."""

from __future__ import annotations

from typing import Literal

from mulligan.policies.jobs.job import Job, RunnerSpec
from mulligan.policies.value import Json, Value

#: The kind of runner that stands for a user's own Celery task.
KIND = "celery"
#: Whether a task is repaired, or only recorded.
TaskMode = Literal["enforce", "observe"]


class TaskRoute(Value):
    """The task, the queue its messages come through, and the arguments as JSON."""

    task: str
    queue: str
    #: The id of the first message, which its sender waits for.
    root: str
    args: list[Json]
    kwargs: dict[str, Json]
    mode: TaskMode = "enforce"

    @property
    def runner(self) -> RunnerSpec:
        """What the task's job has in the place of a runner."""
        return RunnerSpec.model_validate({"kind": KIND, **self.model_dump(exclude_defaults=True)})

    @classmethod
    def of(cls, job: Job) -> TaskRoute:
        """The route that the job of a user's own task was given."""
        return cls.model_validate({**job.runner.options, "mode": task_mode(job)}, extra="ignore")


def task_mode(job: Job) -> TaskMode | None:
    """The mode of a user's own task; None for any other job."""
    if job.runner.kind != KIND:
        return None
    # Jobs that were stored before the route had a mode have it as a label only.
    stored = job.runner.options.get("mode") or job.labels.get("mode")
    return "observe" if stored == "observe" else "enforce"
