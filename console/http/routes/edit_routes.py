"""Edits over HTTP: hand in a plan, see what became of it, decide what waits, take back.

Nothing is applied here but a rollback: the edit worker of the tree's host works on sessions.
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
    delta_document,
    document,
    edit_document,
    row,
)
from mulligan.policies.edits.session import EditRecord, EditSession
from mulligan.policies.suggestions import name_hint
from mulligan.tasks.edits.advance import RetryLater
from mulligan.tasks.ports.appliers import EditConflict
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.edits.sessions.engine import EditEngine, build_edit_engine
from mulligan.workers.edits.tree import confined_paths
from mulligan.workers.edits.tree.journal import TreeFault
from mulligan.workers.ledger.stores.tokens import Role

#: Sessions that are looked through for what waits, the newest first.
LOOKED_AT = 500
_NAME = re.compile(r"\w[\w.-]{0,99}")
#: Names that other addresses have.
_RESERVED = frozenset({"reviews", "history"})
_NO_NOTE = DecisionNote()


def unbound(*roles: Role) -> Callable[[Request], Caller]:
    """A dependency as ``needs``, for callers that are bound to no tenant: a tree is nobody's."""
    allowed = needs(*roles)

    def check(request: Request) -> Caller:
        caller = allowed(request)
        if caller.tenant is not None:
            raise HttpError(
                403, "forbidden", "edits belong to no tenant: use a token that is bound to none"
            )
        return caller

    return check


Reader = Annotated[Caller, Depends(unbound("producer", "ops"))]
Author = Annotated[Caller, Depends(unbound("producer"))]
Ops = Annotated[Caller, Depends(unbound("ops"))]
Limit = Annotated[int, Query(ge=1, le=LOOKED_AT)]
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
    def submit(body: PlanSubmission, caller: Author, response: Response) -> SessionDocument:
        """Hand in a plan for a workspace of this host; its edit worker goes to work on it."""
        session = _begun(context, body, by=caller.name)
        response.headers["Location"] = f"/api/edits/{session.id}"
        return document(session, workspace_of(context, session), texts=caller.texts)


