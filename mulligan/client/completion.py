"""When jobs end: one thread listens for everybody who waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.ports.errors import BadInput, MulliganError
from mulligan.tasks.ports.ledger import Event, LedgerReader

#: How long one look at what happens waits for news.
BLOCK = 0.25
#: After so much silence the jobs themselves are asked: an event may have been trimmed away.
SILENCE = 5.0
#: So many of them at a time.
_ASKED = 100
#: So much may the clock of a job be ahead of the one that its events are numbered by.
_SKEW_MS = 1000


class EventFeed(Protocol):
    """What happens to all jobs from the moment it was opened."""

    def take(self) -> Sequence[Event] | None:
        """What came within a moment. None: some of it may have been missed."""

    def close(self) -> None: ...


class JobReader(Protocol):
    """Who knows about jobs."""

    def feed(self) -> EventFeed:
        """A feed that is open when this returns."""

    def states(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """What state each job is in; one that there is not is left out."""


class LedgerFeed:
    """The events of a ledger."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._after = f"{int(ledger.now() * 1000) - 1}-0"

    def take(self) -> Sequence[Event]:
        found = list(self._ledger.events(after=self._after, block=BLOCK))
        if found:
            self._after = found[-1].id
        return found

    def close(self) -> None:
        """Nothing is open between two looks."""


class CompletionWatcher:
    """Futures that are done when jobs end. The thread lives as long as somebody waits."""

    def __init__(self, source: JobReader) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Future[None]]] = {}
        self._thread: threading.Thread | None = None

    def of(self, job_ids: Sequence[str]) -> list[Future[None]]:
        """One future per job. BadInput in it for a job that there is not."""
        futures: list[Future[None]] = [Future() for _ in job_ids]
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._listen,
                    args=(self._source.feed(),),
                    name="mulligan-ends",
                    daemon=True,
                )
                self._thread.start()
            for job_id, future in zip(job_ids, futures, strict=True):
                self._waiting.setdefault(job_id, []).append(future)
        try:
            self._look(list(dict.fromkeys(job_ids)))  # those that ended before we listened
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return futures

    def close(self) -> None:
        """Nobody is left waiting for what can no longer be heard."""
        self._give_up(MulliganError("the client was closed while jobs were waited for"))

    def _listen(self, feed: EventFeed) -> None:
        heard = time.monotonic()
        try:
            while self._anybody():
                news = feed.take()
                for event in news or ():
                    if ends(event):
                        self._settle(event.job_id)
                if news is None:
                    self._look(list(self._waiting))
                elif not news and time.monotonic() - heard > SILENCE:
                    self._look(self._next_asked())
                elif not news:
                    continue
                heard = time.monotonic()
        except Exception as error:  # whoever waits is told, and nobody else could be
            self._give_up(error)
        finally:
            feed.close()

    def _anybody(self) -> bool:
        """Whether anybody still waits; if not, the thread ends here."""
        with self._lock:
            alive = {
                job_id: [future for future in futures if not future.cancelled()]
                for job_id, futures in self._waiting.items()
            }
            self._waiting = {job_id: futures for job_id, futures in alive.items() if futures}
            if not self._waiting:
                self._thread = None
            return bool(self._waiting)

    def _next_asked(self) -> list[str]:
        """Those whose turn it is; they are put last."""
        with self._lock:
            turn = list(self._waiting)[:_ASKED]
            for job_id in turn:
                self._waiting[job_id] = self._waiting.pop(job_id)
        return turn

    def _look(self, job_ids: Sequence[str]) -> None:
        states = self._source.states(job_ids)
        for job_id in job_ids:
            if job_id not in states:
                self._settle(job_id, error=BadInput(f"there is no job {job_id}"))
            elif states[job_id] in TERMINAL:
                self._settle(job_id)

    def _settle(self, job_id: str, *, error: Exception | None = None) -> None:
        with self._lock:
            futures = self._waiting.pop(job_id, [])
        for future in futures:
            if future.set_running_or_notify_cancel():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            waiting, self._thread = list(self._waiting), None
        for job_id in waiting:
            self._settle(job_id, error=error)


def events_of(ledger: LedgerReader, job_id: str) -> Iterator[Event | None]:
    """A job's events from its beginning to its end; None now and then while nothing happens."""
    view = ledger.job(job_id)
    if view is None:
        raise BadInput(f"there is no job {job_id}")
    after = before(view.created_at)
    ended = view.state in TERMINAL
    while True:
        for event in ledger.events(after=after, block=None if ended else BLOCK):
            after = event.id
            if event.job_id == job_id:
                yield event
                if ends(event):
                    return
        if ended:
            return  # its last events were trimmed away
        yield None
        view = ledger.job(job_id)
        ended = view is None or view.state in TERMINAL


def before(created_at: float) -> str:
    """A place in the events before a job's first."""
    return f"{max(0, int(created_at * 1000) - _SKEW_MS)}-0"


def ends(event: Event) -> bool:
    """Whether a job has ended by this."""
    return event.type == "job" and event.data.get("state") in TERMINAL
