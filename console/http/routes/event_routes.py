"""Server-sent events: what happens, as it happens, and again from where a listener was."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mulligan.console.http.access import Caller, needs, still_in
from mulligan.console.http.broadcast import Broadcast, EventFilter, Listener
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import errors
from mulligan.console.http.routes.job_routes import visible_job
from mulligan.workers.ledger.stores.event_streams import Position

#: How often it is asked whether a listener may still listen: so late ends a revoked token's stream.
RECHECK = 5.0
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events, each with id, event (job, attempt or cycle) and data, until closed",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
After = Annotated[
    str | None,
    Query(max_length=5000, description="Resume after this event's id; 0 is the oldest on record"),
]
Tenant = Annotated[
    str | None,
    Query(max_length=200, description="Only this tenant's; a tenant's token hears its own alone"),
]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=5000)]
AnyCaller = Annotated[Caller, Depends(needs("producer", "ops"))]


class EventStream(Response):
    """A stream that ends when its listener goes, is dropped, or may listen no longer."""

    media_type = "text/event-stream"

    def __init__(
        self,
        broadcast: Broadcast,
        listener: Listener,
        allowed: Callable[[], bool],
        status_code: int = 200,
    ) -> None:
        super().__init__(
            status_code=status_code,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._broadcast = broadcast
        self._listener = listener
        self._allowed = allowed

    async def __call__(
        self,
        scope: Scope,  # noqa: ARG002 - ASGI's signature
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            async with anyio.create_task_group() as tasks:

                async def watch(how: Any) -> None:
                    await how()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch, lambda: _gone(receive))
                tasks.start_soon(watch, self._dropped)
                tasks.start_soon(self._recheck)
                await self._send(send)
                tasks.cancel_scope.cancel()
        finally:
            self._broadcast.leave(self._listener)

    async def _dropped(self) -> None:
        await self._listener.ended.wait()
        if not self._listener.slow:
            await anyio.sleep_forever()  # a stream that just ends is finished in good order

    async def _recheck(self) -> None:
        """End the stream of a token that was revoked or expired, or of a closed session."""
        while await run_in_threadpool(self._allowed):
            await anyio.sleep(RECHECK)
        self._listener.end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._broadcast.chunks(self._listener):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["events"])

    @router.get("/api/events", response_class=EventStream, responses=_STREAM)
    async def events(
        request: Request,
        caller: AnyCaller,
        after: After = None,
        tenant: Tenant = None,
        last_event_id: LastEventId = None,
    ) -> Response:
        """Everything that happens from now on, or after an event."""
        start = last_event_id or after
        position = context.broadcast.position(start) if start else None
        whose = caller.tenant if caller.tenant is not None else tenant or None
        wants = EventFilter(tenant=whose, texts=caller.texts)
        return await _stream(context, wants, position, partial(still_in, request, caller))

    @router.get(
        "/api/jobs/{job_id}/events",
        response_class=EventStream,
        responses={**_STREAM, **errors(404)},
    )
    async def job_events(
        request: Request,
        job_id: str,
        caller: AnyCaller,
        after: After = None,
        last_event_id: LastEventId = None,
    ) -> Response:
        """What happened to one job since it was accepted, and what happens to it."""
        view = await run_in_threadpool(visible_job, context, caller, job_id)
        start = last_event_id or after or _just_before(view.created_at)
        wants = EventFilter(job=view.id, texts=caller.texts)
        position = context.broadcast.position(start)
        return await _stream(context, wants, position, partial(still_in, request, caller))

    return router


#: So much may the clock of a job be ahead of the one that its events are numbered by.
_SKEW_MS = 1000


def _just_before(moment: float) -> str:
    """A place before a job's first event; what came before it is other jobs' and is not told."""
    return f"{max(0, int(moment * 1000) - _SKEW_MS)}-0"


async def _stream(
    context: ConsoleContext, wants: EventFilter, after: Position | None, allowed: Callable[[], bool]
) -> Response:
    return EventStream(
        context.broadcast, await context.broadcast.listen(wants, after=after), allowed
    )
