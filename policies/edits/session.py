"""An edit session: a plan applied to one tree, the outcome of each edit, and the next step.

    ready ──► baseline ──► measuring ──► ready ──► … ──► done
              (applying)   (kept or rolled back)

``tasks.edits.advance`` takes one step at a time; repeating a step is harmless. Without a suite an
edit is not measured: it goes from baseline to ready.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from mulligan.policies.edits.edit import (
    AutonomyMode,
    BenchmarkSpec,
    Edit,
    EditId,
    EditOutcome,
    EditReason,
    EditRiskTier,
    tier_of,
)
from mulligan.policies.edits.suite import Suite, SuiteRuns, SuiteScores
from mulligan.policies.jobs.job import joined_surrogates
from mulligan.policies.one_hunk import one_hunk
from mulligan.policies.value import Value

#: The maximum length of a diff kept for reviewers, in characters.
DIFF_CAP = 200_000
#: The maximum of all diffs of a session; beyond it, each is cut to a minimum.
SESSION_CAP = 2_000_000
_DIFF_LEAST = 1_000

#: Longer texts are not compared: it would take minutes.
_MAX_DIFFED = 1_000_000

#: The error of edits that were undecided when their session was rolled back.
WITHDRAWN = "the session was rolled back"

Phase = Literal["ready", "baseline", "measuring", "done"]
#: Statuses that a person may still change.
_REVIEWABLE = ("pending_review", "skipped")
_FINAL_SKIPS = ("no_op", "unsupported")


class EditRecord(Value):
    """One edit of a session with its state."""

    edit: Edit
    tier: EditRiskTier
    #: None while it is pending or in progress.
    outcome: EditOutcome | None = None
    #: The outcome before its approval, with what was measured then.
    held: EditOutcome | None = None
    #: Its changes as a unified diff, cut if long.
    diff: str = ""
    #: The tolerances that found its place.
    notes: tuple[str, ...] = ()
    #: The checkpoint of applying it.
    checkpoint: int | None = None
    approved_by: str | None = None
    #: Who approved, rejected or rolled it back, when, and why.
    decided_by: str | None = None
    decided_at: datetime | None = None
    note: str | None = None

    @property
    def reviewable(self) -> bool:
        """Whether a person may approve or reject it now."""
        done = self.outcome
        return done is not None and done.status in _REVIEWABLE and done.reason not in _FINAL_SKIPS


class EditTrial(Value):
    """The progress of comparing a tree before and after one edit."""

    #: States of the tree, as the measurer names them.
    before: str
    #: The outcome that waits for a person, if the edit is measured for them and not applied.
    held: EditOutcome | None = None
    after: str | None = None
    #: The repeat in progress, on each state.
    runs: tuple[SuiteRuns, SuiteRuns] | None = None
    scored: tuple[SuiteScores, SuiteScores] = (SuiteScores(), SuiteScores())


class EditSession(Value):
    """A plan applied to one tree."""

    id: EditId
    #: A tree belongs to one host, and only its workers touch it.
    host: str
    #: Absolute.
    root: str
    #: The folder of the configuration tree, relative to the root.
    config: str = "."
    mode: AutonomyMode
    benchmark: BenchmarkSpec = BenchmarkSpec()
    #: A copy from the beginning of the session; None: nothing is measured.
    suite: Suite | None = None
    #: Whether a command does the work, and not the edit queue.
    inline: bool = False
    records: tuple[EditRecord, ...] = Field(min_length=1)
    phase: Phase = "ready"
    #: The index of the edit in progress.
    at: int | None = None
    trial: EditTrial | None = None
    created_at: datetime
    updated_at: datetime
    by: str | None = None
    #: The producer that submitted it over HTTP; nobody's if a command or a person did.
    owner: str | None = None
    #: The job that wrote the plan, and the one that corrects it.
    author: str | None = None
    correction: str | None = None

    @property
    def open(self) -> int | None:
        """The next edit without an outcome."""
        waiting = (i for i, record in enumerate(self.records) if record.outcome is None)
        return next(waiting, None)

    @property
    def outcomes(self) -> list[EditOutcome]:
        return [record.outcome for record in self.records if record.outcome is not None]

    @property
    def finished(self) -> bool:
        """Whether no edit waits, not even for a person."""
        return self.phase == "done" and not any(record.reviewable for record in self.records)

    @property
    def written(self) -> int | None:
        """The edit in progress if it may be in the tree, not if it is measured on a copy."""
        previewed = self.trial is not None and self.trial.held is not None
        return None if previewed else self.at

    @property
    def untouched(self) -> bool:
        """Whether it has never written to its tree."""
        return self.written is None and all(r.checkpoint is None for r in self.records)

    def index(self, edit_id: str) -> int | None:
        return next((i for i, record in enumerate(self.records) if record.edit.id == edit_id), None)

    @property
    def jobs(self) -> list[str]:
        """The jobs for which it waits."""
        runs = self.trial.runs if self.trial else None
        return [job for run in runs or () for job in run.jobs.values()]

    def fitting(self, diff: str) -> str:
        """Cut a diff after a line, so that all diffs of the session fit."""
        diff = joined_surrogates(diff)
        room = SESSION_CAP - sum(len(record.diff) for record in self.records)
        room = max(min(DIFF_CAP, room), _DIFF_LEAST)
        if len(diff) <= room:
            return diff
        kept = diff[:room].rpartition("\n")[0]
        return f"{kept}\n… {len(diff) - len(kept)} more characters\n"

    def moved(self, **changes: Any) -> EditSession:
        """Return the session with changed fields."""
        return self.model_copy(update=changes)

    def recorded(self, index: int, **changes: Any) -> EditSession:
        """Return the session with one record changed."""
        records = list(self.records)
        records[index] = records[index].model_copy(update=changes)
        return self.model_copy(update={"records": tuple(records)})

    def decided(self, index: int, outcome: EditOutcome, **more: Any) -> EditSession:
        """Return the session with an edit's outcome, ready for the next edit."""
        notes = dict.fromkeys((*self.records[index].notes, *outcome.notes))
        # A file's name need not be Unicode, but what is stored must be.
        texts = {
            "notes": tuple(map(joined_surrogates, notes)),
            "error": None if outcome.error is None else joined_surrogates(outcome.error),
        }
        moved = self.moved(phase="ready", at=None, trial=None)
        return moved.recorded(index, outcome=outcome.model_copy(update=texts), **more)


