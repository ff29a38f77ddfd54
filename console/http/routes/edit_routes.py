"""Edits over HTTP: submit a plan, read its outcomes, approve or reject edits, roll back.

Only rollbacks are applied here: the edit worker on the tree's host works on sessions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from fastapi import Path as InPath
from starlette.requests import Request

from mulligan.console.http.access import Caller, needs
from mulligan.console.http.body_rights import check_plan_rights
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors, invalid, not_found
from mulligan.console.http.models.edit_models import (
    DecisionNote,
    DecisionReason,
    DeltaHistory,
    EditDocument,
    PlanSubmission,
    ReviewList,
    RollbackResult,
    SessionDocument,
    SessionList,
    UnreadableRow,
    delta_document,
    document,
    edit_document,
    row,
)
from mulligan.console.http.routes.job_routes import JOB_ID
from mulligan.policies.edits.session import EditDelta, EditRecord, EditSession
from mulligan.policies.suggestions import name_hint
from mulligan.tasks.edits.advance import RetryLater
from mulligan.tasks.ports.appliers import EditConflict
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.sessions.engine import EditEngine, build_edit_engine
from mulligan.workers.edits.sessions.session_store import UnreadableSession
from mulligan.workers.edits.tree import confined_paths
from mulligan.workers.edits.tree.journal import TreeFault
from mulligan.workers.ledger.stores.tokens import Role

#: The number of newest sessions to search for edits that wait.
_SESSIONS_SEARCHED = 500
_SESSION_ID = re.compile(r"\w[\w.-]{0,99}")
#: Names that are routes of their own.
_RESERVED = frozenset({"reviews", "history"})
_NO_NOTE = DecisionNote()


def _needs_without_tenant(*roles: Role) -> Callable[[Request], Caller]:
    """Return a dependency like ``needs`` that also refuses callers bound to a tenant: a tree
    belongs to no tenant."""
    allowed = needs(*roles)

    def check(request: Request) -> Caller:
        caller = allowed(request)
        if caller.tenant is not None:
            raise HttpError(
                403, "forbidden", "edits belong to no tenant: they need a token without a tenant"
            )
        return caller

    return check


Reader = Annotated[Caller, Depends(_needs_without_tenant("producer", "ops"))]
Ops = Annotated[Caller, Depends(_needs_without_tenant("ops"))]
Limit = Annotated[int, Query(ge=1, le=_SESSIONS_SEARCHED)]
SessionName = Annotated[
    str, InPath(min_length=1, max_length=200, description="A session's id", examples=["tune"])
]
EditName = Annotated[
    str, InPath(min_length=1, max_length=200, description="An edit's id", examples=["e1"])
]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["edits"])
    _add_submitting(router, context)
    _add_reading(router, context)
    _add_deciding(router, context)
    _add_rollback(router, context)
    return router


def _add_submitting(router: APIRouter, context: ConsoleContext) -> None:
    @router.post("/api/edits", status_code=202, responses=errors(409))
    def submit(body: PlanSubmission, caller: Reader, response: Response) -> SessionDocument:
        """Submit a plan for a workspace of this host. Its edit worker applies it.

        Only ops may ask for less review or a weaker gate than the default.
        """
        check_plan_rights(caller, body)
        if body.plan.author is not None and caller.owner is not None:
            _check_author(context, caller, body.plan.author)
        session = _begin(context, body, caller)
        response.headers["Location"] = f"/api/edits/{session.id}"
        return document(session, workspace_of(context, session), texts=caller.texts)


def _add_reading(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/api/edits")
    def sessions(caller: Reader, limit: Limit = 100) -> SessionList:
        """List sessions, newest first. A producer sees its own."""
        found, unreadable = recent_sessions(context, caller, limit=limit)
        return SessionList(
            sessions=[row(each, workspace_of(context, each)) for each in found],
            unreadable=[UnreadableRow(id=each.id, problem=each.problem) for each in unreadable],
        )

    @router.get("/api/edits/reviews")
    def reviews(caller: Reader, limit: Limit = 100) -> ReviewList:
        """List the edits that wait for review, newest session first."""
        found = find_waiting(context, caller)[:limit]
        return ReviewList(reviews=[edit_document(s, r, texts=caller.texts) for s, r in found])

    @router.get("/api/edits/history")
    def history(
        caller: Reader,
        session: Annotated[str | None, Query(max_length=200)] = None,
        cluster: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> DeltaHistory:
        """List measured effects, newest first, each edit once."""
        found = [
            delta_document(delta, texts=caller.texts)
            for delta in visible_deltas(context, caller, limit=10_000)
            if session in (None, "", delta.session)
            and (not cluster or cluster in delta.cluster_deltas)
        ]
        return DeltaHistory(deltas=found[:limit])

    @router.get("/api/edits/{session}", responses=errors(404))
    def session(session: SessionName, caller: Reader) -> SessionDocument:
        """Show a session: each edit with its outcome, diff and measured effect."""
        found = find_session(context, caller, session)
        return document(found, workspace_of(context, found), texts=caller.texts)


def _add_deciding(router: APIRouter, context: ConsoleContext) -> None:
    @router.post("/api/edits/{session}/{edit}/approve", status_code=202, responses=errors(404, 409))
    def approve(
        session: SessionName, edit: EditName, caller: Ops, body: DecisionNote = _NO_NOTE
    ) -> EditDocument:
        """Approve an edit. It still has to pass the gate."""
        find_edit(find_session(context, caller, session), edit)
        with _conflicts_as_409():
            done = _approve(edit_engine(context), session, edit, by=caller.name, note=body.note)
        return edit_document(done, find_edit(done, edit), texts=caller.texts)

    @router.post("/api/edits/{session}/{edit}/reject", responses=errors(404, 409))
    def reject(
        session: SessionName, edit: EditName, body: DecisionReason, caller: Ops
    ) -> EditDocument:
        """Reject an edit, with the reason."""
        find_edit(find_session(context, caller, session), edit)
        with _conflicts_as_409():
            done = edit_engine(context).reject(session, edit, by=caller.name, note=body.note)
        return edit_document(done, find_edit(done, edit), texts=caller.texts)


def _add_rollback(router: APIRouter, context: ConsoleContext) -> None:
    @router.post("/api/edits/{session}/rollback", responses=errors(404, 409))
    def roll_back(
        session: SessionName, caller: Ops, body: DecisionNote = _NO_NOTE
    ) -> RollbackResult:
        """Roll back all edits of a session, byte for byte, and withdraw its pending edits."""
        find_session(context, caller, session)
        return _roll_back(context, caller, session, None, body)

    @router.post("/api/edits/{session}/{edit}/rollback", responses=errors(404, 409))
    def roll_back_edit(
        session: SessionName, edit: EditName, caller: Ops, body: DecisionNote = _NO_NOTE
    ) -> RollbackResult:
        """Roll back one edit, byte for byte. Repeating is harmless."""
        find_edit(find_session(context, caller, session), edit)
        return _roll_back(context, caller, session, edit, body)


def _roll_back(
    context: ConsoleContext, caller: Caller, session: str, edit: str | None, body: DecisionNote
) -> RollbackResult:
    with _conflicts_as_409():
        done, text = edit_engine(context).roll_back(session, edit, by=caller.name, note=body.note)
    found = document(done, workspace_of(context, done), texts=caller.texts)
    return RollbackResult(**dict(found), said=text)


# -- finding -------------------------------------------------------------------------------------


def edit_engine(context: ConsoleContext) -> EditEngine:
    """Return this host's engine for one request."""
    settings = context.settings
    return build_edit_engine(
        settings, context.ledger, context.services.intake, commands=settings.allow_inline
    )


