"""The parts of a job's page: its attempts, its open escalation, and the job as a file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from mulligan.console.reports.job_document import shown_job
from mulligan.policies.figures.format import count, duration
from mulligan.policies.jobs.job import Job
from mulligan.tasks.jobs.job_story import AttemptStory, JobStory
from mulligan.tasks.ports.ledger import AttemptView, JobView
from mulligan.workers.ledger.redis_ledger import RedisLedger

DiffKind = Literal["add", "del", "place", "same"]
_DIFF_KINDS: dict[str, DiffKind] = {"+": "add", "-": "del", "@": "place"}


@dataclass(frozen=True, kw_only=True)
class DiffLine:
    kind: DiffKind
    text: str


@dataclass(frozen=True, kw_only=True)
class AttemptSection:
    """One attempt on the page."""

    story: AttemptStory
    #: ``good``, ``bad`` or ``busy``.
    tone: str
    #: Its id in Flower.
    task: str
    diff: Sequence[DiffLine]
    #: Times, tokens, model and worker.
    facts: Sequence[str]
    started_at: float | None


def attempt_sections(view: JobView, story: JobStory) -> list[AttemptSection]:
    """Return a section for every planned attempt, in order."""
    return [
        AttemptSection(
            story=each,
            tone="busy" if each.success is None else "good" if each.success else "bad",
            task=f"{view.id}-{each.number}",
            diff=_prompt_diff(each),
            facts=_facts(attempt),
            started_at=attempt.started_at or attempt.queued_at,
        )
        for each, attempt in zip(story.attempts, view.attempts, strict=True)
    ]


def _prompt_diff(attempt: AttemptStory) -> list[DiffLine]:
    """Return the diff without its two header lines, which the heading replaces."""
    lines = list(attempt.prompt_diff())[2:]
    return [DiffLine(kind=_DIFF_KINDS.get(line[:1], "same"), text=line) for line in lines]


def _facts(attempt: AttemptView) -> list[str]:
    found = []
    output = attempt.output
    if attempt.started_at and attempt.queued_at:
        found.append(f"waited {duration(attempt.started_at - attempt.queued_at)}")
    if attempt.started_at and attempt.settled_at:
        found.append(f"took {duration(attempt.settled_at - attempt.started_at)}")
    if output and output.usage.total_tokens is not None:
        found.append(f"{count(output.usage.total_tokens)} tokens")
    if output and output.model:
        found.append(output.model)
    if attempt.worker:
        found.append(f"on {attempt.worker}")
    return found


def open_escalation(ledger: RedisLedger, view: JobView) -> str | None:
    """Return the id of the job's open escalation, if there is one."""
    if view.state != "escalated":
        return None
    found = ledger.escalation(f"{view.id}:{len(view.attempts)}")
    return found.id if found is not None and found.state == "open" else None


def job_file(job: Job) -> str:
    """Return the job as a file for `mulligan submit`, without its key, so that it is a new job."""
    document = shown_job(job).model_dump(
        mode="json", exclude_defaults=True, exclude={"idempotency_key"}
    )
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 100
    stream = io.StringIO()
    yaml.dump(_readable(document), stream)
    return stream.getvalue()


def _readable(value: Any) -> Any:
    """Return the value with multi-line texts as YAML blocks."""
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_readable(item) for item in value]
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value
