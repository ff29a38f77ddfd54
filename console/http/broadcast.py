"""The broadcast of events: one thread reads the streams, and every listener has a bounded queue.

Each event is encoded once. Events within a few hundredths of a second are sent as one chunk. A
listener that does not keep up is dropped; it reconnects and resumes where it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool

from mulligan.console.http.errors import HttpError, invalid
from mulligan.policies.figures.waiting_words import waiting_event_words
from mulligan.tasks.ports.errors import LedgerUnavailable
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored.job_ids import is_item
from mulligan.workers.ledger.stores.event_streams import Position, StoredEvent, in_order
from mulligan.workers.settings.model import Settings

_LOG = logging.getLogger("mulligan.console")
#: Seconds between comments that are sent to detect listeners that are gone.
HEARTBEAT = 15.0
#: Seconds during which events are collected into one chunk.
_COLLECT = 0.05
_PAGE = 1000
#: The most bytes that may wait for one listener.
QUEUE_CAP = 1_000_000
_OWNER_CACHE = 50_000
#: Who a job belongs to: its tenant, its loop if it is an item's, and its producer.
Owner = tuple[str | None, str | None, str | None]
_NOBODY: Owner = (None, None, None)


@dataclass(frozen=True)
class EventFilter:
    """The events that a listener receives; None means no restriction."""

    job: str | None = None
    #: A loop with its items and their jobs.
    loop: str | None = None
    tenant: str | None = None
    #: The producer whose jobs and loops they are about.
    owner: str | None = None
    #: Whether it may read details, which can quote a prompt or an answer.
    texts: bool = True

    @property
    def needs_owners(self) -> bool:
        """Whether it depends on who an event belongs to."""
        return any((self.tenant, self.loop, self.owner))


#: No job has this id.
NO_EVENTS = EventFilter(job="-")


@dataclass(frozen=True)
class StreamEvent:
    """One encoded event."""

    job: str
    loop: str | None
    tenant: str | None
    owner: str | None
    frame: bytes
    #: The frame without texts.
    redacted: bytes


def _chunk(events: Sequence[StreamEvent], chosen: EventFilter) -> bytes:
    return b"".join(
        event.frame if chosen.texts else event.redacted
        for event in events
        if chosen.job in (None, event.job)
        and chosen.loop in (None, event.loop)
        and chosen.tenant in (None, event.tenant)
        and chosen.owner in (None, event.owner)
    )


@dataclass(eq=False)
class Listener:
    """One open stream. Used only on the event loop's thread."""

    filter: EventFilter
    #: The position to resume after; None to start now.
    after: Position | None
    #: The position where the queue starts.
    joined: Position
    #: Whose it is: see Caller.bucket.
    caller: str = ""
    #: Set when the stream must end; ``slow`` tells whether the listener is the cause.
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    slow: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _pending: list[bytes] = field(default_factory=list)
    _size: int = 0

    def put(self, chunk: bytes) -> None:
        # A single large chunk is allowed: only one that did not take the last chunk is slow.
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
        """Return everything that waits, or a comment if nothing came for a while."""
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
        self._caller_cap = settings.listeners_per_caller
        self._listeners: set[Listener] = set()
        self._delivered: Position = ()
        self._owners: OrderedDict[str, Owner] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._starting = asyncio.Lock()
        self._closed = threading.Event()

    # -- on the event loop's thread ---------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self._listeners)

    async def listen(
        self, chosen: EventFilter, *, caller: str = "", after: Position | None = None
    ) -> Listener:
        """Add a listener, or raise 429 if there are too many, of all callers or of this one."""
        async with self._starting:
            if self._thread is None:
                self._delivered = await run_in_threadpool(self._streams.newest)
                self._start(asyncio.get_running_loop())
        return self._admit(Listener(chosen, after, self._delivered, caller))

    def attend(self, *, caller: str) -> Listener:
        """Add a listener that gets no events, but counts and ends as others do; or raise 429."""
        return self._admit(Listener(NO_EVENTS, None, (), caller))

    def _admit(self, listener: Listener) -> Listener:
        if len(self._listeners) >= self._cap:
            raise _too_many(f"there are already {self._cap} listeners (listeners_cap)")
        if sum(each.caller == listener.caller for each in self._listeners) >= self._caller_cap:
            cap = self._caller_cap
            raise _too_many(f"this caller has {cap} listeners already (listeners_per_caller)")
        self._listeners.add(listener)
        return listener

    async def chunks(self, listener: Listener) -> AsyncIterator[bytes]:
        """Yield what to send to a listener until it is ended."""
        # The position lets a listener resume that is cut off before its first event.
        start = listener.joined if listener.after is None else listener.after
        yield f": mulligan\nretry: 2000\nid: {','.join(start)}\n\n".encode()
        if listener.after is not None:
            pages = self._replay(listener.filter, listener.after, listener.joined)
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
        """End every stream, because the server stops."""
        for listener in list(self._listeners):
            listener.end()

    def _deliver(self, events: Sequence[StreamEvent], position: Position) -> None:
        self._delivered = position
        chunks: dict[EventFilter, bytes] = {}  # shared by listeners with the same filter
        for listener in list(self._listeners):
            if listener.filter not in chunks:
                chunks[listener.filter] = _chunk(events, listener.filter)
            chunk = chunks[listener.filter]
            if chunk and not listener.ended.is_set():
                listener.put(chunk)
                if listener.slow:
                    _LOG.warning("dropped an event listener that was too slow")

    # -- on the reader's thread -------------------------------------------------------------------

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = threading.Thread(
            target=self._read, args=(loop, self._delivered), name="events", daemon=True
        )
        self._thread.start()

    def _read(self, loop: asyncio.AbstractEventLoop, position: Position) -> None:
        while not self._closed.is_set():
            try:
                position = self._streams.extended(position)
                stored = self._streams.read(position, limit=_PAGE, block=1.0)
                filters = [each.filter for each in tuple(self._listeners)]
                events, position = self._encode(stored, position, filters)
            except LedgerUnavailable as error:
                _LOG.warning("cannot read events, retrying: %s", error)
                self._closed.wait(1.0)
                continue
            if not events:
                continue
            try:
                loop.call_soon_threadsafe(self._deliver, events, position)
            except RuntimeError:  # the loop is closed, because the server has stopped
                return
            self._closed.wait(_COLLECT)

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(5)

    # -- reading ----------------------------------------------------------------------------------

    def _replay(self, chosen: EventFilter, after: Position, upto: Position) -> Iterator[bytes]:
        """Yield what a listener missed, one chunk per page; a chunk may be empty."""
        position, upto = self._streams.extended(after), self._streams.extended(upto)
        while stored := self._streams.page(position, upto, limit=_PAGE):
            events, position = self._encode(stored, position, [chosen])
            yield _chunk(events, chosen)

    def _encode(
        self, stored: list[StoredEvent], position: Position, filters: Sequence[EventFilter]
    ) -> tuple[list[StreamEvent], Position]:
        """Encode events with what these filters ask for."""
        with_owners = any(each.needs_owners for each in filters)
        with_producers = any(each.owner for each in filters)
        events, after = [], position
        for event, after in in_order(stored, position):
            if (data := event.parse()) is None:
                continue
            tenant, loop, owner = self._owner(data, with_producers) if with_owners else _NOBODY
            head = f"id: {','.join(after)}\nevent: {data['type']}\n"
            text = event.data
            # Why an item was admitted names other loops, perhaps another tenant's.
            if data.pop("because", None) is not None:
                text = _encoded(data)
            if data.get("state") == "waiting":
                data["waits_for"] = waiting_event_words(data)
                text = _encoded(data)
            frame = _frame(head, text)
            redacted = frame if "detail" not in data else _frame(head, _without_detail(data))
            events.append(StreamEvent(data["job"], loop, tenant, owner, frame, redacted))
        return events, after

    def _owner(self, data: dict[str, Any], with_producer: bool) -> Owner:
        """Return whom an event belongs to, from the event or else from its job or loop."""
        job, loop = str(data["job"]), data.get("loop")
        if not job and with_producer and loop:
            return data.get("tenant"), loop, self._ledger.loop_owner(str(loop))
        if not job or ("tenant" in data and not is_item(job) and not with_producer):
            return data.get("tenant"), loop, None
        if job not in self._owners:
            self._owners[job] = self._ledger.job_owner(job)
            while len(self._owners) > _OWNER_CACHE:
                self._owners.popitem(last=False)
        return self._owners[job]

    def position(self, text: str) -> Position:
        """Parse a position to resume from, or raise 422."""
        try:
            return self._streams.position(text)
        except ValueError as error:
            text = "Last-Event-ID: not the id of an event; leave it out to start now"
            raise invalid(text) from error


def _too_many(message: str) -> HttpError:
    return HttpError(429, "too_many_listeners", message, headers={"Retry-After": "10"})


def _frame(head: str, data: str) -> bytes:
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")


def _without_detail(data: dict[str, Any]) -> str:
    return _encoded({name: value for name, value in data.items() if name != "detail"})


def _encoded(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"))
