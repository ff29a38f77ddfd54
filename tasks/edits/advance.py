"""Take an edit session one step further. ``tasks.edits.decide`` handles people's decisions.

Every step may be repeated: applying and rolling back are identified by session and edit, measuring
by content. So a process that dies between a step and its saving loses only that step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from mulligan.policies.edits.edit import (
    Edit,
    EditOutcome,
    EditReason,
    EditStatus,
    HoldForReview,
    route,
    tier_of_changes,
)
from mulligan.policies.edits.gate import (
    Comparison,
    KeepEdit,
    MeasureMore,
    RejectEdit,
    compare,
    target_problem,
)
from mulligan.policies.edits.session import EditSession, EditTrial, diff_of
from mulligan.policies.edits.suite import Suite
from mulligan.policies.jobs.job import joined_surrogates
from mulligan.tasks.ports.appliers import (
    ApplyContext,
    EditApplier,
    EditConflict,
    EditRefused,
    FileChange,
)
from mulligan.tasks.ports.errors import BadInput, MulliganError
from mulligan.tasks.ports.measurer import Measurer


class RetryLater(MulliganError):
    """Another process holds the tree or the session: try again later."""


class Appliers(Protocol):
    """Operations by name."""

    def is_supported(self, op: str) -> bool: ...

    def get(self, op: str) -> EditApplier: ...


class EditTree(Protocol):
    """The one writer of a tree. Raises RetryLater while another process holds it."""

    def applied(self, session_id: str, edit_id: str) -> int | None:
        """Return the checkpoint of an edit that is in the tree."""
        ...

    def mode(self, path: str) -> int | None:
        """Return the permission bits of a file, None if it does not exist."""
        ...

    def apply(self, session_id: str, edit_id: str, tier: str, changes: Sequence[FileChange]) -> int:
        """Write all changes or none, and return the checkpoint. Raises EditRefused."""
        ...

    def rollback_edit(self, session_id: str, edit_id: str) -> str:
        """Roll an edit back if it is in the tree, and return a text. Raises EditConflict."""
        ...

    def rollback_session(self, session_id: str) -> str:
        """Roll back all edits of a session that are in the tree, or none. Raises EditConflict."""
        ...


def diff_of_changes(
    changes: Sequence[FileChange], modes: Mapping[str, int | None], *, matched: bool = True
) -> str:
    """Return changes as a unified diff. ``modes``: the files' current permission bits; ``matched``:
    see ``diff_of``."""
    return "".join(
        diff_of(c.path, c.before, c.after, old_mode=modes.get(c.path), mode=c.mode, matched=matched)
        for c in changes
        if not c.unchanged
    )


@dataclass(frozen=True, kw_only=True)
class EditContextPorts:
    """The ports and settings that a session's steps need."""

    ctx: ApplyContext
    appliers: Appliers
    tree: EditTree
    #: None: no session has a suite.
    measurer: Measurer | None
    now: Callable[[], datetime]
    #: Returns changes of files with these permission bits as a unified diff.
    diff: Callable[[Sequence[FileChange], Mapping[str, int | None]], str] = diff_of_changes
    #: Edits that the last step computed for the next one, by id, so that an edit without a suite is
    #: computed once. The writer compares the files anyway.
    prepared: dict[str, ComputedEdit] = field(default_factory=dict)


@dataclass(frozen=True)
class ComputedEdit:
    """The changes of an edit that may be applied."""

    changes: Sequence[FileChange]
    #: The files' current permission bits.
    modes: Mapping[str, int | None]

    @property
    def notes(self) -> tuple[str, ...]:
        """The tolerances that found the place, by file."""
        notes = (f"{c.path}: {c.note}" for c in self.changes if c.note and not c.unchanged)
        return tuple(dict.fromkeys(map(joined_surrogates, notes)))


_NAME_USED = (
    "an earlier session named {0} applied an edit {1}, which is still in the tree: choose another"
    " session name, or roll that edit back first"
)
_NO_SUITE = "there is no suite to measure it: name one, approve the edit, or set policy: allow"


