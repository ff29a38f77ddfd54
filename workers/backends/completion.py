"""Waiting for jobs from many threads, with one thread that follows the events for all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from mulligan.policies.jobs.job import TERMINAL
from mulligan.tasks.ports.errors import BadInput, MulliganError
from mulligan.workers.backends.follow import EventFeed, JobReader, ends_job, read_feed

#: Jobs to check after a time without events; the next ones follow after the next such time.
_BATCH = 100


class CompletionWatcher:
    """Futures that complete when jobs end. The thread runs while there are open futures."""

    def __init__(self, reader: JobReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Future[None]]] = {}
        self._thread: threading.Thread | None = None

    def futures(self, job_ids: Sequence[str]) -> list[Future[None]]:
        """Return one future per job; that of an unknown job raises BadInput."""
        futures: list[Future[None]] = [Future() for _ in job_ids]
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._follow,
                    args=(self._reader.feed(),),
                    name="mulligan-completion",
                    daemon=True,
                )
                self._thread.start()
            for job_id, future in zip(job_ids, futures, strict=True):
                self._waiting.setdefault(job_id, []).append(future)
        try:
            self._check(list(dict.fromkeys(job_ids)))  # jobs that ended before the feed opened
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return futures

    def close(self) -> None:
        """Fail every open future."""
        self._fail_all(MulliganError("the client was closed while it waited for jobs"))

    def _follow(self, feed: EventFeed) -> None:
        readings = read_feed(feed.take, follows=lambda job_id: job_id in self._waiting)
        try:
            while self._is_needed():
                reading = next(readings)
                for event in reading.events:
                    if ends_job(event):
                        self._complete(event.job_id)
                if reading.lost:
                    self._check(list(self._waiting))
                elif reading.silent:
                    self._check(self._next_batch())
        except Exception as error:  # the futures report it
            self._fail_all(error)
        finally:
            feed.close()

    def _is_needed(self) -> bool:
        """Drop cancelled futures. Return whether any are open; if not, the thread ends."""
        with self._lock:
            open_ = {
                job_id: [future for future in futures if not future.cancelled()]
                for job_id, futures in self._waiting.items()
            }
            self._waiting = {job_id: futures for job_id, futures in open_.items() if futures}
            if not self._waiting:
                self._thread = None
            return bool(self._waiting)

    def _next_batch(self) -> list[str]:
        """Return the next jobs to check, and move them to the end of the line."""
        with self._lock:
            batch = list(self._waiting)[:_BATCH]
            for job_id in batch:
                self._waiting[job_id] = self._waiting.pop(job_id)
        return batch

    def _check(self, job_ids: Sequence[str]) -> None:
        states = self._reader.states(job_ids)
        for job_id in job_ids:
            if job_id not in states:
                self._complete(job_id, error=BadInput(f"there is no job {job_id!r}"))
            elif states[job_id] in TERMINAL:
                self._complete(job_id)

    def _complete(self, job_id: str, *, error: Exception | None = None) -> None:
        with self._lock:
            futures = self._waiting.pop(job_id, [])
        for future in futures:
            if future.set_running_or_notify_cancel():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            waiting, self._thread = list(self._waiting), None
        for job_id in waiting:
            self._complete(job_id, error=error)
