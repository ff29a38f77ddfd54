"""Events for many listeners: one thread reads the streams, every listener has a bounded queue.

An event is encoded once. What happened within a few hundredths of a second goes out in one chunk.
A listener that does not keep up is dropped: it comes back and resumes where it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool

from mulligan.console.http.errors import HttpError, invalid
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.event_streams import Position, StoredEvent, event_order
from mulligan.workers.settings.model import Settings

_LOG = logging.getLogger("mulligan.console")
#: Nothing is as good as a comment now and then to find out that a listener has gone.
HEARTBEAT = 15.0
#: How long changes are gathered before they go out together.
_GATHER = 0.05
_PAGE = 1000
#: Bytes that may wait for one listener.
QUEUE_CAP = 1_000_000
_TENANTS_KEPT = 50_000
_ID = re.compile(r"^\d{1,15}(-\d{1,15})?$")


@dataclass(frozen=True)
class EventFilter:
    """What a listener is told of; None is everything."""

    job: str | None = None
    tenant: str | None = None
    #: Whether it may read what can quote a prompt or an answer.
    texts: bool = True


@dataclass(frozen=True)
class StreamEvent:
    """One event, ready for the wire."""

    job: str
    tenant: str | None
    frame: bytes
    #: For those who may not read texts.
    plain: bytes

    def is_for(self, wants: EventFilter) -> bool:
        return wants.job in (None, self.job) and wants.tenant in (None, self.tenant)


def _chunk(changes: Sequence[StreamEvent], wants: EventFilter) -> bytes:
    return b"".join(
        change.frame if wants.texts else change.plain for change in changes if change.is_for(wants)
    )


@dataclass(eq=False)
class Listener:
    """One open stream. Lives on the event loop's thread alone."""

    wants: EventFilter
    #: Resume after this; None: from now on.
    after: Position | None
    #: What comes through the queue begins here.
    joined: Position
    #: Set when the stream has to end; ``slow`` says why.
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    slow: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _pending: list[bytes] = field(default_factory=list)
    _size: int = 0

    def put(self, chunk: bytes) -> None:
        # One large chunk is nobody's fault: slow is who has not taken the one before.
        if self._pending and self._size + len(chunk) > QUEUE_CAP:
            self.slow = True
            self._pending.clear()
            self.end()
            return
        self._pending.append(chunk)
        self._size += len(chunk)
        self._wake.set()

    def end(self) -> None:
        self.ended.set()
        self._wake.set()

    async def take(self) -> bytes:
        """All that is waiting; a comment if there was nothing for a while."""
        try:
            async with asyncio.timeout(HEARTBEAT):
                await self._wake.wait()
        except TimeoutError:
            return b": still here\n\n"
        self._wake.clear()
        chunk = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        return chunk