# -- one step ------------------------------------------------------------------------------------


def advance(context: EditContextPorts, session: EditSession) -> EditSession:
    """Take one step. Return the same session if it is done or waits for a measurement."""
    match session.phase:
        case "done":
            return session
        case "baseline":
            return _apply(context, session)
        case "measuring":
            return _measure(context, session)
        case "ready":
            at = session.open
            if at is None:
                return session.moved(phase="done", updated_at=context.now())
            return _begin_edit(context, session, at).moved(updated_at=context.now())


def _hold_outcome(context: EditContextPorts, session: EditSession, at: int) -> EditOutcome | None:
    """Return the outcome of an edit that is not applied now, or None."""
    record, edit = session.records[at], session.records[at].edit
    decision = route(
        edit,
        session.mode,
        tier=record.tier,
        supported=context.appliers.is_supported(edit.op),
        approved=record.approved_by is not None,
    )
    if isinstance(decision, HoldForReview):
        return outcome_of(edit, decision.status, decision.reason, decision.error)
    return None


def _compute(context: EditContextPorts, edit: Edit) -> ComputedEdit | EditOutcome:
    """Return the changes of an edit, or its outcome if it cannot be applied."""
    try:
        applier = context.appliers.get(edit.op)
        validation = applier.validate(edit, context.ctx)
        if not validation.ok:
            return outcome_of(edit, "rejected_by_gate", "validation", validation.reason)
        changes = applier.changes(edit, context.ctx)
    except Exception as error:  # an applier may be a plug-in and fail in any way
        return _refusal(edit, error)
    if all(change.unchanged for change in changes):
        notes = dict.fromkeys(change.note for change in changes if change.note)
        return outcome_of(edit, "skipped", "no_op", "; ".join(notes) or "it changes nothing")
    return ComputedEdit(changes, {c.path: context.tree.mode(c.path) for c in changes})


def _refusal(edit: Edit, error: Exception) -> EditOutcome:
    reason: EditReason = "conflict" if isinstance(error, EditConflict) else "apply_error"
    return outcome_of(edit, "rejected_by_gate", reason, str(error) or type(error).__name__)


def outcome_of(
    edit: Edit, status: EditStatus, reason: EditReason, error: str | None = None
) -> EditOutcome:
    return EditOutcome(edit_id=edit.id, status=status, reason=reason, error=error)


def _begin_edit(context: EditContextPorts, session: EditSession, at: int) -> EditSession:
    """Hold or refuse the next edit, or begin to apply it. The new phase is saved before any file is
    written: an edit that is already in the tree belongs to an earlier session of that name."""
    session = session.recorded(at, notes=())
    record, edit = session.records[at], session.records[at].edit
    held = _hold_outcome(context, session, at)
    if held is not None:
        return _hold(context, session, at, held)
    if context.tree.applied(session.id, edit.id) is not None:
        text = _NAME_USED.format(session.id, edit.id)
        return session.decided(at, outcome_of(edit, "rejected_by_gate", "conflict", text))
    found = _compute(context, edit)
    if isinstance(found, EditOutcome):
        return session.decided(at, found)
    session, held = _hold_by_changes(context, session, at, found)
    if held is not None:
        return _hold(context, session, at, held)
    with_diff = _with_diff(context, session, at, found)
    if session.suite is None:
        if session.benchmark.policy == "require" and record.approved_by is None:
            return with_diff.decided(at, outcome_of(edit, "pending_review", "no_scorer", _NO_SUITE))
        context.prepared[edit.id] = found
        return with_diff.moved(phase="baseline", at=at)
    problem = target_problem(edit.expected_improvement, session.suite)
    if problem is not None:
        return session.decided(at, outcome_of(edit, "rejected_by_gate", "validation", problem))
    try:
        state = _measurer(context).snapshot(context.ctx.root)
    except BadInput as error:
        return session.decided(at, _refusal(edit, error))
    return with_diff.moved(phase="baseline", at=at, trial=EditTrial(before=state))


