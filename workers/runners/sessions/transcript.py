"""The transcript of one attempt: the events of its session as JSON lines, in files of limited size.

It lives in memory, and whoever saves the attempt asks for its files every now and then. Of a
transcript that becomes too large, the beginning and the newest events are kept, and a note says
how many are missing between them.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from mulligan.policies.jobs.job import joined_surrogates
from mulligan.policies.value import Json
from mulligan.tasks.ports.sessions import Session, SessionEvent
from mulligan.workers.runners.sessions.bounded_json import (
    parse_object,
    shorten,
)

log = logging.getLogger(__name__)

#: In bytes: one file, and all files of an attempt.
CHUNK_BYTES = 256 << 10
MAX_BYTES = 20 << 20
#: Room for the note.
_NOTE_BYTES = 1 << 10
#: Longer lines are written again with less in them.
_LONGEST_LINE = 64 << 10
_SHORT_TEXT = 2 << 10
#: Seconds between two calls of ``tail``, and the most to wait for the last one.
_TAIL_SECONDS = 1.0
_LAST_TAIL_SECONDS = 2.0
#: Lines for a ``tail`` that does not keep up; older ones are dropped.
_MOST_LINES = 2000
_FILE_NAME = re.compile(r"[0-9]{6}\.jsonl")

#: Gets new lines for people who watch. It may take long and may fail: it has a thread of its own.
Tail = Callable[[Sequence[str]], None]


class TranscriptWriter(Session):
    """Collects events. All methods may be called from any thread."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        tail: Tail | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """``clock``: the wall clock. ``tail`` gets new lines once a second, and at the end."""
        self._clock = clock
        self._chunks = _Chunks(min(chunk_bytes, max_bytes // 8), max_bytes)
        self._tail = None if tail is None else _TailThread(tail)
        self._seq = 0
        self._lock = threading.Lock()

    def emit(self, event: SessionEvent) -> None:
        with self._lock:
            self._seq += 1
            line = _line(event, self._seq, self._clock())
            self._chunks.add(line.encode(), self._seq)
        if self._tail is not None:
            self._tail.add(line)

    def files(self) -> dict[str, bytes]:
        """Return the files so far: name → content. What has not changed is the same object."""
        with self._lock:
            return self._chunks.files(self._note)

    def close(self) -> None:
        """Pass the last lines on to ``tail``. Events that come later are still kept."""
        if self._tail is not None:
            self._tail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, left_out: int, seq: int) -> bytes:
        text = f"{left_out} events are left out here: the transcript became too large"
        event = SessionEvent(kind="note", text=text, data={"left_out": left_out})
        return _line(event, seq, self._clock()).encode()


class _Chunks:
    """Lines in files of limited size.

    At the limit, the files between the first half and the newest quarter are replaced by one with
    a note. That happens again and again, so that the note counts what was left out ever.
    """

    def __init__(self, chunk_bytes: int, max_bytes: int) -> None:
        self._chunk_bytes, self._max_bytes = chunk_bytes, max_bytes
        self._closed: dict[int, _Chunk] = {}
        self._size = 0
        self._open = _Chunk(1)
        self._gap: _Gap | None = None

    def add(self, line: bytes, seq: int) -> None:
        if self._open.lines and self._open.size + len(line) + 1 > self._chunk_bytes:
            self._close_chunk()
        self._open.add(line, seq)
        self._size += len(line) + 1

    def files(self, note: Callable[[int, int], bytes]) -> dict[str, bytes]:
        found = {number: chunk.content for number, chunk in self._closed.items()}
        if self._open.lines:
            found[self._open.number] = self._open.content
        if self._gap is not None:
            found[self._gap.number] = self._gap.content(note)
        return {f"{number:06}.jsonl": found[number] for number in sorted(found)}

    def _close_chunk(self) -> None:
        self._closed[self._open.number] = self._open.closed()
        self._open = _Chunk(self._open.number + 1)
        if self._size > self._max_bytes - self._chunk_bytes - _NOTE_BYTES:
            self._leave_out()

    def _leave_out(self) -> None:
        first, newest, gap = 0, self._size, self._gap
        for number, chunk in list(self._closed.items()):
            first += chunk.size
            newest -= chunk.size
            is_first = (gap is None or number < gap.number) and first <= self._max_bytes // 2
            if is_first or newest + chunk.size <= self._max_bytes // 4:
                continue
            gap = gap or _Gap(number, chunk.seq)
            gap.left_out += chunk.lines
            self._size -= chunk.size
            del self._closed[number]
        self._gap = gap


class _Chunk:
    """One file."""

    def __init__(self, number: int) -> None:
        self.number = number
        #: The number of its first event.
        self.seq = 0
        self.lines = 0
        self._bytes = bytearray()
        self._content: bytes | None = b""

    @property
    def size(self) -> int:
        return len(self._bytes) if self._content is None else len(self._content)

    @property
    def content(self) -> bytes:
        if self._content is None:
            self._content = bytes(self._bytes)
        return self._content

    def add(self, line: bytes, seq: int) -> None:
        self.seq = self.seq or seq
        self.lines += 1
        self._bytes += line + b"\n"
        self._content = None

    def closed(self) -> _Chunk:
        """Return this file without the room for more lines."""
        _ = self.content
        self._bytes = bytearray()
        return self


class _Gap:
    """The place of files that were left out."""

    def __init__(self, number: int, seq: int) -> None:
        self.number, self.seq = number, seq
        self.left_out = 0
        self._noted: tuple[int, bytes] = (0, b"")

    def content(self, note: Callable[[int, int], bytes]) -> bytes:
        if self._noted[0] != self.left_out:
            self._noted = self.left_out, note(self.left_out, self.seq) + b"\n"
        return self._noted[1]


class _TailThread:
    """Passes lines on from a thread of its own, so that nobody waits for it."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._has_failed = False

    def add(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)
            if self._thread is None and not self._closed.is_set():
                self._thread = self._start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_LAST_TAIL_SECONDS)

    def _start(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._run, name="session tail", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread is left; the next line tries again
            return None
        return thread

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.wait(_TAIL_SECONDS)
            with self._lock:
                lines = list(self._lines)
                self._lines.clear()
            if lines:
                self._pass_on(lines)

    def _pass_on(self, lines: Sequence[str]) -> None:
        try:
            self._tail(lines)
        except Exception:
            if not self._has_failed:
                log.exception("The events of a session are not passed on to those who watch it.")
            self._has_failed = True


def read_transcript(files: Mapping[str, bytes]) -> Iterator[dict[str, Json]]:
    """Yield the lines of a transcript in their order, except for damaged ones."""
    for name in sorted(filter(_FILE_NAME.fullmatch, files)):
        yield from read_lines(files[name].decode("utf-8", "replace").split("\n"))


def read_lines(lines: Iterable[str]) -> Iterator[dict[str, Json]]:
    """Yield the events of some lines, except for damaged ones."""
    for line in lines:
        found = parse_object(line)
        if found is not None and isinstance(found.get("seq"), int):
            yield found


def _line(event: SessionEvent, seq: int, at: float) -> str:
    try:
        line = joined_surrogates(_written(event, seq, at, event.text, event.data))
    except (TypeError, ValueError, RecursionError):  # of data that is no JSON
        line = None
    if line is None or len(line.encode()) > _LONGEST_LINE:
        text = shorten(event.text, _SHORT_TEXT)
        line = joined_surrogates(_written(event, seq, at, text, {"left_out": True}))
    return line


def _written(event: SessionEvent, seq: int, at: float, text: str, data: Mapping[str, Json]) -> str:
    fields: dict[str, Any] = {
        "seq": seq,
        "at": round(at, 3),
        "kind": event.kind,
        "name": event.name[:200],
        "text": text,
        "ref": event.ref[:200],
        "failed": event.failed,
        "data": data,
        "usage": None if event.usage is None else event.usage.model_dump(),
    }
    return json.dumps(fields, ensure_ascii=False, allow_nan=False)
