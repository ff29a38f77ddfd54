"""Loops over HTTP: the factory, the registry and the control of loops."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Response
from fastapi import Path as InPath
from starlette.requests import Request

from mulligan.console.http.access import Caller, Ops, Producer, Reader
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors
from mulligan.console.http.loop_body import LoopBody, LoopOptions, read_loop_body, storable_object
from mulligan.console.http.models import loop_models
from mulligan.console.http.models.loop_models import (
    CreatedLoop,
    LoopDetail,
    LoopList,
    LoopLog,
    LoopPlan,
    LoopSlots,
    SlotsChange,
    created,
    detail,
    note_rows,
    plan_document,
    row,
)
from mulligan.console.http.models.why_models import WhyRow, why_row
from mulligan.console.jobfiles.model_schema import inline_schema
from mulligan.policies.loops.commands import Verb
from mulligan.policies.loops.loop import LoopState
from mulligan.policies.loops.spec import ItemSpec, LoopConfig
from mulligan.tasks.loops import change
from mulligan.tasks.loops.registry import list_loops, preview_loop, read_log
from mulligan.tasks.loops.view import LoopView, view_loop, why, why_of
from mulligan.tasks.ports.errors import refuse
from mulligan.tasks.ports.ledger import Requester

LoopId = Annotated[
    str, InPath(min_length=1, max_length=200, description="A loop's name", examples=["nightly"])
]
TestId = Annotated[
    str, InPath(min_length=1, max_length=200, description="An item's id", examples=["CP-SPEC-005"])
]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=480,
        description="The same change with the same key is made once.",
    ),
]
_CONFIG = inline_schema(LoopConfig)
_OPTIONS = inline_schema(LoopOptions)["properties"]
_BODY = {
    "anyOf": [
        {
            "type": "object",
            "description": "A loop and its items, as in a loop file and its spec files",
            "required": ["loop", "items"],
            "properties": {
                "loop": _CONFIG,
                "items": {"type": "array", "minItems": 1, "items": inline_schema(ItemSpec)},
                **_OPTIONS,
            },
        },
        {
            "type": "object",
            "description": "A template of the console, and its parameters",
            "required": ["template"],
            "properties": {
                "template": {"type": "string"},
                "parameters": {"type": "object"},
                **_OPTIONS,
            },
        },
    ]
}
_EXAMPLE = {
    "loop": {"name": "nightly", "runner": "default"},
    "items": [{"id": "one", "prompt": "Say it as JSON.", "verifiers": ["json.object"]}],
}
_CHANGES = {
    "type": "object",
    "description": "Fields of the loop's configuration; null: the default value",
    "properties": {name: _CONFIG["properties"][name] for name in sorted(change.CHANGEABLE)},
}


async def _changes(request: Request, caller: Reader, key: Key = None) -> Requester:
    """Return who changes a loop, with the idempotency key and the digest of the request."""
    asked = f"{request.method} {request.url.path}\n".encode() + await request.body()
    return Requester(by=caller.name, key=key, digest=hashlib.sha256(asked).hexdigest()[:32])


Changes = Annotated[Requester, Depends(_changes)]
DespiteMove = Annotated[bool, Query(description="Also one that goes on in another installation")]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["loops"])
    _add_creating(router, context)
    _add_reading(router, context)
    _add_changing(router, context)
    _add_slots(router, context)
    return router


def _add_creating(router: APIRouter, context: ConsoleContext) -> None:
    @router.post(
        "/api/loops",
        status_code=201,
        responses={
            200: {"model": CreatedLoop | LoopPlan, "description": "It exists, or a dry run"},
            **errors(409),
        },
    )
    def create(
        body: Annotated[Any, Body(json_schema_extra=_BODY, examples=[_EXAMPLE])],
        caller: Producer,
        changes: Changes,
        response: Response,
    ) -> CreatedLoop | LoopPlan:
        """Create a loop from a document or a template. Its name is its idempotency key."""
        asked = read_loop_body(context, body)
        tenant = loop_tenant(caller, asked.options.tenant)
        if asked.options.dry_run:
            response.status_code = 200
            return _dry_run(context, asked)
        name = asked.document.loop.name
        loops = context.services.loops
        written = change.create_loop(
            loops, asked.document, tenant=tenant, by=caller.name, owner=caller.owner or ""
        )
        if asked.options.start:
            change.start_new(loops, name, changes)
        response.status_code = 201 if written.status == "written" else 200
        response.headers["Location"] = f"/api/loops/{name}"
        view = visible_loop(context, caller, name)
        seen = written.status == "seen"
        return created(view, why_of(loops, view), texts=caller.texts, seen=seen)


def loop_tenant(caller: Caller, requested: str | None) -> str:
    """Return whose loop or event a new one is: a bound caller's own."""
    if caller.tenant is not None and requested not in (None, caller.tenant):
        raise HttpError(403, "other_tenant", f"tenant: this token is for {caller.tenant}")
    return caller.tenant or requested or ""


def _dry_run(context: ConsoleContext, asked: LoopBody) -> LoopPlan:
    wrong = change.repository_problems(context.services.loops, asked.document.loop)
    refuse(problem.below("loop") for problem in wrong)
    return plan_document(preview_loop(context.services.loops, asked.document))


