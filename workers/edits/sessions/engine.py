"""The engine of edit sessions: the same steps for a command, which waits, and for a worker."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from mulligan.policies.edits.edit import AutonomyMode, EditPlan, EditRiskTier
from mulligan.policies.edits.session import EditDelta, EditSession, records_of
from mulligan.policies.edits.suite import Suite
from mulligan.tasks.edits.advance import Appliers, EditContextPorts, RetryLater, advance
from mulligan.tasks.edits.correct_author import correct_author
from mulligan.tasks.edits.decide import (
    MAX_DEATHS,
    abandon,
    approve,
    give_up,
    quarantine,
    reject,
    roll_back,
    step_of,
)
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.ports.appliers import ApplyContext
from mulligan.tasks.ports.errors import BadInput, refuse
from mulligan.tasks.ports.measurer import Measurer
from mulligan.workers.edits.applier_registry import default_registry
from mulligan.workers.edits.sessions.bounded_diff import bounded_diff
from mulligan.workers.edits.sessions.session_store import SessionLease, SessionStore, session_store
from mulligan.workers.edits.sessions.session_tree import SessionTree, retry_when_busy
from mulligan.workers.edits.sessions.started_steps import StartedSteps
from mulligan.workers.edits.sessions.suite_measurer import suite_measurer
from mulligan.workers.edits.tree.edited_tree import EditedTree
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.sandbox.allowed import program_limits
from mulligan.workers.settings.model import Settings

log = logging.getLogger(__name__)

_POLL = 0.05

OnProgress = Callable[[EditSession], None]


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class EditEngine:
    """What a process needs to work on sessions."""

    sessions: SessionStore
    #: The folder for the journals of trees.
    home: Path
    #: None: no suite can be measured here.
    measurer: Measurer | None = None
    #: Takes the jobs that correct plans; None: this process submits none.
    intake: Intake | None = None
    appliers: Appliers = field(default_factory=default_registry)
    #: Overrides of the table of tiers, by operation.
    tiers: Mapping[str, EditRiskTier] = field(default_factory=dict)
    #: Commands by name.
    formatters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Seconds to wait for a tree that another process writes to.
    patience: float = 5.0
    host: str = field(default_factory=socket.gethostname)
    now: Callable[[], datetime] = utc_now

    # -- beginning -------------------------------------------------------------------------------

    def begin(
        self,
        plan: EditPlan,
        root: Path,
        mode: AutonomyMode,
        *,
        suite: Suite | None,
        config: str = ".",
        inline: bool = True,
        by: str | None = None,
        owner: str | None = None,
    ) -> EditSession:
        """Create a session for a plan, or return the existing one with the same name, tree and
        edits. Raises BadInput."""
        tree = EditedTree(root, self.home)
        self._refuse_suite(suite, tree.root)
        session = EditSession(
            id=plan.session or f"s{int(time.time()):x}{token_hex(3)}",
            host=self.host,
            root=str(tree.root),
            config=config,
            mode=mode,
            benchmark=plan.benchmark,
            suite=suite,
            inline=inline,
            records=records_of(plan.edits, self.tiers),
            created_at=self.now(),
            updated_at=self.now(),
            by=by,
            owner=owner,
            author=plan.author,
        )
        if self.sessions.create(session):
            return session
        known = self.sessions.get(session.id).session
        same_tree = (known.root, known.host) == (session.root, session.host)
        own = owner is None or owner == known.owner
        if not (same_tree and own) or plan.edits != tuple(r.edit for r in known.records):
            message = (
                f"{session.id} is the name of an earlier session with other edits or another root:"
                " choose another name, or leave it out"
            )
            raise BadInput.at("session", message, "session_exists")
        return known

    def check_suite(self, session_id: str) -> None:
        """Raise BadInput if a session's suite may not run here: the process that began it may have
        had more rights."""
        session = self.sessions.get(session_id).session
        if session.phase == "ready" and session.open is not None:
            self._refuse_suite(session.suite, self._tree(session).root)
        elif session.phase != "done":
            # The tree has an edit in it now: the gate judges what that did to the suite.
            self._refuse_suite(session.suite)

    def check_approval(self, session_id: str) -> None:
        """Raise BadInput if a worker with the rights of this process may not run a session's
        suite. Only the tree's own host can also check the suite against the tree."""
        session = self.sessions.get(session_id).session
        on_host = session.suite is not None and session.host == self.host
        self._refuse_suite(session.suite, self._tree(session).root if on_host else None)

    def _refuse_suite(self, suite: Suite | None, root: Path | None = None) -> None:
        """Raise BadInput if the suite may not run here or, given a root, not on that tree."""
        if suite is None or self.measurer is None:
            return
        forbidden = self.measurer.forbidden
        problems = forbidden(suite) if root is None else self.measurer.problems(suite, root)
        refuse(problem.below("suite") for problem in problems)

    # -- working ---------------------------------------------------------------------------------

    def work(
        self,
        session_id: str,
        *,
        tree: EditedTree | None = None,
        on_progress: OnProgress | None = None,
        checked: bool = True,
    ) -> EditSession:
        """Take steps until the session is done or waits for a measurement. An edit at which
        processes died is quarantined. Raises RetryLater if another process has the session or its
        tree. ``tree``: a tree that the caller holds. ``checked``: whether ``check_suite`` was
        called; if not, it is before the first step."""
        found = self.sessions.get(session_id)
        # A command holds the tree while it lives: if the caller holds it, that command is dead.
        dead = tree is not None and found.session.inline
        with (
            self.sessions.leased(session_id, by_force=dead) as lease,
            self.sessions.started_steps(session_id).ended() as steps,
        ):
            found = self.sessions.get(session_id)
            context = self._context(found.session, lease, tree)
            while found.session.phase != "done":
                self._take_tree(found.session)
                moved = self._take_step(context, steps, found.session, checked=checked)
                checked = True
                if moved is found.session:
                    return moved
                lease.check()
                # Ask the author before saving: a session that is done is not looked at again.
                moved = self._with_correction(moved)
                self._add_deltas(found.session, moved)
                # If a decision changed the session meanwhile, the step is taken again, harmlessly.
                found = self.sessions.save(found, moved) or self.sessions.get(session_id)
                if on_progress is not None:
                    on_progress(found.session)
            self.sessions.release_tree(found.session)
            return found.session

    def _take_step(
        self,
        context: EditContextPorts,
        steps: StartedSteps,
        session: EditSession,
        *,
        checked: bool,
    ) -> EditSession:
        """Take the next step, or quarantine its edit if processes died at it."""
        step = step_of(session)
        deaths = steps.deaths(step)
        steps.begin(step, deaths)
        if deaths < MAX_DEATHS:
            if not checked:
                self.check_suite(session.id)
            return advance(context, session)
        moved = quarantine(context, session, deaths)
        for old, new in zip(session.records, moved.records, strict=True):
            if new.outcome is not None and new.outcome != old.outcome:
                log.error("Session %s: edit %s: %s", session.id, new.edit.id, new.outcome.error)
                self.sessions.alert_quarantine(session.id, new.edit.id)
        return moved

    def drive(
        self,
        session_id: str,
        *,
        on_progress: OnProgress | None = None,
        wait: Callable[[], object] = lambda: time.sleep(_POLL),
    ) -> EditSession:
        """Work on a session until it is done, and hold its tree meanwhile. ``wait`` returns when a
        measurement may have ended."""
        session = self.sessions.get(session_id).session
        tree = self._tree(session)
        with retry_when_busy(), tree.held(session_id):
            while True:
                session = self.work(session_id, tree=tree, on_progress=on_progress)
                if session.phase == "done":
                    return session
                wait()

    def _with_correction(self, session: EditSession) -> EditSession:
        """Ask the plan's author again if every edit is decided, and return the session with the
        author's new job."""
        if self.intake is None or session.correction is not None:
            return session
        try:
            job_id = correct_author(self.intake, session)
        except BadInput as error:
            log.warning("Session %s: the plan's author cannot correct it: %s", session.id, error)
            return session
        return session if job_id is None else session.moved(correction=job_id)

    def correct(self, session: EditSession) -> EditSession:
        """Let the author of a finished session's plan correct what failed, once."""
        asked = self._with_correction(session)
        if asked is session:
            return session
        return self._change(session.id, lambda s: s.moved(correction=asked.correction))

    def _take_tree(self, session: EditSession) -> None:
        owner = self.sessions.take_tree(session)
        if owner is not None:
            raise RetryLater(
                f"{session.root}: session {owner} is at work on it; wait for it,"
                f" or continue with `mulligan edits resume {owner}`,"
                f" or give it up with `mulligan edits rollback {owner}`"
            )

    def _add_deltas(self, before: EditSession, after: EditSession) -> None:
        """Add every effect that was measured in this step to the history."""
        for old, new in zip(before.records, after.records, strict=True):
            done = new.outcome
            if done is None or done == old.outcome or done.benchmark_delta is None:
                continue
            self.sessions.add_delta(
                EditDelta(
                    at=done.applied_at or after.updated_at,
                    session=after.id,
                    edit_id=new.edit.id,
                    op=new.edit.op,
                    target=new.edit.target,
                    root=after.root,
                    cluster=new.edit.expected_improvement,
                    status=done.status,
                    reason=done.reason,
                    benchmark_delta=done.benchmark_delta,
                    cluster_deltas=done.cluster_deltas,
                    notes=done.notes,
                )
            )

    # -- deciding --------------------------------------------------------------------------------

    def approve(self, session_id: str, edit_id: str, *, by: str, note: str | None) -> EditSession:
        """Let an edit be applied by the process that works on the session."""
        now = self.now()
        return self._change(session_id, lambda s: approve(s, edit_id, by=by, now=now, note=note))

    def reject(self, session_id: str, edit_id: str, *, by: str, note: str) -> EditSession:
        now = self.now()
        rejected = self._change(session_id, lambda s: reject(s, edit_id, by=by, now=now, note=note))
        return self.correct(rejected)

    def _change(self, session_id: str, change: Callable[[EditSession], EditSession]) -> EditSession:
        while True:
            found = self.sessions.get(session_id)
            moved = change(found.session)
            if self.sessions.save(found, moved) is not None:
                self._add_deltas(found.session, moved)
                return moved

    def roll_back(
        self, session_id: str, edit_id: str | None, *, by: str, note: str | None = None
    ) -> tuple[EditSession, str]:
        """Roll back an edit or a session. Return the session and a text. Raises RetryLater while
        another process works on the session."""
        found = self.sessions.get(session_id)
        try:
            tree = self._tree(found.session)
        except BadInput:
            if edit_id is not None or not found.session.untouched:
                raise
            # The tree is missing or on another host, but the session wrote nothing to it.
            with self.sessions.leased(session_id, patience=self.patience):
                return self._end(session_id, lambda s: abandon(s, by=by, now=self.now(), note=note))
        with (
            retry_when_busy(),
            tree.held(session_id),
            self.sessions.leased(
                session_id, patience=self.patience, by_force=found.session.inline
            ) as lease,
        ):
            return self._end(
                session_id,
                lambda s: roll_back(self._context(s, lease, tree), s, edit_id, by=by, note=note),
            )

    def give_up(self, session_id: str, why: str) -> EditSession:
        """End a session that cannot go on here: roll back the edit in progress and leave the others
        to a person. Raises BadInput or RetryLater, and changes nothing, if it cannot be rolled back
        now."""
        with self.sessions.leased(session_id, patience=self.patience) as lease:
            return self._end(
                session_id, lambda s: (give_up(self._context(s, lease, None), s, why), why)
            )[0]

    def _end(
        self, session_id: str, end: Callable[[EditSession], tuple[EditSession, str]]
    ) -> tuple[EditSession, str]:
        """Save a change that may also write to the tree. Repeating ``end`` is harmless."""
        while True:
            found = self.sessions.get(session_id)
            moved, text = end(found.session)
            self._add_deltas(found.session, moved)
            if self.sessions.save(found, moved) is not None:
                break
        if moved.phase == "done":
            self.sessions.release_tree(moved)
        return moved, text

    # -- context ---------------------------------------------------------------------------------

    def _tree(self, session: EditSession) -> EditedTree:
        if session.host != self.host:
            raise BadInput(
                f"session {session.id}: its tree is on {session.host}, this is {self.host}"
            )
        return EditedTree(Path(session.root), self.home, timeout=self.patience)

    def _context(
        self, session: EditSession, lease: SessionLease, tree: EditedTree | None
    ) -> EditContextPorts:
        tree = tree or self._tree(session)
        return EditContextPorts(
            ctx=ApplyContext(
                root=tree.root,
                config=Path(session.config),
                tiers=self.tiers,
                formatters=self.formatters,
            ),
            appliers=self.appliers,
            tree=SessionTree(tree, lease.check),
            measurer=self.measurer,
            now=self.now,
            diff=bounded_diff,
        )