def _add_reading(router: APIRouter, context: ConsoleContext) -> None:
    @router.get("/api/edits")
    def sessions(_: Reader, limit: Limit = 100) -> SessionList:
        """Sessions, the newest first."""
        found = edit_engine(context).sessions.recent(limit=limit)
        return SessionList(sessions=[row(each, workspace_of(context, each)) for each in found])

    @router.get("/api/edits/reviews")
    def reviews(caller: Reader, limit: Limit = 100) -> ReviewList:
        """Edits that wait for a person, those of the newest session first."""
        found = waiting(context)[:limit]
        return ReviewList(reviews=[edit_document(s, r, texts=caller.texts) for s, r in found])

    @router.get("/api/edits/history")
    def history(
        caller: Reader,
        session: Annotated[str | None, Query(max_length=200)] = None,
        cluster: Annotated[str | None, Query(max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> DeltaHistory:
        """Effects that were measured, the newest first; each edit once."""
        found = [
            delta_document(delta, texts=caller.texts)
            for delta in edit_engine(context).sessions.deltas(limit=10_000)
            if session in (None, "", delta.session)
            and (not cluster or cluster in delta.cluster_deltas)
        ]
        return DeltaHistory(deltas=found[:limit])

    @router.get("/api/edits/{session}", responses=errors(404))
    def session(session: SessionName, caller: Reader) -> SessionDocument:
        """A session: each edit with its outcome, its diff and its measured effect."""
        found = session_named(context, session)
        return document(found, workspace_of(context, found), texts=caller.texts)


def _add_deciding(router: APIRouter, context: ConsoleContext) -> None:
    @router.post("/api/edits/{session}/{edit}/approve", status_code=202, responses=errors(404, 409))
    def approve(
        session: SessionName, edit: EditName, caller: Ops, body: DecisionNote = _NO_NOTE
    ) -> EditDocument:
        """Let an edit be applied. It still has to pass the gate."""
        edit_named(session_named(context, session), edit)
        with deciding():
            done = approved(edit_engine(context), session, edit, by=caller.name, note=body.note)
        return edit_document(done, edit_named(done, edit), texts=caller.texts)

    @router.post("/api/edits/{session}/{edit}/reject", responses=errors(404, 409))
    def reject(
        session: SessionName, edit: EditName, body: DecisionReason, caller: Ops
    ) -> EditDocument:
        """Decide that an edit is not applied, and say why."""
        edit_named(session_named(context, session), edit)
        with deciding():
            done = edit_engine(context).reject(session, edit, by=caller.name, note=body.note)
        return edit_document(done, edit_named(done, edit), texts=caller.texts)


def _add_rollback(router: APIRouter, context: ConsoleContext) -> None:
    @router.post("/api/edits/{session}/rollback", responses=errors(404, 409))
    def roll_back(
        session: SessionName, caller: Ops, body: DecisionNote = _NO_NOTE
    ) -> RollbackResult:
        """Take all of a session back, byte for byte; what was left to do is not done."""
        session_named(context, session)
        return _rolled_back(context, caller, session, None, body)

    @router.post("/api/edits/{session}/{edit}/rollback", responses=errors(404, 409))
    def roll_back_edit(
        session: SessionName, edit: EditName, caller: Ops, body: DecisionNote = _NO_NOTE
    ) -> RollbackResult:
        """Take one edit back, byte for byte. Again is harmless."""
        edit_named(session_named(context, session), edit)
        return _rolled_back(context, caller, session, edit, body)


def _rolled_back(
    context: ConsoleContext, caller: Caller, session: str, edit: str | None, body: DecisionNote
) -> RollbackResult:
    with deciding():
        done, said = edit_engine(context).roll_back(session, edit, by=caller.name, note=body.note)
    found = document(done, workspace_of(context, done), texts=caller.texts)
    return RollbackResult(**dict(found), said=said)


# -- finding -------------------------------------------------------------------------------------


def edit_engine(context: ConsoleContext) -> EditEngine:
    """The engine of this host, for one request."""
    settings = context.settings
    return build_edit_engine(
        settings, context.ledger, context.services.intake, commands=settings.allow_inline
    )


def session_named(context: ConsoleContext, name: str) -> EditSession:
    """A session, or 404."""
    known = _NAME.fullmatch(name) and name not in _RESERVED
    found = edit_engine(context).sessions.find(name) if known else None
    if found is None:
        raise not_found(f"session {name}")
    return found.session


def edit_named(session: EditSession, name: str) -> EditRecord:
    """An edit of a session, or 404."""
    index = session.index(name)
    if index is None:
        raise not_found(f"edit {name} in session {session.id}")
    return session.records[index]


def waiting(context: ConsoleContext) -> list[tuple[EditSession, EditRecord]]:
    """Edits that wait for a person, those of the newest session first."""
    found = edit_engine(context).sessions.recent(limit=LOOKED_AT)
    return [(s, record) for s in found for record in s.records if record.reviewable]


def workspace_of(context: ConsoleContext, session: EditSession) -> str | None:
    """The name that configuration has for a session's tree."""
    named = context.settings.workspaces.items()
    return next((name for name, path in named if str(path.resolve()) == session.root), None)


# -- acting --------------------------------------------------------------------------------------


def _begun(context: ConsoleContext, body: PlanSubmission, *, by: str) -> EditSession:
    plan, engine = body.plan, edit_engine(context)
    if plan.session in _RESERVED:
        raise invalid(f"plan.session: {plan.session!r} means something else here; choose another")
    if plan.benchmark.suite is not None and body.suite is None:
        raise invalid("plan.benchmark.suite: no file can be named here; send it as `suite`")
    if body.config != ".":
        confined_paths.normalize(body.config)
    try:
        return engine.begin(
            plan,
            _root(context, body.workspace, engine.host),
            body.mode,
            suite=body.suite,
            config=body.config,
            inline=False,
            by=by,
        )
    except BadInput as error:
        if error.has("session_exists"):
            raise HttpError(409, "session_exists", str(error)) from None
        raise


def _root(context: ConsoleContext, name: str, host: str) -> Path:
    known: dict[str, Path] = context.settings.workspaces
    if name not in known:
        raise invalid(
            f"workspace: there is no {name!r} in [workspaces] of mulligan.toml"
            f"{name_hint(name, known)}; a path cannot be given here"
        )
    if not known[name].is_dir():
        raise invalid(f"workspace: {name} is not a folder on {host}, where this console runs")
    return known[name]


def approved(
    engine: EditEngine, session_id: str, edit_id: str, *, by: str, note: str | None
) -> EditSession:
    """Approve an edit. A session that a command began, and left, goes to the edit worker: if that
    may not run its suite, nothing is changed, and who approves is told what may."""
    try:
        engine.check_approval(session_id)
    except BadInput as error:
        there = f"approve it with `mulligan edits review approve {session_id}/{edit_id}`"
        raise BadInput(f"the edit worker cannot measure it: {there}", *error.problems) from None
    session = engine.approve(session_id, edit_id, by=by, note=note)
    while session.inline and not engine.sessions.is_leased(session_id):
        found = engine.sessions.get(session_id)
        saved = engine.sessions.save(found, found.session.moved(inline=False))
        session = saved.session if saved is not None else found.session
    return session


@contextmanager
def deciding() -> Iterator[None]:
    """What stands in the way of a decision is 409, with the reason."""
    try:
        yield
    except RetryLater as error:
        raise HttpError(409, "busy", f"{error}; try again") from None
    except EditConflict as error:
        text = "later changes are in the way; nothing was taken back"
        raise HttpError(409, "conflict", text, details=error.problems) from None
    except BadInput as error:
        first, *rest = error.problems
        raise HttpError(409, "refused", str(first), details=rest) from None
    except (TreeFault, OSError) as error:
        raise HttpError(409, "tree", str(error)) from None