class Broadcast:
    """The events of every partition, for every listener of this process."""

    def __init__(self, ledger: RedisLedger, settings: Settings) -> None:
        self._ledger = ledger
        self._streams = ledger.event_streams
        self._cap = settings.listeners_cap
        self._listeners: set[Listener] = set()
        self._delivered: Position = ()
        self._tenants: OrderedDict[str, str | None] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._starting = asyncio.Lock()
        self._closed = threading.Event()

    # -- on the event loop's thread ---------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self._listeners)

    async def listen(self, wants: EventFilter, *, after: Position | None = None) -> Listener:
        """A new listener, or 503 when there are too many."""
        async with self._starting:
            if self._thread is None:
                self._delivered = await run_in_threadpool(self._streams.newest)
                self._start(asyncio.get_running_loop())
        if len(self._listeners) >= self._cap:
            raise HttpError(
                503,
                "too_many_listeners",
                f"{self._cap} listen already (listeners_cap)",
                headers={"Retry-After": "10"},
            )
        listener = Listener(wants, after, self._delivered)
        self._listeners.add(listener)
        return listener

    async def chunks(self, listener: Listener) -> AsyncIterator[bytes]:
        """What goes out to a listener, until it is ended."""
        # The place, so that who is cut off before the first event can resume too.
        place = listener.joined if listener.after is None else listener.after
        yield f": mulligan\nretry: 2000\nid: {','.join(place)}\n\n".encode()
        if listener.after is not None:
            pages = self._replay(listener.wants, listener.after, listener.joined)
            while (chunk := await run_in_threadpool(next, pages, None)) is not None:
                if listener.ended.is_set():
                    return
                if chunk:
                    yield chunk
        while not listener.ended.is_set():
            if chunk := await listener.take():
                yield chunk

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def end_all(self) -> None:
        """End every stream: the server stops."""
        for listener in list(self._listeners):
            listener.end()

    def _deliver(self, changes: Sequence[StreamEvent], position: Position) -> None:
        self._delivered = position
        chunks: dict[EventFilter, bytes] = {}  # those who want the same share it
        for listener in list(self._listeners):
            if listener.wants not in chunks:
                chunks[listener.wants] = _chunk(changes, listener.wants)
            chunk = chunks[listener.wants]
            if chunk and not listener.ended.is_set():
                listener.put(chunk)
                if listener.slow:
                    _LOG.warning("a listener to events was too slow and is dropped")

    # -- on the reader's thread -------------------------------------------------------------------

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = threading.Thread(
            target=self._read_on, args=(loop, self._delivered), name="events", daemon=True
        )
        self._thread.start()

    def _read_on(self, loop: asyncio.AbstractEventLoop, position: Position) -> None:
        while not self._closed.is_set():
            try:
                found = self._streams.wait(position, seconds=1.0, limit=_PAGE)
                changes, position = self._encode(found, position, self._asks_for_tenants())
            except LedgerUnavailable as error:
                _LOG.warning("events pause: %s", error)
                self._closed.wait(1.0)
                continue
            if not changes:
                continue
            try:
                loop.call_soon_threadsafe(self._deliver, changes, position)
            except RuntimeError:  # the loop is closed: so is the server
                return
            self._closed.wait(_GATHER)

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(5)

    # -- reading ----------------------------------------------------------------------------------

    def _replay(self, wants: EventFilter, after: Position, upto: Position) -> Iterator[bytes]:
        """What a listener missed, page by page; a page may have nothing for it."""
        position = after
        while True:
            found = self._streams.page(position, upto, limit=_PAGE)
            if not found:
                return
            changes, position = self._encode(found, position, wants.tenant is not None)
            yield _chunk(changes, wants)

    def _encode(
        self, found: list[StoredEvent], position: Position, with_tenants: bool
    ) -> tuple[list[StreamEvent], Position]:
        places = list(position)
        changes = []
        for event in sorted(found, key=lambda event: event.order):
            places[event.partition] = event.id
            data = json.loads(event.data)
            tenant = self._tenant(data) if with_tenants else None
            head = f"id: {','.join(places)}\nevent: {data['type']}\n"
            frame = _frame(head, event.data)
            plain = frame if "detail" not in data else _frame(head, _without_detail(data))
            changes.append(StreamEvent(data["job"], tenant, frame, plain))
        return changes, tuple(places)

    def _asks_for_tenants(self) -> bool:
        return any(listener.wants.tenant for listener in tuple(self._listeners))

    def _tenant(self, data: dict[str, Any]) -> str | None:
        """The tenant of an event. If the event does not name it, its job does."""
        job = str(data["job"])
        if "tenant" in data:
            found: str | None = data["tenant"]
        elif job in self._tenants:
            return self._tenants[job]
        else:
            found = self._ledger.job_tenant(job)
        self._tenants[job] = found
        while len(self._tenants) > _TENANTS_KEPT:
            self._tenants.popitem(last=False)
        return found

    def position(self, text: str) -> Position:
        """A place to resume from: an id as it came, or one id for all partitions; else 422."""
        parts = text.split(",")
        if not all(_ID.match(part) for part in parts):
            raise invalid("Last-Event-ID: is not the id of an event; leave it out to start now")
        parts = [part if "-" in part else f"{part}-0" for part in parts]
        if len(parts) == self._streams.count:
            return tuple(parts)
        # The number of partitions was changed: rather too much than too little.
        return (min(parts, key=event_order),) * self._streams.count


def _frame(head: str, data: str) -> bytes:
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")


def _without_detail(data: dict[str, Any]) -> str:
    kept = {name: value for name, value in data.items() if name != "detail"}
    return json.dumps(kept, separators=(",", ":"))
