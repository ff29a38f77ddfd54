"""Transcripts: files of limited size, and the newest lines for those who watch."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from support.waiting import wait_for

from mulligan.policies.jobs.job import Usage
from mulligan.tasks.ports.sessions import Session, SessionEvent
from mulligan.workers.runners.sessions.transcript import (
    CHUNK_BYTES,
    MAX_BYTES,
    TranscriptWriter,
    read_transcript,
)


def said(text: str) -> SessionEvent:
    return SessionEvent(kind="text", text=text)


def filled(events: int, size: int, **options: Any) -> TranscriptWriter:
    transcript = TranscriptWriter(clock=lambda: 1.0, **options)
    for number in range(1, events + 1):
        transcript.emit(said(f"{number} ".ljust(size, "x")))
    return transcript


def numbers(transcript: TranscriptWriter) -> list[int]:
    lines = read_transcript(transcript.files())
    return [line["seq"] for line in lines if line["kind"] == "text"]


# -- lines -----------------------------------------------------------------------------------------


def test_a_line_has_every_field_of_an_event() -> None:
    times = iter([1700000000.12345, 1700000001.0])
    transcript: Session = TranscriptWriter(clock=lambda: next(times))
    assert isinstance(transcript, TranscriptWriter)
    transcript.emit(
        SessionEvent(
            kind="observation", name="Bash", text="grüße\n", ref="toolu_1", failed=True,
            data={"command": "make"}, usage=Usage(total_tokens=7),
        )
    )  # fmt: skip
    transcript.emit(said(""))
    first, second = read_transcript(transcript.files())
    assert first == {
        "seq": 1, "at": 1700000000.123, "kind": "observation", "name": "Bash", "text": "grüße\n",
        "ref": "toolu_1", "failed": True, "data": {"command": "make"},
        "usage": {"prompt_tokens": None, "completion_tokens": None, "total_tokens": 7},
    }  # fmt: skip
    assert list(second) == list(first)
    assert (second["seq"], second["usage"]) == (2, None)


@pytest.mark.parametrize(
    "event",
    [
        SessionEvent(kind="text", text="x" * 500_000),
        SessionEvent(kind="text", text="\x00" * 60_000),
        SessionEvent(kind="action", data={"a": "y" * 500_000}),
        SessionEvent(kind="action", data={"a": float("nan")}),
        SessionEvent(kind="action", data={"a": object()}),
        SessionEvent(kind="action", name="n" * 1000, ref="\ud800"),
    ],
    ids=["long", "escaped", "much data", "no number", "no JSON", "half a pair"],
)
def test_any_event_becomes_a_short_line(event: SessionEvent) -> None:
    transcript = TranscriptWriter(clock=lambda: 1.0)
    transcript.emit(event)
    (content,) = transcript.files().values()
    assert len(content) < 70_000
    assert [line["kind"] for line in read_transcript({"000001.jsonl": content})] == [event.kind]


def test_damaged_lines_are_passed_over() -> None:
    transcript = filled(3, 10)
    (content,) = transcript.files().values()
    one, two, three = content.splitlines(keepends=True)
    files = {
        "000002.jsonl": three[:-5],
        "000001.jsonl": b"\xff\xfe\n[]\n1\n\n" + one + two[: len(two) // 2] + b"\n" + two,
        "notes.txt": one,
        "1.jsonl": one,
    }
    assert [line["seq"] for line in read_transcript(files)] == [1, 2]


# -- files -----------------------------------------------------------------------------------------


def test_files_have_a_limited_size_and_names_in_order() -> None:
    transcript = filled(100, 10_000)
    files = transcript.files()
    assert list(files) == [f"{number:06}.jsonl" for number in range(1, 5)]
    assert all(len(content) <= CHUNK_BYTES for content in files.values())
    assert numbers(transcript) == list(range(1, 101))


def test_what_has_not_changed_is_the_same_object() -> None:
    transcript = filled(100, 10_000)
    before, again = transcript.files(), transcript.files()
    assert [before[name] is again[name] for name in before] == [True] * 4
    transcript.emit(said("one more"))
    after = transcript.files()
    assert [before[name] is after[name] for name in before] == [True, True, True, False]


def test_an_empty_transcript_has_no_files() -> None:
    assert TranscriptWriter(clock=lambda: 1.0).files() == {}


def test_a_large_transcript_keeps_its_beginning_and_its_newest_events() -> None:
    limit = 200_000
    transcript = filled(1000, 1000, max_bytes=limit, chunk_bytes=10_000)
    files = transcript.files()
    assert sum(map(len, files.values())) <= limit
    kept = numbers(transcript)
    lines = list(read_transcript(files))
    (note,) = (line for line in lines if line["kind"] == "note")
    # Then the first half is kept, and at least the newest quarter.
    first = [number for index, number in enumerate(kept, 1) if number == index]
    newest = kept[len(first) :]
    assert 0.4 * limit < 1100 * len(first) <= 0.5 * limit + 1100
    assert 0.2 * limit < 1100 * len(newest)
    assert newest == list(range(newest[0], 1001))
    # And the note between them counts what is left out.
    assert note["data"]["left_out"] == 1000 - len(kept) > 0
    assert note["text"].startswith(f"{1000 - len(kept)} events are left out here")
    assert [line["seq"] for line in lines] == sorted({*kept, note["seq"]})
    assert note["seq"] == first[-1] + 1


def test_the_limit_holds_at_every_moment() -> None:
    transcript = TranscriptWriter(clock=lambda: 1.0, max_bytes=100_000, chunk_bytes=8_000)
    before: dict[str, bytes] = {}
    for number in range(2000):
        transcript.emit(said("x" * (number % 700)))
        if number % 50 == 0:
            files = transcript.files()
            assert sum(map(len, files.values())) <= 100_000
            # What is in the first half never goes again.
            assert all(files[name].startswith(before[name]) for name in list(before)[:4])
            before = files


def test_the_usual_limits() -> None:
    """An attempt that prints 30 MB."""
    transcript = filled(1900, 16_000)
    total = sum(map(len, transcript.files().values()))
    assert 0.74 * MAX_BYTES < total <= MAX_BYTES


def test_threads_may_write_and_read_at_once() -> None:
    transcript = TranscriptWriter(clock=lambda: 1.0, chunk_bytes=10_000)

    def write() -> None:
        for _ in range(300):
            transcript.emit(said("x" * 50))

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        seen = numbers(transcript)
        assert seen == list(range(1, len(seen) + 1))
    assert numbers(transcript) == list(range(1, 1201))


# -- those who watch -------------------------------------------------------------------------------


def test_new_lines_are_passed_on_once_a_second_and_at_the_end() -> None:
    calls: list[tuple[float, list[str]]] = []

    def tail(lines: Sequence[str]) -> None:
        calls.append((time.monotonic(), list(lines)))

    with TranscriptWriter(clock=lambda: 1.0, tail=tail) as transcript:
        for number in range(3):
            transcript.emit(said(str(number)))
        wait_for(lambda: calls, "the first lines")
        transcript.emit(said("3"))
        transcript.emit(said("4"))
    texts = [[json.loads(line)["text"] for line in lines] for _, lines in calls]
    assert texts == [["0", "1", "2"], ["3", "4"]]


def test_those_who_watch_never_hold_up_the_agent() -> None:
    """Given a store of live lines that does not answer."""
    release = threading.Event()

    def tail(_: Sequence[str]) -> None:
        release.wait(60)

    transcript = TranscriptWriter(clock=lambda: 1.0, tail=tail)
    started = time.monotonic()
    for number in range(5000):
        transcript.emit(said(str(number)))
    assert time.monotonic() - started < 20
    transcript.close()
    assert time.monotonic() - started < 30
    assert len(numbers(transcript)) == 5000
    release.set()


def test_an_error_of_those_who_watch_stays_with_them(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def tail(lines: Sequence[str]) -> None:
        calls.append(len(lines))
        raise ConnectionError("away")

    transcript = TranscriptWriter(clock=lambda: 1.0, tail=tail)
    transcript.emit(said("one"))
    wait_for(lambda: calls, "the first call")
    transcript.emit(said("two"))
    transcript.close()
    transcript.close()
    transcript.emit(said("after the end"))
    assert calls == [1, 1]
    assert caplog.text.count("not passed on to those who watch") == 1
    assert len(numbers(transcript)) == 3
