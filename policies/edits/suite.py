"""The suite that edits are measured by: tasks in clusters, and the scores they gave."""

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

#: What jobs of a suite are called; exempt, because their first attempt is what counts.
TASK_TYPE = "benchmark"
#: The name of a score that has none of its own.
WHOLE = ""
#: Seconds that a command may take, if its task does not say.
LONGEST = 60.0

TaskId = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w][\w.-]*$")]
#: 0 is worst, 1 is best; neither NaN nor infinite.
Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class SuiteTask(Value):
    """One thing to measure: a command that is run in a private copy of the tree, or a job."""

    id: TaskId
    #: What its scores count for. A command may leave it out: each score it prints is then the
    #: score of the cluster of that name.
    cluster: Name | None = None
    #: A program and its arguments, never a shell line.
    command: tuple[Annotated[str, Field(max_length=10_000)], ...] | None = None
    #: How long the command may take; past it, it is stopped without a verdict. None is LONGEST.
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
        """How long its command may take."""
        return LONGEST if self.timeout is None else self.timeout

    @property
    def digest(self) -> str:
        """Of what it does, whatever it is called and counts for."""
        fields = self.model_dump(mode="json", include={"command", "timeout", "job"})
        return _sha256(json.dumps(fields, sort_keys=True))


class Suite(Value):
    """What an edit is measured by, and how often."""

    tasks: tuple[SuiteTask, ...] = Field(min_length=1, max_length=1000)
    #: The same tree always has the same scores: one run each, and no bounds.
    deterministic: bool = False
    #: The most runs of each task before and after an edit.
    repeats: int = Field(default=5, ge=1, le=100)
    #: How sure a decision before the last repeat must be.
    confidence: float = Field(default=0.9, ge=0.5, lt=1)
    seed: int = Field(default=1, ge=0, lt=1 << 31)
    #: What becomes of an edit that all repeats leave open: by the mean of the differences, or no.
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
        """The most runs of each task."""
        return 1 if self.deterministic else self.repeats

    @property
    def clusters(self) -> tuple[str, ...] | None:
        """The names that an edit may expect to improve; None if commands print names of theirs."""
        if any(task.cluster is None for task in self.tasks):
            return None
        return tuple(sorted({task.cluster for task in self.tasks if task.cluster is not None}))

    def seed_of(self, task_id: str, repeat: int) -> int:
        """The same before and after an edit, on every host and in every process."""
        return int(_sha256(f"{self.seed}\0{task_id}\0{repeat}")[:8], 16) >> 1


class TaskScore(Value):
    """What one run of one task gave. Nothing in ``values``: it gave no score."""

    task: str
    cluster: str | None = None
    #: By name; one that has no name of its own is WHOLE.
    values: dict[str, Score] = Field(default_factory=dict)
    #: Why it is what it is, if that needs a word: ``stopped after 60 s``.
    note: str = ""
    #: Whether it says something about the tree. Not, if the run itself failed: it was stopped,
    #: killed or lost. What it is worth is then not known, and 0 stands for it.
    verdict: bool = True

    @property
    def mean(self) -> float:
        """Of its values; 0 without any."""
        return math.fsum(self.values.values()) / len(self.values) if self.values else 0.0


class SuiteScores(Value):
    """What a tree scored: for each repeat, the scores of every task."""

    runs: tuple[tuple[TaskScore, ...], ...] = ()

    @property
    def repeats(self) -> int:
        return len(self.runs)

    def joined(self, more: SuiteScores) -> SuiteScores:
        """With the next repeats after these."""
        return SuiteScores(runs=self.runs + more.runs)

    def whole(self, repeats: int) -> bool:
        """Whether every task of the first so many repeats gave a verdict."""
        return all(score.verdict for run in self.runs[:repeats] for score in run)

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know about them, each once: ``parse: stopped after 60 s``."""
        told = (f"{s.task}: {s.note}" for run in self.runs for s in run if s.note)
        return tuple(dict.fromkeys(told))


class SuiteRuns(Value):
    """One repeat of a suite on one state of a tree, under way. Enough to ask for it again."""

    session: str
    #: The tree's state: see Measurer.snapshot.
    state: str
    repeat: int = Field(ge=0)
    #: Jobs that were submitted for it, by task. There is no use in polling before all have ended.
    jobs: dict[str, str] = Field(default_factory=dict)
    #: Tasks whose job cannot be made from this state, and why: they score 0.
    failed: dict[str, str] = Field(default_factory=dict)


def run_key(session: str, task: SuiteTask, repeat: int, inputs: str) -> str:
    """What one run is known by: the same task on the same inputs is not run twice in a session."""
    name = _sha256("\0".join((session, task.id, task.digest, str(repeat), inputs)))
    return f"benchmark:{name[:40]}"


def content_digest(parts: Mapping[str, Json]) -> str:
    """Of plain data, whatever the order of its keys."""
    return _sha256(json.dumps(parts, sort_keys=True))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
