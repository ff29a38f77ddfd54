"""Read the events of a pytest run while it runs, and check that they are consistent."""

from __future__ import annotations

import hmac
import io
import json
import math
import os
import secrets
import selectors
import socket
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from threading import Thread
from time import monotonic
from typing import Any

from mulligan.policies.value import Value

#: A test has four events, so these are enough for more than 20,000 tests.
MAX_BYTES = 16 << 20
MAX_EVENTS = 100_000
#: How long to read what is left in the pipe after the run has ended.
_DRAIN_SECONDS = 1.0
#: Characters of a signature, in front of each event.
_SIGNATURE = 32
_PROBLEM_CHARACTERS = 300
_PHASES = (["setup", "call", "teardown"], ["setup", "teardown"])


class RaisedError(Value):
    """An exception that the child reported."""

    exception: str
    bases: tuple[str, ...] = ()
    #: The module that could not be imported.
    name: str | None = None
    #: File in the workspace and function, and the line in the file.
    frame: tuple[str, str] | None = None
    line: int | None = None
    #: Every file of the workspace in its traceback.
    files: tuple[str, ...] = ()
    #: Whether the answer, or code of an unknown file, skipped a test with it.
    by_answer: bool = False
    assertion: str = ""
    message: str = ""
    #: The lines of the failing test, the failing one marked; empty if they are not shown.
    source: str = ""
    nodeid: str = ""

    def cleaned(self, clean: Callable[[str], str]) -> RaisedError:
        """Return it with clean texts."""
        texts = {name: clean(getattr(self, name)) for name in ("assertion", "message", "source")}
        return self.model_copy(update=texts)


class TestReport(Value):
    """One phase of one test."""

    nodeid: str
    when: str
    outcome: str
    xfail: bool = False
    raised: RaisedError | None = None


@dataclass(kw_only=True)
class Transcript:
    """The events of a run. If there are ``problems``, it cannot be trusted."""

    started: bool = False
    #: The tests; None until collection ended.
    collected: tuple[str, ...] | None = None
    guessed: bool = False
    #: The names of test files, as patterns.
    python_files: tuple[str, ...] = ()
    #: The test or the file that was started last.
    running: str | None = None
    reports: list[TestReport] = field(default_factory=list)
    collect_errors: list[RaisedError] = field(default_factory=list)
    #: Files that skip themselves, as by ``pytest.importorskip``.
    skipped_files: list[str] = field(default_factory=list)
    internal_error: RaisedError | None = None
    interrupted: RaisedError | None = None
    #: pytest's exit code; None if pytest did not finish.
    exit_code: int | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def unfinished(self) -> str | None:
        """The test or the file that was running when the events ended."""
        reports = self.phases().get(self.running or "", [])
        ended = bool(reports) and reports[-1].when == "teardown"
        return None if ended else self.running

    def phases(self) -> dict[str, list[TestReport]]:
        """Return the reports of each test, in the order of the tests."""
        tests: dict[str, list[TestReport]] = defaultdict(list)
        for report in self.reports:
            tests[report.nodeid].append(report)
        return tests


