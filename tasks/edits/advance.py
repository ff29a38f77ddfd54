"""A session at work: take it one step further. What people decide is in ``tasks.edits.decide``.

Every step may be done again: applying and rolling back are known by session and edit, measuring
by content. So a process that died between a step and its saving costs nothing but the step.
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
    """The step could not be taken now: somebody else has the tree or the session. Try again."""


class Appliers(Protocol):
    """Operations by name."""

    def is_supported(self, op: str) -> bool: ...

    def get(self, op: str) -> EditApplier: ...


class EditTree(Protocol):
    """The one writer of a tree. Raises NotNow while somebody else has it."""

    def standing(self, session_id: str, edit_id: str) -> int | None:
        """The checkpoint of an edit that is in the tree."""
        ...

    def mode(self, path: str) -> int | None:
        """The permission bits of a file that is there."""
        ...

    def apply(self, session_id: str, edit_id: str, tier: str, changes: Sequence[FileChange]) -> int:
        """All changes or none; the checkpoint. Raises EditRefused."""
        ...

    def rollback_edit(self, session_id: str, edit_id: str) -> str:
        """Take it back, and say so; nothing if it is not there. Raises EditConflict."""
        ...

    def rollback_session(self, session_id: str) -> str:
        """Take every edit of the session back that stands, or none. Raises EditConflict."""
        ...


@dataclass(frozen=True, kw_only=True)
class EditContextPorts:
    """What a session's steps are taken with."""

    ctx: ApplyContext
    appliers: Appliers
    tree: EditTree
    #: None: there is nobody to measure, and no session has a suite.
    measurer: Measurer | None
    now: Callable[[], datetime]
    #: What the last step computed for the next one, by edit: an edit without a suite is written
    #: at once, and need not be computed twice. The writer compares the files all the same.
    prepared: dict[str, ComputedEdit] = field(default_factory=dict)


@dataclass(frozen=True)
class ComputedEdit:
    """An edit that may be applied, and changes something."""

    changes: Sequence[FileChange]
    #: The permission bits of the files as they are.
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
        """Which tolerance found the place, by file."""
        told = (f"{c.path}: {c.note}" for c in self.changes if c.note and not c.unchanged)
        return tuple(dict.fromkeys(told))


_USED = (
    "session {0} applied an edit {1} before, and it is still in the tree: this name was used"
    " before; choose another session, or roll that edit back first"
)
_NO_SUITE = "there is no suite to measure it by: name one, approve it, or set policy: allow"


# -- one step ------------------------------------------------------------------------------------


def advance(context: EditContextPorts, session: EditSession) -> EditSession:
    """One step. The same session: it waits for what is being measured, or it is done."""
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
    """Why an edit is not applied now, if so."""
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
        told = "; ".join(notes) or "it changes nothing"
        return outcome_of(edit, "skipped", "no_op", told)
    return ComputedEdit(changes, {c.path: context.tree.mode(c.path) for c in changes})


def _refused(edit: Edit, error: Exception) -> EditOutcome:
    match error:
        case EditConflict():
            return outcome_of(edit, "rejected_by_gate", "conflict", str(error))
        case BadInput():
            return outcome_of(edit, "rejected_by_gate", "apply_error", str(error))
        case _:
            told = str(error) or type(error).__name__
            return outcome_of(edit, "rejected_by_gate", "apply_error", told)


def outcome_of(
    edit: Edit, status: EditStatus, reason: EditReason, error: str | None = None
) -> EditOutcome:
    return EditOutcome(edit_id=edit.id, status=status, reason=reason, error=error)


def _begun(context: EditContextPorts, session: EditSession, at: int) -> EditSession:
    """The next edit: held, refused, or on its way to be applied. That it is begun is saved before
    anything is written: what stands in the tree without that is not this session's."""
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
    """An edit that is not applied now. Who reviews it is shown what it would change, or why it
    cannot be applied, and with a suite also its effect: measured on a copy, and nothing is written
    to the tree."""
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
        raise BadInput("the session has a suite, and nobody here can measure it")
    return context.measurer


def _applied(context: EditContextPorts, session: EditSession) -> EditSession:
    """Apply the edit that was begun; with a suite, whose "before" is known, measure both sides."""
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
    """Start a repeat, look whether it has ended, or decide."""
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
                told = trial.held.model_copy(update={"error": f"it cannot be measured: {error}"})
                return session.decided(session.at, told).moved(updated_at=context.now())
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
    """Keep the edit, take it back, or ask for one more repeat."""
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
        told = "; ".join((f"measured: {found.text}", *_said(trial)))
        held = trial.held.model_copy(update={"error": told})
        return session.decided(at, _with_effect(held, found))
    match found.decision:
        case MeasureMore():
            return session
        case KeepEdit():
            kept = _with_effect(outcome_of(edit, "applied", "kept"), found)
            more = {"applied_at": context.now(), "notes": _said(trial)}
            return session.decided(at, kept.model_copy(update=more))
        case RejectEdit(reason):
            told = "; ".join((found.text, *_said(trial)))
            rejected = outcome_of(edit, "rejected_by_gate", reason, told)
            return taken_back(context, session, at, _with_effect(rejected, found))


def _said(trial: EditTrial) -> tuple[str, ...]:
    """What either side's runs had to say: ``before: parse: stopped after 60 s``."""
    sides = zip(("before", "after"), trial.scored, strict=True)
    return tuple(f"{side}: {note}" for side, scores in sides for note in scores.notes)


def _with_effect(outcome: EditOutcome, found: Comparison) -> EditOutcome:
    measured = {"benchmark_delta": found.delta, "cluster_deltas": found.cluster_deltas}
    return outcome.model_copy(update=measured)


def taken_back(
    context: EditContextPorts, session: EditSession, at: int, outcome: EditOutcome
) -> EditSession:
    """Roll a rejected edit back. Where somebody changed the same lines meanwhile, say so."""
    try:
        context.tree.rollback_edit(session.id, outcome.edit_id)
    except EditConflict as error:
        told = f"{outcome.error}; it could not be taken back: {error}"
        outcome = outcome.model_copy(update={"reason": "conflict", "error": told})
    return session.decided(at, outcome).moved(updated_at=context.now())
