"""Loops that move between installations, over HTTP."""

from __future__ import annotations

import asyncio
import io
import tempfile
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from mulligan.console.http.access import Caller, Ops, Producer
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import HttpError, errors
from mulligan.console.http.models.loop_models import LoopDetail
from mulligan.console.http.routes.loop_routes import (
    Changes,
    LoopId,
    loop_tenant,
    shown_loop,
    visible_loop,
)
from mulligan.tasks.loops import transfer
from mulligan.tasks.loops.transfer import Destination
from mulligan.tasks.ports.ledger import Requester
from mulligan.workers.loops.loop_archive import load_loop, save_loop

ARCHIVE = "application/gzip"
#: Bytes of an unpacked archive, for each byte that a request may have.
_UNPACKED = 10
_BODY = {
    "requestBody": {
        "required": True,
        "description": "What `GET /api/loops/{loop_id}/export` answers",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The loop's archive", "content": {ARCHIVE: {}}}
}


async def _body(request: Request) -> bytes:
    return await request.body()


Text = Annotated[str | None, Query(min_length=1, max_length=1000)]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["loops"])
    loops, settings = context.services.loops, context.services.settings
    # Each takes memory: a console reads one archive at a time.
    one_import = asyncio.Semaphore()

    @router.get(
        "/api/loops/{loop_id}/export",
        response_class=FileResponse,
        responses={**_FILE, **errors(404, 409)},
    )
    def export(loop_id: LoopId, caller: Ops) -> FileResponse:
        """Return a loop with its state as a file. Nothing of it may run, and it stays as it is."""
        _require_texts(caller)
        visible_loop(context, caller, loop_id)
        file = tempfile.NamedTemporaryFile(prefix="mulligan-export-")  # noqa: SIM115 - closed below
        try:
            save_loop(loops, loop_id, file, tenant=caller.tenant, owner=caller.owner)
            file.flush()
        except BaseException:
            file.close()
            raise
        return FileResponse(
            file.name,
            media_type=ARCHIVE,
            filename=f"{loop_id}.tar.gz",
            background=BackgroundTask(file.close),
        )

    @router.post(
        "/api/loops/import",
        status_code=201,
        openapi_extra=_BODY,
        responses={200: {"model": LoopDetail, "description": "It is here already"}, **errors(409)},
    )
    async def import_loop(
        body: Annotated[bytes, Depends(_body)],
        caller: Producer,
        changes: Changes,
        response: Response,
        repo: Text = None,
        name: Text = None,
        tenant: Text = None,
        start: bool = False,
    ) -> LoopDetail:
        """Go on with a loop of another installation. Importing it again changes nothing."""
        to = Destination(
            name=name, repo=repo, tenant=loop_tenant(caller, tenant), owner=caller.owner or ""
        )
        async with one_import:
            return await run_in_threadpool(bring, body, to, caller, changes, response, start=start)

    def bring(
        body: bytes,
        to: Destination,
        caller: Caller,
        changes: Requester,
        response: Response,
        *,
        start: bool,
    ) -> LoopDetail:
        made, written = load_loop(
            loops,
            io.BytesIO(body),
            to,
            changes,
            blob_cap=settings.workspace_cap,
            most=_UNPACKED * settings.request_cap,
            tenant=caller.tenant,
            owner=caller.owner,
        )
        visible_loop(context, caller, made)
        if start:
            transfer.go_on(loops, made, written, changes)
        response.status_code = 201 if written.status == "written" else 200
        response.headers["Location"] = f"/api/loops/{made}"
        return shown_loop(context, caller, made)

    return router


def _require_texts(caller: Caller) -> None:
    if not caller.texts:
        raise HttpError(
            403, "needs_texts", "an exported loop has prompts and answers: use a token with --texts"
        )