def find_session(context: ConsoleContext, caller: Caller, name: str) -> EditSession:
    """Return a session, or answer 404 if it does not exist or the caller may not see it."""
    possible = _SESSION_ID.fullmatch(name) and name not in _RESERVED
    found = edit_engine(context).sessions.find(name) if possible else None
    if found is None or not caller.owns(found.session.owner):
        raise not_found(f"session {name!r}")
    return found.session


def find_edit(session: EditSession, name: str) -> EditRecord:
    """Return an edit of a session, or answer 404."""
    index = session.index(name)
    if index is None:
        raise not_found(f"edit {name!r} in session {session.id!r}")
    return session.records[index]


def recent_sessions(
    context: ConsoleContext, caller: Caller, *, limit: int
) -> tuple[list[EditSession], list[UnreadableSession]]:
    """Return the newest sessions that a caller may see, and those that cannot be read."""
    sessions = edit_engine(context).sessions
    if caller.owner is None:
        return sessions.read_recent(limit=limit)
    found = sessions.recent(limit=_SESSIONS_SEARCHED)
    return [each for each in found if caller.owns(each.owner)][:limit], []


def visible_deltas(
    context: ConsoleContext, caller: Caller, *, limit: int = 10_000
) -> list[EditDelta]:
    """Return the measured effects that a caller may see, newest first."""
    found = edit_engine(context).sessions.deltas(limit=limit)
    if caller.owner is None:
        return found
    sessions, _ = recent_sessions(context, caller, limit=_SESSIONS_SEARCHED)
    own = {each.id for each in sessions}
    return [delta for delta in found if delta.session in own]