class EventReader:
    """A socket and a thread that reads it while the child runs.

    Each line must be signed, with its number, by the key that only the child's first hook has;
    anything else is a problem. The reader ends with the run, whoever still has the socket.
    """

    def __init__(self, clean: Callable[[str], str]) -> None:
        """``clean`` removes what readers should not see from texts of the answer."""
        self._clean = clean
        self.key = secrets.token_hex(32)
        # What was sent through a socket cannot be read again by its sender, unlike a pipe.
        self._receiver, self._sender = socket.socketpair()
        self.write_fd = self._sender.fileno()
        self._ended, self._end = os.pipe()
        self._data = bytearray()
        self._overflow = False
        self._thread = Thread(target=self._read, name="pytest-events", daemon=True)

    def __enter__(self) -> EventReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._end)
        self._thread.join()
        self._receiver.close()
        self._sender.close()
        os.close(self._ended)

    def _read(self) -> None:
        """Read until the run has ended and nothing is left, or until a writer does not stop."""
        give_up = math.inf
        with selectors.DefaultSelector() as selector:
            selector.register(self._receiver, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            while monotonic() < give_up:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._ended in ready:
                    give_up = min(give_up, monotonic() + _DRAIN_SECONDS)
                if self._receiver not in ready:
                    return
                self._keep(self._receiver.recv(65_536))

    def _keep(self, chunk: bytes) -> None:
        if len(self._data) + len(chunk) <= MAX_BYTES:
            self._data += chunk
        else:
            self._overflow = True

    def transcript(self) -> Transcript:
        """Return the events; call it when the child has ended and the reader is closed."""
        transcript = Transcript()
        if self._overflow:
            transcript.problems.append(f"more than {MAX_BYTES} bytes of events")
        for number, line in enumerate(io.BytesIO(self._data)):
            if not line.endswith(b"\n"):
                break  # the child was killed while it wrote
            if number == MAX_EVENTS:
                transcript.problems.append(f"more than {MAX_EVENTS} events")
                break
            event = _parse(line[:-1], self.key, number)
            if event is None:
                transcript.problems.append("an event that pytest did not send")
                break
            _record(transcript, event, self._clean)
        transcript.problems += _inconsistencies(transcript)
        return transcript


def signature(key: str, number: int, body: bytes) -> str:
    """Return the signature of an event, as the child computes it."""
    keyed = blake2b(key=bytes.fromhex(key), digest_size=_SIGNATURE // 2)
    keyed.update(b"%d %b" % (number, body))
    return keyed.hexdigest()


def _parse(line: bytes, key: str, number: int) -> dict[str, Any] | None:
    """Return an event, or None if the child's hook did not sign it with this number."""
    signed, body = line[:_SIGNATURE], line[_SIGNATURE + 1 :]
    if not hmac.compare_digest(signed, signature(key, number, body).encode()):
        return None
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _record(transcript: Transcript, event: dict[str, Any], clean: Callable[[str], str]) -> None:
    kind = event.pop("event", None)
    try:
        if transcript.exit_code is not None:
            transcript.problems.append("an event after the end")
        match kind:
            case "start":
                transcript.started = True
            case "running":
                transcript.running = str(event["nodeid"])
            case "collected":
                _record_collected(transcript, event)
            case "collect_skipped":
                transcript.skipped_files.append(str(event["nodeid"]))
            case "collect_error":
                transcript.collect_errors.append(RaisedError(**event).cleaned(clean))
            case "report":
                transcript.reports.append(_report(event, clean))
            case "internal_error":
                transcript.internal_error = RaisedError(**event).cleaned(clean)
            case "interrupted":
                transcript.interrupted = RaisedError(**event).cleaned(clean)
            case "tampered":
                transcript.problems.append(clean(str(event["what"]))[:_PROBLEM_CHARACTERS])
            case "finish":
                transcript.exit_code = int(event["exit_code"])
            case _:
                transcript.problems.append("an event of an unknown kind")
    except (KeyError, TypeError, ValueError, OverflowError):
        transcript.problems.append(f"a malformed event: {kind}")


def _record_collected(transcript: Transcript, event: dict[str, Any]) -> None:
    if transcript.collected is not None:
        transcript.problems.append("collected twice")
    transcript.running = None
    transcript.collected = tuple(str(nodeid) for nodeid in event["nodeids"])
    transcript.guessed = bool(event["guessed"])
    transcript.python_files = tuple(str(pattern) for pattern in event.get("python_files", ()))


def _report(event: dict[str, Any], clean: Callable[[str], str]) -> TestReport:
    fields = {name: event.pop(name) for name in ("nodeid", "when", "outcome", "xfail")}
    raised = RaisedError(**event).cleaned(clean) if event else None
    return TestReport(**fields, raised=raised)


def phases_of(reports: Sequence[TestReport]) -> list[str]:
    """Return the phases that a test went through. Each part of a test reports a call of its own."""
    return [phase for phase, _ in groupby(report.when for report in reports)]


def _inconsistencies(transcript: Transcript) -> list[str]:
    """Find reports of unknown tests, and phases that are missing or out of order."""
    known = set(transcript.collected or ())
    tests = transcript.phases()
    cut_short = bool(
        transcript.exit_code is None or transcript.internal_error or transcript.interrupted
    )
    last = next(reversed(tests), None) if cut_short else None
    problems = []
    for nodeid, reports in tests.items():
        phases = phases_of(reports)
        if nodeid not in known:
            problems.append(f"{nodeid} was reported but never collected")
        elif phases not in _PHASES and nodeid != last:
            problems.append(f"{nodeid} has the phases {phases}")
    return problems[:10]