def records_of(
    edits: Iterable[Edit], tiers: Mapping[str, EditRiskTier] | None = None
) -> tuple[EditRecord, ...]:
    """Return a record for each edit. ``tiers`` are the configuration's, by operation."""
    return tuple(EditRecord(edit=edit, tier=tier_of(edit, tiers)) for edit in edits)


class EditDelta(Value):
    """One measured effect, as the history keeps it."""

    at: datetime
    session: str
    edit_id: str
    op: str
    target: str
    root: str
    #: The cluster that it should improve.
    cluster: str | None = None
    status: str
    reason: EditReason
    benchmark_delta: float
    cluster_deltas: dict[str, float] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


def diff_of(
    path: str,
    before: bytes | None,
    after: bytes | None,
    *,
    old_mode: int | None = None,
    mode: int | None = None,
    matched: bool = True,
) -> str:
    """Return the change of one file as a unified diff. ``old_mode``: the permission bits of an
    existing file; ``mode``: those afterwards, None if they stay. Without ``matched``, all lines
    from the first changed one to the last are removed and added again: that takes little time."""
    modes = _mode_lines(before is None, after is None, old_mode, mode)
    head = "".join([f"diff --git a/{path} b/{path}\n", *modes]) if modes else ""
    return head + _lines_of(path, before, after, matched=matched)


def _mode_lines(new: bool, gone: bool, old_mode: int | None, mode: int | None) -> list[str]:
    """Return git's mode lines, with all permission bits where git has only 644 and 755."""
    old = 0o644 if old_mode is None else old_mode
    now = old if mode is None else mode
    if new:
        return [f"new file mode 100{now:03o}\n"]
    if gone:
        return [f"deleted file mode 100{old:03o}\n"]
    return [f"old mode 100{old:03o}\n", f"new mode 100{now:03o}\n"] if now != old else []


def _lines_of(path: str, before: bytes | None, after: bytes | None, *, matched: bool) -> str:
    if before == after:
        return ""
    old, new = f"a/{path}" if before is not None else "/dev/null", f"b/{path}"
    new = new if after is not None else "/dev/null"
    try:
        texts = [(data or b"").decode("utf-8") for data in (before, after)]
    except UnicodeDecodeError:
        return f"--- {old}\n+++ {new}\nBinary files differ\n"
    if any("\0" in text for text in texts):
        return f"--- {old}\n+++ {new}\nBinary files differ\n"
    if max(map(len, texts)) > _MAX_DIFFED:
        return f"--- {old}\n+++ {new}\nToo large to show: {len(texts[0])} → {len(texts[1])}\n"
    # Only "\n" ends a line: a form feed, say, is part of one.
    lines = [[f"{line}\n" for line in t.split("\n")[:-1]] + _rest(t) for t in texts]
    diff = (difflib.unified_diff if matched else one_hunk)(lines[0], lines[1], old, new)
    return "".join(x if x.endswith("\n") else f"{x}\n\\ No newline at end of file\n" for x in diff)


def _rest(text: str) -> list[str]:
    """Return the text after the last line feed."""
    last = text.rpartition("\n")[2]
    return [last] if last else []
