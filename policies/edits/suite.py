"""The suite that measures edits: tasks in clusters, and their scores."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mulligan.policies.jobs.job import Name, Seconds
from mulligan.policies.problem import FieldError
from mulligan.policies.value import Json, Value

#: The task type of a suite's jobs; exempt, because only their first attempt counts.
TASK_TYPE = "benchmark"
#: The name of an unnamed score.
WHOLE = ""
#: The default timeout of a command, in seconds.
LONGEST = 60.0

TaskId = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w][\w.-]*$")]
#: 0 is worst, 1 is best; neither NaN nor infinite.
Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class SuiteTask(Value):
    """One thing to measure: a command that is run in a private copy of the tree, or a job."""

    id: TaskId
    #: The cluster that its scores count for. Without one, each score that a command prints counts
    #: for the cluster of that name.
    cluster: Name | None = None
    #: A program and its arguments, never a shell line.
    command: tuple[Annotated[str, Field(max_length=10_000)], ...] | None = None
    #: In seconds; a command that takes longer is stopped without a verdict. None is LONGEST.
    timeout: Seconds | None = Field(default=None, gt=0, le=3600)
    #: A job as in a job file. ``prompt_file`` and ``workspace.path`` are read from the tree.
    job: dict[str, Json] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> SuiteTask:
        if (self.command is None) == (self.job is None):
            raise ValueError("give either a command or a job")
        if self.command is not None and not (self.command and self.command[0]):
            raise FieldError("command", "name a program, as in [python, score.py]")
        if self.job is not None and self.cluster is None:
            raise FieldError("cluster", "is required, because a job counts for a cluster")
        if self.job is not None and self.timeout is not None:
            raise FieldError("timeout", "is for commands; a job has budget.seconds")
        return self

    @property
    def seconds(self) -> float:
        """The timeout of its command."""
        return LONGEST if self.timeout is None else self.timeout

    @property
    def digest(self) -> str:
        """A digest of its work, without its id and cluster."""
        fields = self.model_dump(mode="json", include={"command", "timeout", "job"})
        return _sha256(json.dumps(fields, sort_keys=True))


class Suite(Value):
    """The tasks that measure an edit, and how often they run."""

    tasks: tuple[SuiteTask, ...] = Field(min_length=1, max_length=1000)
    #: The same tree always gets the same scores: one run each, and no bounds.
    deterministic: bool = False
    #: The maximum runs of each task before and after an edit.
    repeats: int = Field(default=5, ge=1, le=100)
    #: The confidence needed to decide before the last repeat.
    confidence: float = Field(default=0.9, ge=0.5, lt=1)
    seed: int = Field(default=1, ge=0, lt=1 << 31)
    #: How to end an edit that all repeats leave undecided: by the mean difference, or rejected.
    undecided: Literal["estimate", "reject"] = "reject"

    @model_validator(mode="after")
    def _each_once(self) -> Suite:
        seen: set[str] = set()
        for place, task in enumerate(self.tasks):
            if task.id in seen:
                raise FieldError(("tasks", place, "id"), f"{task.id!r} is used twice")
            seen.add(task.id)
        return self

    @property
    def runs(self) -> int:
        """The maximum runs of each task."""
        return 1 if self.deterministic else self.repeats

    @property
    def clusters(self) -> tuple[str, ...] | None:
        """The clusters that an edit may name as its target; None if commands print their names."""
        if any(task.cluster is None for task in self.tasks):
            return None
        return tuple(sorted({task.cluster for task in self.tasks if task.cluster is not None}))

    def seed_of(self, task_id: str, repeat: int) -> int:
        """Return a seed that is the same before and after an edit, on every host."""
        return int(_sha256(f"{self.seed}\0{task_id}\0{repeat}")[:8], 16) >> 1


class TaskScore(Value):
    """The scores of one run of one task; ``values`` may be empty."""

    task: str
    cluster: str | None = None
    #: By name; WHOLE if the score has none.
    values: dict[str, Score] = Field(default_factory=dict)
    #: An explanation, if needed: ``stopped after 60 s``.
    note: str = ""
    #: False if the run itself failed (it was stopped, killed or lost) and so says nothing about
    #: the tree. It then counts 0.
    verdict: bool = True

    @property
    def mean(self) -> float:
        """The mean of its values; 0 without any."""
        return math.fsum(self.values.values()) / len(self.values) if self.values else 0.0


class SuiteScores(Value):
    """The scores of a tree: for each repeat, those of every task."""

    runs: tuple[tuple[TaskScore, ...], ...] = ()

    @property
    def repeats(self) -> int:
        return len(self.runs)

    def joined(self, more: SuiteScores) -> SuiteScores:
        """Return these repeats followed by more."""
        return SuiteScores(runs=self.runs + more.runs)

    def whole(self, repeats: int) -> bool:
        """Return whether every task of the first ``repeats`` repeats has a verdict."""
        return all(score.verdict for run in self.runs[:repeats] for score in run)

    @property
    def notes(self) -> tuple[str, ...]:
        """The distinct notes of all tasks: ``parse: stopped after 60 s``."""
        return tuple(
            dict.fromkeys(f"{s.task}: {s.note}" for run in self.runs for s in run if s.note)
        )


class SuiteRuns(Value):
    """A repeat of a suite on one state of a tree, in progress: all that polling needs."""

    session: str
    #: The tree's state: see Measurer.snapshot.
    state: str
    repeat: int = Field(ge=0)
    #: The submitted jobs, by task. Polling is useless before all have ended.
    jobs: dict[str, str] = Field(default_factory=dict)
    #: Tasks whose job cannot be built from this state, with the reason: they score 0.
    failed: dict[str, str] = Field(default_factory=dict)


def run_key(session: str, task: SuiteTask, repeat: int, inputs: str) -> str:
    """Return the key of a run: the same task on the same inputs runs once in a session."""
    name = _sha256("\0".join((session, task.id, task.digest, str(repeat), inputs)))
    return f"benchmark:{name[:40]}"


def content_digest(parts: Mapping[str, Json]) -> str:
    """Return a digest of plain data that does not depend on the order of keys."""
    return _sha256(json.dumps(parts, sort_keys=True))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