def _hold_by_changes(
    context: EditContextPorts, session: EditSession, at: int, found: ComputedEdit
) -> tuple[EditSession, EditOutcome | None]:
    """Return the session with the tier of the files that the edit changes, and the edit's outcome
    if that tier does not let it be applied now."""
    record = session.records[at]
    paths = (change.path for change in found.changes if not change.unchanged)
    tier = tier_of_changes(record.tier, paths, context.ctx.tiers)
    if tier is record.tier:
        return session, None
    session = session.recorded(at, tier=tier)
    return session, _hold_outcome(context, session, at)


def _with_diff(
    context: EditContextPorts, session: EditSession, at: int, found: ComputedEdit
) -> EditSession:
    diff = session.fitting(context.diff(found.changes, found.modes))
    return session.recorded(at, diff=diff, notes=found.notes)


def _hold(
    context: EditContextPorts, session: EditSession, at: int, held: EditOutcome
) -> EditSession:
    """Hold an edit for review, with its diff or the reason why it cannot be applied. With a suite,
    measure its effect on a copy; nothing is written to the tree."""
    edit = session.records[at].edit
    if held.status != "pending_review":
        return session.decided(at, held)
    if not context.appliers.is_supported(edit.op):
        return session.decided(at, _with_note(held, f"op {edit.op} not implemented in v1"))
    found = _compute(context, edit)
    if isinstance(found, EditOutcome):
        why = f"on the current tree it would be {found.status} ({found.reason}): {found.error}"
        return session.decided(at, _with_note(held, why))
    with_diff = _with_diff(context, session, at, found)
    if session.suite is None:
        return with_diff.decided(at, held)
    problem = target_problem(edit.expected_improvement, session.suite)
    if problem is not None:
        return with_diff.decided(at, _with_note(held, f"it would be rejected: {problem}"))
    try:
        before = _measurer(context).snapshot(context.ctx.root)
        after = _measurer(context).snapshot(context.ctx.root, found.changes)
    except BadInput as error:
        return with_diff.decided(at, _with_note(held, f"it cannot be measured: {error}"))
    trial = EditTrial(before=before, after=after, held=held)
    return with_diff.moved(phase="measuring", at=at, trial=trial)


def _with_note(outcome: EditOutcome, note: str) -> EditOutcome:
    return outcome.model_copy(update={"notes": (*outcome.notes, note)})


# -- measuring -----------------------------------------------------------------------------------


def _measurer(context: EditContextPorts) -> Measurer:
    if context.measurer is None:
        raise BadInput("the session has a suite, but this process cannot measure it")
    return context.measurer


def _apply(context: EditContextPorts, session: EditSession) -> EditSession:
    """Apply the edit in progress. With a suite, go on to measure the tree before and after."""
    at, trial = session.at, session.trial
    if at is None or (trial is None) != (session.suite is None):
        raise ValueError(f"session {session.id} is in phase {session.phase} without a trial")
    edit = session.records[at].edit
    checkpoint = context.tree.applied(session.id, edit.id)
    if checkpoint is None:
        found = context.prepared.pop(edit.id, None) or _compute(context, edit)
        if isinstance(found, EditOutcome):  # the tree changed since the last step
            return session.decided(at, found).moved(updated_at=context.now())
        session, held = _hold_by_changes(context, session, at, found)
        if held is not None:
            return session.decided(at, held).moved(updated_at=context.now())
        session = session.recorded(at, notes=found.notes)
        tier = session.records[at].tier
        try:
            checkpoint = context.tree.apply(session.id, edit.id, tier, found.changes)
        except EditRefused as error:
            return session.decided(at, _refusal(edit, error)).moved(updated_at=context.now())
    if trial is None:
        applied = EditOutcome(
            edit_id=edit.id, status="applied", reason="ungated", applied_at=context.now()
        )
        done = session.decided(at, applied, checkpoint=checkpoint)
        return done.moved(updated_at=context.now())
    try:
        after = _measurer(context).snapshot(context.ctx.root)
    except BadInput as error:  # with this edit, the tree is too large to be measured
        return roll_back_rejected(context, session, at, _refusal(edit, error))
    moved = session.moved(phase="measuring", trial=trial.model_copy(update={"after": after}))
    return moved.recorded(at, checkpoint=checkpoint).moved(updated_at=context.now())


