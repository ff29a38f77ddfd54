"""Sessions at work: the same steps for a command that waits and for a worker that does not."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from mulligan.policies.edits.edit import AutonomyMode, EditPlan, EditRiskTier
from mulligan.policies.edits.session import EditDelta, EditSession, records_of
from mulligan.policies.edits.suite import Suite
from mulligan.policies.problem import Problem
from mulligan.tasks.edits.advance import Appliers, EditContextPorts, RetryLater, advance
from mulligan.tasks.edits.correct_author import correct_author
from mulligan.tasks.edits.decide import abandon, approve, give_up, reject, roll_back
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.ports.appliers import ApplyContext
from mulligan.tasks.ports.errors import BadInput, refuse
from mulligan.tasks.ports.measurer import Measurer
from mulligan.workers.edits.applier_registry import default_registry
from mulligan.workers.edits.sessions.session_store import SessionLease, SessionStore, StoredSession
from mulligan.workers.edits.sessions.session_tree import SessionTree, retry_when_busy
from mulligan.workers.edits.sessions.suite_measurer import suite_measurer
from mulligan.workers.edits.tree.edited_tree import EditedTree
from mulligan.workers.ledger.redis_ledger import RedisLedger
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
    #: Where what is known about trees is kept.
    home: Path
    #: None: no suite can be measured here.
    measurer: Measurer | None = None
    #: Takes the jobs that correct plans; None: no author is asked again from here.
    intake: Intake | None = None
    appliers: Appliers = field(default_factory=default_registry)
    #: Overrides of the table of tiers, by operation; formatters by name.
    tiers: Mapping[str, EditRiskTier] = field(default_factory=dict)
    formatters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: How long to wait for a tree that another process writes to, in seconds.
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
    ) -> EditSession:
        """A session for a plan; the one there is, if it has this name, tree and these edits."""
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
            author=plan.author,
        )
        if self.sessions.create(session):
            return session
        known = self.sessions.get(session.id).session
        if (known.root, known.host) != (session.root, session.host) or plan.edits != tuple(
            record.edit for record in known.records
        ):
            message = (
                f"{session.id} is the name of an earlier session with other edits or another root:"
                " choose another name, or leave it out"
            )
            raise BadInput.at("session", message, "session_exists")
        return known

    def check_suite(self, session_id: str) -> None:
        """BadInput if a session's suite may not be run here: who began it may have been allowed
        more than this process is."""
        session = self.sessions.get(session_id).session
        if session.phase == "ready" and session.open is not None:
            self._refuse_suite(session.suite, self._tree(session).root)
        elif session.phase != "done" and session.suite and self.measurer:
            # The tree has an edit in it now: what that did to the suite is for the gate to say.
            _refuse(self.measurer.forbidden(session.suite))

    def check_approval(self, session_id: str) -> None:
        """BadInput if a session's suite may not be run by a worker that is as this process. What
        its tree makes of the suite can be told on its own host only."""
        session = self.sessions.get(session_id).session
        if session.suite is None or self.measurer is None:
            return
        if session.host == self.host:
            self._refuse_suite(session.suite, self._tree(session).root)
        else:
            _refuse(self.measurer.forbidden(session.suite))

    def _refuse_suite(self, suite: Suite | None, root: Path) -> None:
        _refuse(self.measurer.problems(suite, root) if suite and self.measurer else [])

    # -- working ---------------------------------------------------------------------------------

    def work(
        self,
        session_id: str,
        *,
        tree: EditedTree | None = None,
        on_progress: OnProgress | None = None,
    ) -> EditSession:
        """Steps until the session is done, or waits for what is measured. NotNow if the session
        or its tree is somebody else's at the moment. ``tree``: one that the caller holds."""
        found = self.sessions.get(session_id)
        # A command holds the tree as long as it lives: who has it knows that nobody else works.
        dead = tree is not None and found.session.inline
        with self.sessions.leased(session_id, by_force=dead) as lease:
            found = self.sessions.get(session_id)
            context = self._bench(found.session, lease, tree)
            while found.session.phase != "done":
                self._own_tree(found.session)
                moved = advance(context, found.session)
                if moved is found.session:
                    return moved
                lease.check()
                # Before it is saved: nobody looks at a session again that is done.
                found = self._saved(found, self._corrected(moved))
                if on_progress is not None:
                    on_progress(found.session)
            self.sessions.let_go(found.session)
            return found.session

    def drive(
        self,
        session_id: str,
        *,
        on_progress: OnProgress | None = None,
        wait: Callable[[], object] = lambda: time.sleep(_POLL),
    ) -> EditSession:
        """Work on a session until it is done, and keep the tree for it all the while. ``wait``
        returns when it is worth looking again at what is measured."""
        session = self.sessions.get(session_id).session
        tree = self._tree(session)
        with retry_when_busy(), tree.held(session_id):
            while True:
                session = self.work(session_id, tree=tree, on_progress=on_progress)
                if session.phase == "done":
                    return session
                wait()

    def _saved(self, found: StoredSession, moved: EditSession) -> StoredSession:
        """The session after a step; as somebody else changed it meanwhile, if so: then the step
        is taken again, which does nothing twice."""
        self._note(found.session, moved)
        return self.sessions.save(found, moved) or self.sessions.get(moved.id)

    def _corrected(self, session: EditSession) -> EditSession:
        """With the job that asks the plan's author again, once all of it is decided."""
        if self.intake is None or session.correction is not None:
            return session
        try:
            job_id = correct_author(self.intake, session)
        except BadInput as error:
            log.warning("session %s: its author is not asked again: %s", session.id, error)
            return session
        return session if job_id is None else session.moved(correction=job_id)

    def correct(self, session: EditSession) -> EditSession:
        """Let the author of a finished session's plan correct what failed; again is harmless."""
        asked = self._corrected(session)
        if asked is session:
            return session
        return self._changed(session.id, lambda s: s.moved(correction=asked.correction))

    def _own_tree(self, session: EditSession) -> None:
        owner = self.sessions.take_tree(session)
        if owner is not None:
            raise RetryLater(
                f"{session.root}: session {owner} is at work on it; wait for it,"
                f" or go on with `mulligan edits resume {owner}`,"
                f" or give it up with `mulligan edits rollback {owner}`"
            )

    def _note(self, before: EditSession, after: EditSession) -> None:
        """Keep every effect that was measured in this step."""
        for old, new in zip(before.records, after.records, strict=True):
            done = new.outcome
            if done is None or done == old.outcome or done.benchmark_delta is None:
                continue
            self.sessions.note(
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
        """Let an edit be applied; who works on the session does it."""
        now = self.now()
        return self._changed(session_id, lambda s: approve(s, edit_id, by=by, now=now, note=note))

    def reject(self, session_id: str, edit_id: str, *, by: str, note: str) -> EditSession:
        now = self.now()
        rejected = self._changed(
            session_id, lambda s: reject(s, edit_id, by=by, now=now, note=note)
        )
        return self.correct(rejected)

    def _changed(
        self, session_id: str, change: Callable[[EditSession], EditSession]
    ) -> EditSession:
        while True:
            found = self.sessions.get(session_id)
            moved = change(found.session)
            saved = self.sessions.save(found, moved)
            if saved is not None:
                self._note(found.session, moved)
                return saved.session

    def roll_back(
        self, session_id: str, edit_id: str | None, *, by: str, note: str | None = None
    ) -> tuple[EditSession, str]:
        """Take an edit or a session back. NotNow while somebody works on the session."""
        found = self.sessions.get(session_id)
        try:
            tree = self._tree(found.session)
        except BadInput:
            if edit_id is not None or not found.session.untouched:
                raise
            return self._abandoned(session_id, by=by, note=note)
        with (
            retry_when_busy(),
            tree.held(session_id),
            self.sessions.leased(
                session_id, patience=self.patience, by_force=found.session.inline
            ) as lease,
        ):
            return self._ended(
                session_id,
                lambda s: roll_back(self._bench(s, lease, tree), s, edit_id, by=by, note=note),
            )

    def _abandoned(self, session_id: str, *, by: str, note: str | None) -> tuple[EditSession, str]:
        """Its tree is gone or elsewhere, but nothing of the session is in it."""
        with self.sessions.leased(session_id, patience=self.patience):
            return self._ended(session_id, lambda s: abandon(s, by=by, now=self.now(), note=note))

    def give_up(self, session_id: str, why: str) -> EditSession:
        """End a session that can go no further here: its edit at work is taken back, the others
        wait for a person. BadInput or NotNow if it cannot be taken back now: nothing changed."""
        with self.sessions.leased(session_id, patience=self.patience) as lease:

            def ended(session: EditSession) -> tuple[EditSession, str]:
                return give_up(self._bench(session, lease, None), session, why), why

            return self._ended(session_id, ended)[0]

    def _ended(
        self, session_id: str, end: Callable[[EditSession], tuple[EditSession, str]]
    ) -> tuple[EditSession, str]:
        """Save a change that also wrote to the tree; it does nothing twice."""
        while True:
            found = self.sessions.get(session_id)
            moved, text = end(found.session)
            self._note(found.session, moved)
            if self.sessions.save(found, moved) is not None:
                break
        if moved.phase == "done":
            self.sessions.let_go(moved)
        return moved, text

    # -- surroundings ----------------------------------------------------------------------------

    def _tree(self, session: EditSession) -> EditedTree:
        if session.host != self.host:
            raise BadInput(
                f"session {session.id}: its tree is on {session.host}, this is {self.host}"
            )
        return EditedTree(Path(session.root), self.home, timeout=self.patience)

    def _bench(
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
        )


def _refuse(problems: Iterable[Problem]) -> None:
    refuse(problem.below("suite") for problem in problems)


def take_steps(engine: EditEngine, session_id: str) -> str:
    """A worker's turn at a session; in which phase it is then. What cannot be done now is hinted
    at again, and what never can is on record."""
    try:
        engine.check_suite(session_id)
        return engine.work(session_id).phase
    except RetryLater as error:
        log.info("session %s: %s", session_id, error)
        return "not now"
    except BadInput as error:
        if engine.sessions.find(session_id) is None:
            return "gone"
        return _given_up(engine, session_id, str(error))


def _given_up(engine: EditEngine, session_id: str, why: str) -> str:
    """A root that is away, or on another host, may come back: until it does, nobody can tell what
    is in the tree, and the session stays as it is."""
    try:
        phase = engine.give_up(session_id, why).phase
    except (RetryLater, BadInput) as error:
        log.info("session %s: %s", session_id, error)
        return "not now"
    log.warning("session %s is given up: %s", session_id, why)
    return phase


def build_edit_engine(
    settings: Settings, ledger: RedisLedger, intake: Intake | None, *, commands: bool
) -> EditEngine:
    """The engine of these settings. ``commands``: whether a suite may bring programs."""
    sessions = SessionStore(
        ledger.calls, prefix=settings.key_prefix, retention=settings.cycle_retention
    )
    return EditEngine(
        sessions=sessions,
        home=settings.home,
        intake=intake,
        tiers=settings.edit_tiers,
        formatters=settings.formatters,
        measurer=suite_measurer(settings, ledger, intake, commands=commands),
    )
