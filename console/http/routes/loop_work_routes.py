"""The work of loops in repositories: checkpoints, changes, rollbacks and the sessions of agents."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi import Path as InPath
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from mulligan.console.http.access import Caller, Reader, still_authenticated
from mulligan.console.http.broadcast import HEARTBEAT, Listener
from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import errors, invalid
from mulligan.console.http.models.loop_models import LoopDetail
from mulligan.console.http.models.work_models import (
    COMMIT_PATTERN,
    AgentSessionDocument,
    CheckpointList,
    DiffDocument,
    RollbackPreview,
    RollbackRequest,
    checkpoint_page,
    diff_document,
    rollback_preview,
    session_document,
    session_rows,
)
from mulligan.console.http.routes.event_routes import EVENTS, EventStream
from mulligan.console.http.routes.loop_routes import (
    Changes,
    LoopId,
    TestId,
    shown_loop,
    visible_loop,
)
from mulligan.policies.loops.checkpoints import Checkpoint
from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.tasks.loops.rollback import preview_rollback, read_checkpoints, request_rollback
from mulligan.tasks.loops.session_views import Event, SessionFollower, read_session
from mulligan.tasks.loops.view import no_such_item
from mulligan.tasks.loops.work_views import checkpoint_diff, item_diff
from mulligan.tasks.ports.errors import MulliganError

_LOG = logging.getLogger("mulligan.console")
#: Seconds between two looks at the end of a transcript.
POLL = 1.0
#: The most events that a stream begins with.
_MOST_BEFORE = 1000

CommitId = Annotated[
    str,
    InPath(pattern=COMMIT_PATTERN, description="A commit, or its beginning", examples=["615627e"]),
]
JobId = Annotated[str, InPath(min_length=1, max_length=200, description="A job of the item")]
AttemptNumber = Annotated[int, InPath(ge=1, le=100_000)]
AfterSeq = Annotated[
    int, Query(alias="after", ge=0, le=2**53, description="Only events after this one's `seq`")
]


def create_router(context: ConsoleContext) -> APIRouter:
    router = APIRouter(tags=["loops"])
    _add_checkpoints(router, context)
    _add_diffs(router, context)
    _add_sessions(router, context)
    return router


def _add_checkpoints(router: APIRouter, context: ConsoleContext) -> None:
    loops = context.services.loops

    @router.get("/api/loops/{loop_id}/checkpoints", responses=errors(404, 409))
    def checkpoints(
        loop_id: LoopId,
        caller: Reader,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Annotated[str | None, Query(pattern=COMMIT_PATTERN)] = None,
    ) -> CheckpointList:
        """List the commits on a loop's branch since it began, newest first."""
        snapshot = visible_loop(context, caller, loop_id).snapshot
        with context.repository_reads.place():
            found = read_checkpoints(loops, snapshot)
        start = _after(found, cursor)
        return checkpoint_page(found, start=start, limit=limit, texts=caller.texts)

    @router.post(
        "/api/loops/{loop_id}/rollback",
        status_code=202,
        responses={200: {"model": RollbackPreview, "description": "A dry run"}, **errors(404, 409)},
    )
    def roll_back(
        loop_id: LoopId,
        body: RollbackRequest,
        caller: Reader,
        changes: Changes,
        response: Response,
    ) -> LoopDetail | RollbackPreview:
        """Undo what was merged after a checkpoint, or one item and what depends on it.

        The branch gets one more commit, and the items run again. A worker does it, within seconds:
        `rollback` of the loop is null then, and its log says what was done.
        """
        snapshot = visible_loop(context, caller, loop_id).snapshot
        with context.repository_reads.place():
            if body.dry_run:
                response.status_code = 200
                plan = preview_rollback(loops, snapshot, to=body.to, item=body.test)
                return rollback_preview(plan, texts=caller.texts)
            request_rollback(loops, loop_id, changes, to=body.to, item=body.test)
        return shown_loop(context, caller, loop_id)


def _after(found: Sequence[Checkpoint], cursor: str | None) -> int:
    if cursor is None:
        return 0
    for index, each in enumerate(found):
        if each.commit == cursor:
            return index + 1
    raise invalid("cursor: is not the cursor of a page; leave it out to start at the newest")