def _measure(context: EditContextPorts, session: EditSession) -> EditSession:
    """Start a repeat, poll it, or decide."""
    at, trial, suite = session.at, session.trial, session.suite
    if at is None or trial is None or trial.after is None or suite is None:
        raise ValueError(f"session {session.id} is in phase {session.phase} without a trial")
    measurer = _measurer(context)
    if trial.runs is None:
        repeat = trial.scored[0].repeats
        try:
            first, second = (
                measurer.start(suite, state, session=session.id, repeat=repeat)
                for state in (trial.before, trial.after)
            )
        except BadInput as error:  # after this edit, the suite's jobs cannot be built
            if trial.held is not None:
                held = trial.held.model_copy(update={"error": f"it cannot be measured: {error}"})
                return session.decided(at, held).moved(updated_at=context.now())
            refusal = _refusal(session.records[at].edit, error)
            return roll_back_rejected(context, session, at, refusal)
        started = trial.model_copy(update={"runs": (first, second)})
        return session.moved(trial=started, updated_at=context.now())
    ended = [measurer.poll(suite, runs) for runs in trial.runs]
    if ended[0] is None or ended[1] is None:
        return session
    scored = (trial.scored[0].joined(ended[0]), trial.scored[1].joined(ended[1]))
    measured = trial.model_copy(update={"runs": None, "scored": scored})
    session = session.moved(trial=measured, updated_at=context.now())
    return _judge(context, session, at, measured, suite)


def _judge(
    context: EditContextPorts, session: EditSession, at: int, trial: EditTrial, suite: Suite
) -> EditSession:
    """Keep the edit, roll it back, or ask for one more repeat."""
    edit = session.records[at].edit
    found = compare(
        *trial.scored,
        suite=suite,
        target=edit.expected_improvement,
        max_regression=session.benchmark.max_regression,
    )
    if trial.held is not None and not isinstance(found.decision, MeasureMore):
        text = "; ".join((f"measured: {found.text}", *_run_notes(trial)))
        held = trial.held.model_copy(update={"error": text})
        return session.decided(at, _with_effect(held, found))
    match found.decision:
        case MeasureMore():
            return session
        case KeepEdit():
            kept = _with_effect(outcome_of(edit, "applied", "kept"), found)
            more = {"applied_at": context.now(), "notes": _run_notes(trial)}
            return session.decided(at, kept.model_copy(update=more))
        case RejectEdit(reason):
            text = "; ".join((found.text, *_run_notes(trial)))
            rejected = outcome_of(edit, "rejected_by_gate", reason, text)
            return roll_back_rejected(context, session, at, _with_effect(rejected, found))


def _run_notes(trial: EditTrial) -> tuple[str, ...]:
    """Return the notes of both sides' runs: ``before: parse: stopped after 60 s``."""
    sides = zip(("before", "after"), trial.scored, strict=True)
    return tuple(f"{side}: {note}" for side, scores in sides for note in scores.notes)


def _with_effect(outcome: EditOutcome, found: Comparison) -> EditOutcome:
    measured = {"benchmark_delta": found.delta, "cluster_deltas": found.cluster_deltas}
    return outcome.model_copy(update=measured)


def roll_back_rejected(
    context: EditContextPorts, session: EditSession, at: int, outcome: EditOutcome
) -> EditSession:
    """Roll a rejected edit back. If the same lines have changed since, record a conflict."""
    try:
        context.tree.rollback_edit(session.id, outcome.edit_id)
    except EditConflict as error:
        text = f"{outcome.error}; it could not be rolled back: {error}"
        outcome = outcome.model_copy(update={"reason": "conflict", "error": text})
    return session.decided(at, outcome).moved(updated_at=context.now())
