"""The parts of a test's in-memory stack: a backend with scripted answers, and inline tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mulligan.client.backends import LocalBackend, SubmitResult
from mulligan.client.build_jobs import JobDraft
from mulligan.policies.jobs.job import Job, RunnerSpec
from mulligan.policies.problem import Problem

if TYPE_CHECKING:
    from celery import Celery

    from mulligan.workers.local.local_stack import LocalStack

#: One answer per attempt, the last repeats; or a function from the prompt to such a list.
Answers = Sequence[Any] | Callable[[str], Sequence[Any]]


class ScriptedBackend(LocalBackend):
    """A script answers all jobs, whatever runner they name; without one, their runners do."""

    def __init__(self, stack: LocalStack, answers: Answers) -> None:
        super().__init__(stack)
        self._answers = answers
        if answers:
            self.runner = {"kind": "scripted", "answers": [""]}

    def check(self, drafts: Sequence[JobDraft]) -> list[Problem]:
        return super().check([self._draft(draft) for draft in drafts])

    def _draft(self, draft: JobDraft) -> JobDraft:
        """Replace the runner that a job names by the script, if there is one."""
        scripted = {**draft.raw, "runner": self.runner} if self._answers else draft.raw
        return replace(draft, raw=scripted)

    def submit(self, jobs: Sequence[Job], *, stored: Callable[[int], None]) -> SubmitResult:
        return super().submit([self._scripted(job) for job in jobs], stored=stored)

    def _scripted(self, job: Job) -> Job:
        if not self._answers:
            return job
        given = self._answers(job.prompt or "") if callable(self._answers) else self._answers
        script = RunnerSpec.model_validate({"kind": "scripted", "answers": list(given)})
        return job.model_copy(update={"runner": script})


def install_in_memory(app: Celery, stack: LocalStack) -> Callable[[], None]:
    """Run the app's repairing tasks inline over this stack. Return a function that undoes it."""
    from mulligan.workers.user_tasks.installed_app import InstalledApp

    holder: Any = app
    before, eager = getattr(app, "mulligan", None), app.conf.task_always_eager
    # install(app) sets the same attribute.
    holder.mulligan = InstalledApp(app, {}, build=lambda _settings, _app: stack.services)
    app.conf.task_always_eager = True

    def undo() -> None:
        holder.mulligan = before
        app.conf.task_always_eager = eager

    return undo