def find_waiting(context: ConsoleContext, caller: Caller) -> list[tuple[EditSession, EditRecord]]:
    """Return the edits that wait for review, newest session first."""
    found, _ = recent_sessions(context, caller, limit=_SESSIONS_SEARCHED)
    return [(s, record) for s in found for record in s.records if record.reviewable]


def workspace_of(context: ConsoleContext, session: EditSession) -> str | None:
    """Return the name of a session's tree in the configuration, if it has one."""
    named = context.settings.workspaces.items()
    return next((name for name, path in named if str(path.resolve()) == session.root), None)


# -- acting --------------------------------------------------------------------------------------


def _begin(context: ConsoleContext, body: PlanSubmission, caller: Caller) -> EditSession:
    plan, engine = body.plan, edit_engine(context)
    if plan.session in _RESERVED:
        raise invalid(f"plan.session: {plan.session!r} is a reserved name; choose another")
    if plan.benchmark.suite is not None and body.suite is None:
        raise invalid("plan.benchmark.suite: cannot be a file here; send its content as `suite`")
    if body.config != ".":
        confined_paths.normalize(body.config)
    try:
        return engine.begin(
            plan,
            _workspace_root(context, body.workspace, engine.host),
            body.mode,
            suite=body.suite,
            config=body.config,
            inline=False,
            by=caller.name,
            owner=caller.owner,
        )
    except BadInput as error:
        if error.has("session_exists"):
            raise HttpError(409, "session_exists", str(error)) from None
        raise


def _check_author(context: ConsoleContext, caller: Caller, job_id: str) -> None:
    """Refuse another producer's job as the author: it would run again with a corrected prompt."""
    view = context.ledger.job(job_id) if JOB_ID.match(job_id) else None
    if view is None or not caller.owns(view.owner):
        raise invalid(f"plan.author: there is no job {job_id!r}")


def _workspace_root(context: ConsoleContext, name: str, host: str) -> Path:
    known: dict[str, Path] = context.settings.workspaces
    if name not in known:
        raise invalid(
            f"workspace: there is no {name!r} in [workspaces] of mulligan.toml"
            f"{name_hint(name, known)}; a path is not allowed here"
        )
    if not known[name].is_dir():
        raise invalid(f"workspace: {name} is not a folder on {host}, where this console runs")
    return known[name]


def _approve(
    engine: EditEngine, session_id: str, edit_id: str, *, by: str, note: str | None
) -> EditSession:
    """Approve an edit. A session that a command began and left goes to the edit worker. If the
    worker may not run its suite, raise BadInput with the command to use instead."""
    try:
        engine.check_approval(session_id)
    except BadInput as error:
        command = f"approve it with `mulligan edits review approve {session_id}/{edit_id}`"
        raise BadInput(f"the edit worker cannot measure it: {command}", *error.problems) from None
    session = engine.approve(session_id, edit_id, by=by, note=note)
    while session.inline and not engine.sessions.is_leased(session_id):
        found = engine.sessions.get(session_id)
        saved = engine.sessions.save(found, found.session.moved(inline=False))
        session = saved.session if saved is not None else found.session
    return session


@contextmanager
def _conflicts_as_409() -> Iterator[None]:
    """Answer 409 with the reason if a decision is not possible now."""
    try:
        yield
    except RetryLater as error:
        raise HttpError(409, "busy", f"{error}; try again") from None
    except EditConflict as error:
        text = "later changes conflict; nothing was rolled back"
        raise HttpError(409, "conflict", text, details=error.problems) from None
    except BadInput as error:
        first, *rest = error.problems
        raise HttpError(409, "refused", str(first), details=rest) from None
    except (TreeFault, OSError) as error:
        raise HttpError(409, "tree", str(error)) from None
