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

    def standing(self, session_id: str, edit_id: str) -> int | None:
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


@dataclass(frozen=True, kw_only=True)
class EditContextPorts:
    """The ports and settings that a session's steps need."""

    ctx: ApplyContext
    appliers: Appliers
    tree: EditTree
    #: None: no session has a suite.
    measurer: Measurer | None
    now: Callable[[], datetime]
    #: Edits that the last step computed for the next one, by id, so that an edit without a suite is
    #: computed once. The writer compares the files anyway.
    prepared: dict[str, ComputedEdit] = field(default_factory=dict)


@dataclass(frozen=True)
class ComputedEdit:
    """The changes of an edit that may be applied."""

    changes: Sequence[FileChange]
    #: The present permission bits of the files.
    modes: Mapping[str, int | None]

    @property
    def diff(self) -> str:
        return "".join(
            diff_of(c.path, c.before, c.after, old_mode=self.modes.get(c.path), mode=c.mode)
            for c in self.changes
            if not c.unchanged
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """The tolerances that found the place, by file."""
        notes = (f"{c.path}: {c.note}" for c in self.changes if c.note and not c.unchanged)
        return tuple(dict.fromkeys(notes))


_USED = (
    "session {0} applied an edit {1} before, and it is still in the tree: this name was used"
    " before; choose another session, or roll that edit back first"
)
_NO_SUITE = "there is no suite to measure it by: name one, approve it, or set policy: allow"


# -- one step ------------------------------------------------------------------------------------


def advance(context: EditContextPorts, session: EditSession) -> EditSession:
    """Take one step. Return the same session if it is done or waits for a measurement."""
    match session.phase:
        case "done":
            return session
        case "baseline":
            return _applied(context, session)
        case "measuring":
            return _measured(context, session)
        case "ready":
            at = session.open
            if at is None:
                return session.moved(phase="done", updated_at=context.now())
            return _begun(context, session, at).moved(updated_at=context.now())


def _routed(context: EditContextPorts, session: EditSession, at: int) -> EditOutcome | None:
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


def _computed(context: EditContextPorts, edit: Edit) -> ComputedEdit | EditOutcome:
    try:
        applier = context.appliers.get(edit.op)
        validation = applier.validate(edit, context.ctx)
        if not validation.ok:
            return outcome_of(edit, "rejected_by_gate", "validation", validation.reason)
        changes = applier.changes(edit, context.ctx)
    except Exception as error:  # an applier may be a plug-in and fail in any way
        return _refused(edit, error)
    if all(change.unchanged for change in changes):
        notes = dict.fromkeys(change.note for change in changes if change.note)
        return outcome_of(edit, "skipped", "no_op", "; ".join(notes) or "it changes nothing")
    return ComputedEdit(changes, {c.path: context.tree.mode(c.path) for c in changes})


def _refused(edit: Edit, error: Exception) -> EditOutcome:
    match error:
        case EditConflict():
            return outcome_of(edit, "rejected_by_gate", "conflict", str(error))
        case _:
            text = str(error) or type(error).__name__
            return outcome_of(edit, "rejected_by_gate", "apply_error", text)


def outcome_of(
    edit: Edit, status: EditStatus, reason: EditReason, error: str | None = None
) -> EditOutcome:
    return EditOutcome(edit_id=edit.id, status=status, reason=reason, error=error)


def _begun(context: EditContextPorts, session: EditSession, at: int) -> EditSession:
    """Hold or refuse the next edit, or begin to apply it. The beginning is saved before any file is
    written: without it, an edit in the tree belongs to an earlier session of that name."""
    session = session.recorded(at, notes=())
    record, edit = session.records[at], session.records[at].edit
    held = _routed(context, session, at)
    if held is not None:
        return _held(context, session, at, held)
    if context.tree.standing(session.id, edit.id) is not None:
        used = outcome_of(edit, "rejected_by_gate", "conflict", _USED.format(session.id, edit.id))
        return session.decided(at, used)
    found = _computed(context, edit)
    if isinstance(found, EditOutcome):
        return session.decided(at, found)
    shown = _shown(session, at, found)
    if session.suite is None:
        if session.benchmark.policy == "require" and record.approved_by is None:
            return shown.decided(at, outcome_of(edit, "pending_review", "no_scorer", _NO_SUITE))
        context.prepared[edit.id] = found
        return shown.moved(phase="baseline", at=at)
    problem = target_problem(edit.expected_improvement, session.suite)
    if problem is not None:
        return session.decided(at, outcome_of(edit, "rejected_by_gate", "validation", problem))
    try:
        state = _measurer(context).snapshot(context.ctx.root)
    except BadInput as error:
        return session.decided(at, _refused(edit, error))
    return shown.moved(phase="baseline", at=at, trial=EditTrial(before=state))


def _shown(session: EditSession, at: int, found: ComputedEdit) -> EditSession:
    return session.recorded(at, diff=session.fitting(found.diff), notes=found.notes)


def _held(
    context: EditContextPorts, session: EditSession, at: int, held: EditOutcome
) -> EditSession:
    """Hold an edit for review, with its diff or the reason why it cannot be applied. With a suite,
    measure its effect on a copy; nothing is written to the tree."""
    edit = session.records[at].edit
    if held.status != "pending_review":
        return session.decided(at, held)
    if not context.appliers.is_supported(edit.op):
        return session.decided(at, _noted(held, f"op {edit.op} not implemented in v1"))
    found = _computed(context, edit)
    if isinstance(found, EditOutcome):
        why = f"as the tree is, it would be {found.status} ({found.reason}): {found.error}"
        return session.decided(at, _noted(held, why))
    shown = _shown(session, at, found)
    if session.suite is None:
        return shown.decided(at, held)
    problem = target_problem(edit.expected_improvement, session.suite)
    if problem is not None:
        return shown.decided(at, _noted(held, f"it would be rejected: {problem}"))
    try:
        before = _measurer(context).snapshot(context.ctx.root)
        after = _measurer(context).snapshot(context.ctx.root, found.changes)
    except BadInput as error:
        return shown.decided(at, _noted(held, f"it cannot be measured: {error}"))
    trial = EditTrial(before=before, after=after, held=held)
    return shown.moved(phase="measuring", at=at, trial=trial)


def _noted(outcome: EditOutcome, note: str) -> EditOutcome:
    return outcome.model_copy(update={"notes": (*outcome.notes, note)})


def _kept_ungated(
    context: EditContextPorts, session: EditSession, at: int, checkpoint: int
) -> EditSession:
    outcome = outcome_of(session.records[at].edit, "applied", "ungated")
    done = outcome.model_copy(update={"applied_at": context.now()})
    return session.decided(at, done, checkpoint=checkpoint)


# -- measuring -----------------------------------------------------------------------------------


def _measurer(context: EditContextPorts) -> Measurer:
    if context.measurer is None:
        raise BadInput("the session has a suite, but this process cannot measure it")
    return context.measurer


def _applied(context: EditContextPorts, session: EditSession) -> EditSession:
    """Apply the edit in progress. With a suite, go on to measure the tree before and after."""
    at, trial = session.at, session.trial
    if at is None or (trial is None) != (session.suite is None):
        raise ValueError(f"session {session.id} is in phase {session.phase} without a trial")
    record = session.records[at]
    made = context.tree.standing(session.id, record.edit.id)
    if made is None:
        found = context.prepared.pop(record.edit.id, None) or _computed(context, record.edit)
        if isinstance(found, EditOutcome):  # the tree changed since the last step
            return session.decided(at, found).moved(updated_at=context.now())
        session = session.recorded(at, notes=found.notes)
        try:
            made = context.tree.apply(session.id, record.edit.id, record.tier, found.changes)
        except EditRefused as error:
            return session.decided(at, _refused(record.edit, error)).moved(updated_at=context.now())
    if trial is None:
        return _kept_ungated(context, session, at, made).moved(updated_at=context.now())
    try:
        after = _measurer(context).snapshot(context.ctx.root)
    except BadInput as error:  # with this edit, the tree is too large to be measured
        return taken_back(context, session, at, _refused(record.edit, error))
    moved = session.moved(phase="measuring", trial=trial.model_copy(update={"after": after}))
    return moved.recorded(at, checkpoint=made).moved(updated_at=context.now())


def _measured(context: EditContextPorts, session: EditSession) -> EditSession:
    """Start a repeat, poll it, or decide."""
    trial, suite = session.trial, session.suite
    if session.at is None or trial is None or trial.after is None or suite is None:
        raise ValueError(f"session {session.id} is in phase {session.phase} without a trial")
    measurer = _measurer(context)
    if trial.runs is None:
        repeat = trial.scored[0].repeats
        try:
            first, second = (
                measurer.start(suite, state, session=session.id, repeat=repeat)
                for state in (trial.before, trial.after)
            )
        except BadInput as error:  # after this edit, the suite's jobs cannot be made
            refused = _refused(session.records[session.at].edit, error)
            if trial.held is not None:
                held = trial.held.model_copy(update={"error": f"it cannot be measured: {error}"})
                return session.decided(session.at, held).moved(updated_at=context.now())
            return taken_back(context, session, session.at, refused)
        started = trial.model_copy(update={"runs": (first, second)})
        return session.moved(trial=started, updated_at=context.now())
    ended = [measurer.poll(suite, runs) for runs in trial.runs]
    if ended[0] is None or ended[1] is None:
        return session
    scored = (trial.scored[0].joined(ended[0]), trial.scored[1].joined(ended[1]))
    measured = trial.model_copy(update={"runs": None, "scored": scored})
    return _judged(context, session.moved(trial=measured, updated_at=context.now()), session.at)


def _judged(context: EditContextPorts, session: EditSession, at: int) -> EditSession:
    """Keep the edit, roll it back, or ask for one more repeat."""
    trial, suite = session.trial, session.suite
    if trial is None or suite is None:
        raise ValueError(f"session {session.id} has nothing to judge by")
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
            return taken_back(context, session, at, _with_effect(rejected, found))


def _run_notes(trial: EditTrial) -> tuple[str, ...]:
    """Return the notes of both sides' runs: ``before: parse: stopped after 60 s``."""
    sides = zip(("before", "after"), trial.scored, strict=True)
    return tuple(f"{side}: {note}" for side, scores in sides for note in scores.notes)


def _with_effect(outcome: EditOutcome, found: Comparison) -> EditOutcome:
    measured = {"benchmark_delta": found.delta, "cluster_deltas": found.cluster_deltas}
    return outcome.model_copy(update=measured)


def taken_back(
    context: EditContextPorts, session: EditSession, at: int, outcome: EditOutcome
) -> EditSession:
    """Roll a rejected edit back. If the same lines have changed since, record a conflict."""
    try:
        context.tree.rollback_edit(session.id, outcome.edit_id)
    except EditConflict as error:
        text = f"{outcome.error}; it could not be rolled back: {error}"
        outcome = outcome.model_copy(update={"reason": "conflict", "error": text})
    return session.decided(at, outcome).moved(updated_at=context.now())
