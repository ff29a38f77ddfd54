"""Server-sent events: live, or from the position where a listener stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mulligan.console.http.access import Caller, Reader, still_authenticated
from mulligan.console.http.broadcast import Broadcast, EventFilter, Listener
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import errors
from mulligan.console.http.routes.job_routes import visible_job
from mulligan.workers.ledger.stores.event_streams import Position

#: Seconds between checks whether a listener may still listen. A revoked token's stream ends then.
RECHECK = 5.0
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events, each with id, event (such as attempt) and data, until closed",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
After = Annotated[
    str | None,
    Query(max_length=5000, description="Resume after this event's id; 0 is before the oldest"),
]
Tenant = Annotated[
    str | None,
    Query(max_length=200, description="Only this tenant's; a tenant's token gets only its own"),
]
#: Whether the listener may still listen.
Allowed = Callable[[], bool]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=5000)]


class EventStream(Response):
    """A stream that ends when its listener leaves, is dropped, or may no longer listen."""

    media_type = "text/event-stream"

    def __init__(
        self,
        broadcast: Broadcast,
        listener: Listener,
        allowed: Allowed,
        status_code: int = 200,
        *,
        chunks: AsyncIterator[bytes] | None = None,
    ) -> None:
        """``chunks``: what to send instead of events."""
        super().__init__(
            status_code=status_code,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        del self.headers["content-length"]
        self._broadcast = broadcast
        self._listener = listener
        self._allowed = allowed
        self._chunks = broadcast.chunks(listener) if chunks is None else chunks

    async def __call__(
        self,
        scope: Scope,  # noqa: ARG002 - ASGI's signature
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            async with anyio.create_task_group() as tasks:

                async def cancel_after(wait: Callable[[], Awaitable[None]]) -> None:
                    await wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(cancel_after, partial(_disconnected, receive))
                tasks.start_soon(cancel_after, self._dropped)
                tasks.start_soon(self._recheck)
                await self._send(send)
                tasks.cancel_scope.cancel()
        finally:
            self._broadcast.leave(self._listener)

    async def _dropped(self) -> None:
        await self._listener.ended.wait()
        if not self._listener.slow:
            await anyio.sleep_forever()  # the stream ends normally

    async def _recheck(self) -> None:
        """End the stream when its token is revoked or expires, or its session is closed."""
        while await run_in_threadpool(self._allowed):
            await anyio.sleep(RECHECK)
        self._listener.end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["events"])

    @router.get("/api/events", response_class=EventStream, responses=EVENTS)
    async def events(
        request: Request,
        caller: Reader,
        after: After = None,
        tenant: Tenant = None,
        last_event_id: LastEventId = None,
    ) -> Response:
        """Stream all events from now on, or after a given event."""
        start = last_event_id or after
        position = context.broadcast.position(start) if start else None
        chosen = EventFilter(
            tenant=caller.tenant_filter(tenant), owner=caller.owner, texts=caller.texts
        )
        return await open_stream(context, request, caller, chosen, position)

    @router.get(
        "/api/jobs/{job_id}/events",
        response_class=EventStream,
        responses={**EVENTS, **errors(404)},
    )
    async def job_events(
        request: Request,
        job_id: str,
        caller: Reader,
        after: After = None,
        last_event_id: LastEventId = None,
    ) -> Response:
        """Stream the events of one job since it was accepted, and its future ones."""
        view = await run_in_threadpool(visible_job, context, caller, job_id)
        start = last_event_id or after or just_before(view.created_at)
        chosen = EventFilter(job=view.id, texts=caller.texts)
        position = context.broadcast.position(start)
        return await open_stream(context, request, caller, chosen, position)

    return router


#: How far a job's clock may be ahead of the clock that numbers its events.
_SKEW_MS = 1000


def just_before(moment: float) -> str:
    """Return a position before a job's first event. Earlier events belong to other jobs."""
    return str(max(0, int(moment * 1000) - _SKEW_MS))


async def open_stream(
    context: ConsoleContext,
    request: Request,
    caller: Caller,
    chosen: EventFilter,
    after: Position | None,
) -> Response:
    listener = await context.broadcast.listen(chosen, caller=caller.bucket, after=after)
    allowed = partial(still_authenticated, request, caller)
    return EventStream(context.broadcast, listener, allowed)