def _add_reading(router: APIRouter, context: ConsoleContext) -> None:
    loops = context.services.loops

    @router.get("/api/loops")
    def index(
        caller: Reader,
        state: LoopState | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> LoopList:
        """List loops, newest first."""
        found = list_loops(
            loops, tenant=caller.tenant, owner=caller.owner, state=state, limit=limit
        )
        return LoopList(loops=[row(each) for each in found])

    @router.get("/api/loops/{loop_id}", responses=errors(404))
    def show(loop_id: LoopId, caller: Reader) -> LoopDetail:
        """Show a loop: its state, who works on it, its budget and why it does not run."""
        return shown_loop(context, caller, loop_id)

    @router.get("/api/loops/{loop_id}/why", responses=errors(404))
    def explain(
        loop_id: LoopId,
        caller: Reader,
        test: Annotated[str | None, Query(max_length=200)] = None,
    ) -> WhyRow:
        """Say why a loop or one of its items does not run, and what changes it."""
        reason = why(loops, loop_id, test, tenant=caller.tenant, owner=caller.owner)
        return why_row(reason, texts=caller.texts)

    @router.get("/api/loops/{loop_id}/log", responses=errors(404))
    def log(
        loop_id: LoopId, caller: Reader, limit: Annotated[int, Query(ge=1, le=500)] = 100
    ) -> LoopLog:
        """List who changed a loop and why its items got their slots, newest first."""
        visible_loop(context, caller, loop_id)
        notes = read_log(loops, loop_id, limit=limit, tenant=caller.tenant, owner=caller.owner)
        return LoopLog(log=note_rows(notes))


_DOES: dict[Verb, str] = {
    "stop": "Stop a loop and end what runs. Its items are ready for the next start.",
    "pause": "Start nothing more. Running attempts finish.",
    "resume": "Go on with a paused loop.",
}


def _add_changing(router: APIRouter, context: ConsoleContext) -> None:
    loops = context.services.loops

    @router.patch("/api/loops/{loop_id}", responses=errors(404, 409))
    def configure(
        loop_id: LoopId,
        body: Annotated[Any, Body(json_schema_extra=_CHANGES, examples=[{"priority": 1}])],
        caller: Reader,
        changes: Changes,
    ) -> LoopDetail:
        """Change a loop's configuration. Raising a limit that was used up resumes the loop."""
        values = dict(storable_object(body))
        visible_loop(context, caller, loop_id)
        change.configure(loops, loop_id, values, changes)
        return shown_loop(context, caller, loop_id)

    def moved(
        name: str, verb: Verb, caller: Caller, changes: Requester, *, despite_move: bool = False
    ) -> LoopDetail:
        visible_loop(context, caller, name)
        change.move(loops, name, verb, changes, despite_move=despite_move)
        return shown_loop(context, caller, name)

    @router.post("/api/loops/{loop_id}/start", responses=errors(404, 409))
    def start(
        loop_id: LoopId, caller: Reader, changes: Changes, despite_move: DespiteMove = False
    ) -> LoopDetail:
        """Start a loop that was created or stopped."""
        return moved(loop_id, "start", caller, changes, despite_move=despite_move)

    def mover(verb: Verb) -> Callable[..., LoopDetail]:
        def move(loop_id: LoopId, caller: Reader, changes: Changes) -> LoopDetail:
            return moved(loop_id, verb, caller, changes)

        return move

    for verb in _DOES:
        router.post(
            f"/api/loops/{{loop_id}}/{verb}",
            name=verb,
            description=_DOES[verb],
            responses=errors(404, 409),
        )(mover(verb))

    @router.delete("/api/loops/{loop_id}", status_code=204, responses=errors(404, 409))
    def delete(loop_id: LoopId, caller: Reader, changes: Changes) -> None:
        """Forget a loop that is not running or paused. The jobs of its items are kept.

        Of a loop with a repository, the branch stays; the saved work and the transcripts of its
        attempts are removed at once, also what was never merged.
        """
        change.delete(loops, loop_id, changes, tenant=caller.tenant, owner=caller.owner)


def _add_slots(router: APIRouter, context: ConsoleContext) -> None:
    loops = context.services.loops

    @router.get("/api/loop-slots")
    def slots(caller: Ops) -> LoopSlots:
        """Return how many items of all loops may run at once."""
        _refuse_tenants(caller)
        return loop_models.slots(loops)

    @router.put("/api/loop-slots")
    def set_slots(body: SlotsChange, caller: Ops) -> LoopSlots:
        """Set how many items of all loops may run at once. Running ones finish."""
        _refuse_tenants(caller)
        change.set_slots(loops, body.slots)
        return loop_models.slots(loops)


def _refuse_tenants(caller: Caller) -> None:
    if caller.tenant is not None:
        raise HttpError(
            403, "tenants", "all tenants share the slots: this needs a token without a tenant"
        )


def visible_loop(context: ConsoleContext, caller: Caller, name: str) -> LoopView:
    """Return the loop, or raise 404 if it does not exist or the caller may not see it."""
    return view_loop(context.services.loops, name, tenant=caller.tenant, owner=caller.owner)


def shown_loop(context: ConsoleContext, caller: Caller, name: str) -> LoopDetail:
    """Return a loop as a caller sees it, or raise 404."""
    view = visible_loop(context, caller, name)
    return detail(view, why_of(context.services.loops, view), texts=caller.texts)