def take_steps(engine: EditEngine, session_id: str) -> str:
    """Advance a session as far as possible and return its phase, or ``not now`` if it has to wait
    for another hint. End a session that can never go on, with the reason."""
    try:
        return engine.work(session_id, checked=False).phase
    except RetryLater as error:
        log.info("Session %s: %s", session_id, error)
        return "not now"
    except BadInput as error:
        if engine.sessions.find(session_id) is None:
            return "gone"
        return _give_up(engine, session_id, str(error))


def _give_up(engine: EditEngine, session_id: str, why: str) -> str:
    """End a session, unless its root is missing or on another host: then the contents of the tree
    are unknown, and the session stays as it is until the root is back."""
    try:
        phase = engine.give_up(session_id, why).phase
    except (RetryLater, BadInput) as error:
        log.info("Session %s: %s", session_id, error)
        return "not now"
    log.warning("Session %s cannot go on and was ended: %s", session_id, why)
    return phase


def build_edit_engine(
    settings: Settings, ledger: RedisLedger, intake: Intake | None, *, commands: bool
) -> EditEngine:
    """Build the engine of these settings. ``commands``: whether a suite may contain commands."""
    return EditEngine(
        sessions=session_store(settings, ledger),
        home=settings.home,
        intake=intake,
        tiers=settings.edit_tiers,
        formatters=settings.formatters,
        appliers=default_registry(program_limits(settings)),
        measurer=suite_measurer(settings, ledger, intake, commands=commands),
    )