def _add_diffs(router: APIRouter, context: ConsoleContext) -> None:
    loops = context.services.loops

    @router.get("/api/loops/{loop_id}/checkpoints/{commit}/diff", responses=errors(404, 409))
    def diff_of_checkpoint(loop_id: LoopId, commit: CommitId, caller: Reader) -> DiffDocument:
        """Show what a checkpoint changed."""
        snapshot = visible_loop(context, caller, loop_id).snapshot
        with context.repository_reads.place():
            found = checkpoint_diff(loops, snapshot, commit)
        return diff_document(found, texts=caller.texts)

    @router.get("/api/loops/{loop_id}/tests/{test_id}/diff", responses=errors(404, 409))
    def diff_of_test(loop_id: LoopId, test_id: TestId, caller: Reader) -> DiffDocument:
        """Show what an item changed on the branch, or else its newest saved work.

        Of a failed item, that is the work of its best attempt.
        """
        snapshot = visible_item(context, caller, loop_id, test_id)
        with context.repository_reads.place():
            found = item_diff(loops, snapshot, test_id)
        return diff_document(found, texts=caller.texts)


def visible_item(
    context: ConsoleContext, caller: Caller, loop_id: str, test_id: str
) -> LoopSnapshot:
    """Return the loop of an item, or raise 404 if either does not exist for the caller."""
    snapshot = visible_loop(context, caller, loop_id).snapshot
    if snapshot.spec(test_id) is None:
        raise no_such_item(loop_id, test_id)
    return snapshot


# -- sessions --------------------------------------------------------------------------------------

_SESSION = "/api/loops/{loop_id}/tests/{test_id}/transcripts/{job_id}/{attempt}"


def _add_sessions(router: APIRouter, context: ConsoleContext) -> None:
    loops = context.services.loops

    @router.get(_SESSION, responses=errors(404, 409))
    def session(
        loop_id: LoopId,
        test_id: TestId,
        job_id: JobId,
        attempt: AttemptNumber,
        caller: Reader,
        after: AfterSeq = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> AgentSessionDocument:
        """Show what the agent of an attempt did, also while it works."""
        snapshot = visible_item(context, caller, loop_id, test_id)
        with context.repository_reads.place():
            found = read_session(loops, snapshot, test_id, job_id, attempt, after=after)
        return session_document(found, test_id, after=after, limit=limit, texts=caller.texts)

    @router.get(
        f"{_SESSION}/stream",
        response_class=EventStream,
        responses={**EVENTS, **errors(404, 409)},
    )
    async def stream(
        request: Request,
        loop_id: LoopId,
        test_id: TestId,
        job_id: JobId,
        attempt: AttemptNumber,
        caller: Reader,
        after: AfterSeq = 0,
        last_event_id: Annotated[
            str | None, Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,15}$")
        ] = None,
    ) -> Response:
        """Stream what the agent of an attempt does, until it has ended.

        It begins with at most 1,000 events.
        """
        snapshot = await run_in_threadpool(visible_item, context, caller, loop_id, test_id)
        follower = SessionFollower(
            context=loops,
            snapshot=snapshot,
            item=test_id,
            job_id=job_id,
            attempt=attempt,
            after=int(last_event_id or after),
        )
        listener = context.broadcast.attend(caller=caller.bucket)
        try:
            before = await run_in_threadpool(_first, context, follower)
        except BaseException:
            context.broadcast.leave(listener)
            raise
        return EventStream(
            context.broadcast,
            listener,
            partial(still_authenticated, request, caller),
            chunks=_chunks(listener, follower, before, texts=caller.texts),
        )


def _first(context: ConsoleContext, follower: SessionFollower) -> list[Event]:
    with context.repository_reads.place():
        return follower.poll()[-_MOST_BEFORE:]


async def _chunks(
    listener: Listener, follower: SessionFollower, before: list[Event], *, texts: bool
) -> AsyncIterator[bytes]:
    yield b": mulligan\nretry: 2000\n\n"
    new, silent = before, 0.0
    while not listener.ended.is_set():
        if chunk := b"".join(_frames(new, texts=texts)):
            yield chunk
        if follower.has_ended:
            yield b"event: end\ndata: {}\n\n"
            return
        silent = 0.0 if chunk else silent + POLL
        if silent >= HEARTBEAT:
            silent = 0.0
            yield b": still here\n\n"
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL):
                await listener.ended.wait()
        try:
            new = await run_in_threadpool(follower.poll)
        except MulliganError as error:  # the listener comes back and goes on where it was
            _LOG.warning("cannot follow a session: %s", error)
            return


def _frames(events: Sequence[Event], *, texts: bool) -> list[bytes]:
    return [
        f"id: {row.seq}\nevent: session\ndata: {row.model_dump_json()}\n\n".encode()
        for row in session_rows(events, texts=texts)
    ]
