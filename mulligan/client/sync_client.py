"""The client: submit prompts, get verified values back.

``Client()`` uses the configured broker; without one it runs the jobs on threads of this process,
with a durable ledger in the home directory. ``Client("http://…")`` uses a console. Creating a
client contacts nothing and imports almost nothing: the first job loads the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from concurrent.futures import Future
    from typing import Unpack

    from mulligan.client.backends import Backend
    from mulligan.client.build_jobs import Ask, JobOptions, RequestDefaults
    from mulligan.client.result import Handle, Result
    from mulligan.policies.jobs.job import Job
    from mulligan.tasks.ports.ledger import Accepted, Event
    from mulligan.workers.backends.completion import CompletionWatcher

M = TypeVar("M")
T = TypeVar("T")


class Client:
    """Submits jobs and waits for them. Safe to share between threads.

    ``url`` is a broker's, as Celery spells it, or a console's (``http://host:8700``); without it,
    settings decide. ``token`` is for a console; without it, the variable MULLIGAN_TOKEN.
    ``workers`` is the number of threads if this process does the work. Further keywords are
    settings by name.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        workers: int = 4,
        **settings: Any,
    ) -> None:
        if workers < 1:
            from mulligan.tasks.ports.errors import BadInput

            raise BadInput.at(
                "workers", "must be 1 or more: without a broker, these threads run the jobs"
            )
        self._console = url if url and url.startswith(("http://", "https://")) else None
        if self._console is None:
            if token is not None:
                from mulligan.tasks.ports.errors import BadInput

                raise BadInput.at("token", "needs the console's URL as well (http://host:8700)")
            settings = settings if url is None else {"broker_url": url, **settings}
        self._token = token
        self._settings = settings
        self._slots = workers
        self._lock = threading.Lock()
        self._open: tuple[Backend, CompletionWatcher] | None = None
        self._closed = False

    @classmethod
    def at(cls, backend: Backend) -> Client:
        """Return a client of an open backend."""
        from mulligan.workers.backends.completion import CompletionWatcher

        client = cls()
        client._open = (backend, CompletionWatcher(backend))
        return client

    # -- submitting -----------------------------------------------------------------------------

    @overload
    def submit(self, ask: Ask, *, returns: type[M], **options: Unpack[JobOptions]) -> Handle[M]: ...

    @overload
    def submit(
        self,
        ask: Ask,
        *,
        returns: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptions],
    ) -> Handle[Any]: ...

    def submit(self, ask: Ask, *, returns: Any = None, **options: Any) -> Handle[Any]:
        """Submit one job: a prompt, a Job or its fields. It is in the ledger when this returns.

        ``returns`` is a pydantic model or another type that pydantic reads, such as list[Person]
        (its schema is the contract, and its validators are verifiers), or a JSON Schema. BadInput
        names every problem, and then nothing is stored.
        """
        from mulligan.client.build_jobs import draft_jobs, well_formed

        drafts = draft_jobs([(ask, options)], self._request_defaults(returns))
        return self._submit(well_formed(drafts, self._backend.check), returns)[0]

    @overload
    def submit_many(
        self,
        asks: Iterable[Ask],
        *,
        returns: type[M],
        progress: bool = True,
        **options: Unpack[JobOptions],
    ) -> list[Handle[M]]: ...

    @overload
    def submit_many(
        self,
        asks: Iterable[Ask],
        *,
        returns: Mapping[str, Any] | None = None,
        progress: bool = True,
        **options: Unpack[JobOptions],
    ) -> list[Handle[Any]]: ...

    def submit_many(
        self, asks: Iterable[Ask], *, returns: Any = None, progress: bool = True, **options: Any
    ) -> list[Handle[Any]]:
        """Submit many jobs. If one has a problem, store none.

        An ``idempotency_key`` is the prefix of each job's key: ``key-0``, ``key-1``… A key that
        another job uses is a problem, too. If a problem shows only after some jobs are stored,
        NotAllStored has their handles: another program took a key at the same moment, or, over
        HTTP, a later request failed (each has up to a thousand jobs).
        """
        from mulligan.client.build_jobs import draft_jobs, well_formed
        from mulligan.client.progress_bar import bar
        from mulligan.client.result import NotAllStored
        from mulligan.tasks.ports.errors import BadInput

        if isinstance(asks, str | Mapping):
            raise BadInput.at("asks", "must be a list; use submit() for one job")
        key = options.pop("idempotency_key", None)
        own = ({"idempotency_key": f"{key}-{i}"} if key else {} for i in count())
        defaults = self._request_defaults(returns)
        try:
            drafts = draft_jobs([(ask, {**options, **next(own)}) for ask in asks], defaults)
            jobs = well_formed(drafts, self._backend.check)
            with bar("submitting", len(jobs), enabled=progress) as advance:
                return self._submit(jobs, returns, advance)
        except NotAllStored as error:
            problems = [problem.of_job(problem.index or 0) for problem in error.problems]
            raise NotAllStored(problems, error.handles) from None
        except BadInput as error:
            raise BadInput(*(each.of_job(each.index or 0) for each in error.problems)) from None

    @overload
    def run(
        self,
        ask: Ask,
        *,
        returns: type[M],
        timeout: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Result[M]: ...

    @overload
    def run(
        self,
        ask: Ask,
        *,
        returns: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Result[Any]: ...

    def run(
        self, ask: Ask, *, returns: Any = None, timeout: float | None = None, **options: Any
    ) -> Result[Any]:
        """Submit and wait."""
        return self.wait(self.submit(ask, returns=returns, **options), timeout=timeout)

    # -- waiting --------------------------------------------------------------------------------

    @overload
    def wait(
        self, jobs: Handle[T], timeout: float | None = None, *, progress: bool = True
    ) -> Result[T]: ...

    @overload
    def wait(
        self, jobs: str, timeout: float | None = None, *, progress: bool = True
    ) -> Result[Any]: ...

    @overload
    def wait(
        self, jobs: Iterable[Handle[T]], timeout: float | None = None, *, progress: bool = True
    ) -> list[Result[T]]: ...

    def wait(self, jobs: Any, timeout: float | None = None, *, progress: bool = True) -> Any:
        """Return the result of a handle or a job id, or the results of many in their order.

        Raise WaitTimeout after ``timeout`` seconds; the jobs continue.
        """
        from concurrent import futures

        from mulligan.client.progress_bar import bar

        handles, single = handles_of(jobs)
        waited = self.completion_futures(handles)
        with bar("waiting", len(handles), enabled=progress) as advance:
            for future in waited:
                future.add_done_callback(lambda _: advance(1))
            try:
                futures.wait(waited, timeout)
            finally:
                unfinished = [future.cancel() for future in waited]
        if any(unfinished):
            raise timed_out(handles, unfinished, timeout)
        results = self.results_of(handles, waited)
        return results[0] if single else results

    def watch(self, job: Handle[Any] | str) -> Iterator[Event]:
        """Yield the events of a job as they happen, from its beginning to its end."""
        return (event for event in self.events_of(job) if event is not None)

    def cancel(self, job: Handle[Any] | str) -> str:
        """Cancel a job. Return its state, which is not ``cancelled`` if it had already ended."""
        from mulligan.tasks.ports.errors import BadInput

        (handle,), _ = handles_of(job)
        state = self._backend.cancel(handle.id)
        if state == "gone":
            raise BadInput(f"there is no job {handle.id!r}")
        return state

    def handle(self, job_id: str, *, returns: type[M] | None = None) -> Handle[M]:
        """Return a handle for a job that another process submitted."""
        from mulligan.client.result import Handle

        if returns is not None:
            self._contract(returns)
        return Handle(id=job_id, returns=returns)

    def close(self) -> None:
        """Stop what this client started. Unfinished jobs stay in the ledger. Safe to repeat."""
        with self._lock:
            self._closed = True
            opened, self._open = self._open, None
        if opened is not None:
            backend, watcher = opened
            watcher.close()
            backend.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------

    def _opened(self) -> tuple[Backend, CompletionWatcher]:
        from mulligan.workers.backends.completion import CompletionWatcher

        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            if self._open is None:
                backend = self._open_backend()
                self._open = (backend, CompletionWatcher(backend))
            return self._open

    def _open_backend(self) -> Backend:
        if self._console is not None:
            from mulligan.client.http_backend import open_console

            return open_console(self._console, self._token, self._settings)
        from mulligan.client.backends import open_backend

        return open_backend(self._settings, slots=self._slots)

    @property
    def _backend(self) -> Backend:
        return self._opened()[0]

    def _request_defaults(self, returns: Any) -> RequestDefaults:
        from mulligan.client.build_jobs import RequestDefaults, title_of

        contract = self._contract(returns) if returns is not None else None
        return RequestDefaults(
            contract=contract, title=title_of(returns), runner=self._backend.runner
        )

    def _contract(self, returns: Any) -> dict[str, Any]:
        from mulligan.client.build_jobs import check_returns

        check_returns(returns)
        return self._backend.contract(returns)

    def _submit(
        self,
        jobs: Sequence[Job],
        returns: Any,
        stored: Callable[[int], None] = lambda _count: None,
    ) -> list[Handle[Any]]:
        from mulligan.client.result import Handle, NotAllStored

        def handle(place: int, answer: Accepted) -> Handle[Any]:
            label, seen = jobs[place].label, answer.status == "seen"
            return Handle(id=answer.id, label=label, seen=seen, returns=returns)

        backend = self._backend
        taken = backend.submit(jobs, stored=stored)
        backend.start()
        handles = {place: handle(place, answer) for place, answer in taken.accepted.items()}
        if taken.problems:
            raise NotAllStored(taken.problems, handles)
        return list(handles.values())

    # The async client uses these, too.

    def completion_futures(self, handles: Sequence[Handle[Any]]) -> list[Future[None]]:
        """Return futures that are done when the jobs have ended."""
        backend, watcher = self._opened()
        backend.start()
        return watcher.futures([handle.id for handle in handles])

    def results_of(
        self, handles: Sequence[Handle[Any]], ended: Sequence[Future[None]]
    ) -> list[Result[Any]]:
        """Return the results of jobs that have ended, or raise the error that ended the wait."""
        from mulligan.client.result import Result
        from mulligan.tasks.ports.errors import BadInput

        results = []
        for handle, future in zip(handles, ended, strict=True):
            future.result()
            view = self._backend.job(handle.id)
            if view is None:
                raise BadInput(f"there is no job {handle.id!r}")
            results.append(Result(view=view, returns=handle.returns))
        return results

    def events_of(self, job: Handle[Any] | str) -> Iterator[Event | None]:
        """Like ``watch``, with None from time to time while nothing happens."""
        from mulligan.workers.backends.follow import job_events

        (handle,), _ = handles_of(job)
        backend = self._backend
        backend.start()
        return job_events(backend, handle.id)


def handles_of(jobs: Any) -> tuple[list[Handle[Any]], bool]:
    """Return handles for one or many handles or ids, and whether it was one."""
    from mulligan.client.result import Handle

    single = isinstance(jobs, str | Handle)
    many = [jobs] if single else jobs
    return [Handle(id=job) if isinstance(job, str) else job for job in many], single


def timed_out(
    handles: Sequence[Handle[Any]], unfinished: Sequence[bool], timeout: float | None
) -> Exception:
    """Return the WaitTimeout for the jobs that have not ended."""
    from mulligan.client.result import WaitTimeout

    late = [handle.id for handle, open_ in zip(handles, unfinished, strict=True) if open_]
    return WaitTimeout(late, timeout or 0.0)
