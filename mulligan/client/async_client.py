"""The client for asyncio: the same methods as coroutines, in a script, a server or a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from mulligan.client.sync_client import Client, handles_of, timed_out

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from typing import Unpack

    from mulligan.client.backends import Backend
    from mulligan.client.build_jobs import Ask, JobOptions
    from mulligan.client.result import Handle, Result
    from mulligan.tasks.ports.ledger import Event

M = TypeVar("M")
T = TypeVar("T")
#: Round trips happen on these threads; none of them waits for a job.
_THREADS = 4


class AsyncClient:
    """See Client. Waiting for any number of jobs blocks neither the event loop nor a thread."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        workers: int = 4,
        **settings: Any,
    ) -> None:
        self._client = Client(url, token=token, workers=workers, **settings)
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def at(cls, backend: Backend) -> AsyncClient:
        """See Client.at."""
        client = cls()
        client._client = Client.at(backend)
        return client

    @overload
    async def submit(
        self, ask: Ask, *, returns: type[M], **options: Unpack[JobOptions]
    ) -> Handle[M]: ...

    @overload
    async def submit(
        self,
        ask: Ask,
        *,
        returns: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptions],
    ) -> Handle[Any]: ...

    async def submit(self, ask: Ask, *, returns: Any = None, **options: Any) -> Handle[Any]:
        """See Client.submit."""
        return await self._call(partial(self._client.submit, ask, returns=returns, **options))

    @overload
    async def submit_many(
        self,
        asks: Iterable[Ask],
        *,
        returns: type[M],
        progress: bool = True,
        **options: Unpack[JobOptions],
    ) -> list[Handle[M]]: ...

    @overload
    async def submit_many(
        self,
        asks: Iterable[Ask],
        *,
        returns: Mapping[str, Any] | None = None,
        progress: bool = True,
        **options: Unpack[JobOptions],
    ) -> list[Handle[Any]]: ...

    async def submit_many(
        self, asks: Iterable[Ask], *, returns: Any = None, progress: bool = True, **options: Any
    ) -> list[Handle[Any]]:
        """See Client.submit_many."""
        many = partial(self._client.submit_many, asks, returns=returns, progress=progress)
        return await self._call(partial(many, **options))

    @overload
    async def run(
        self,
        ask: Ask,
        *,
        returns: type[M],
        timeout: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Result[M]: ...

    @overload
    async def run(
        self,
        ask: Ask,
        *,
        returns: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Result[Any]: ...

    async def run(
        self, ask: Ask, *, returns: Any = None, timeout: float | None = None, **options: Any
    ) -> Result[Any]:
        """Submit and wait."""
        handle = await self.submit(ask, returns=returns, **options)
        return await self.wait(handle, timeout)

    @overload
    async def wait(
        self, jobs: Handle[T], timeout: float | None = None, *, progress: bool = True
    ) -> Result[T]: ...

    @overload
    async def wait(
        self, jobs: str, timeout: float | None = None, *, progress: bool = True
    ) -> Result[Any]: ...

    @overload
    async def wait(
        self, jobs: Iterable[Handle[T]], timeout: float | None = None, *, progress: bool = True
    ) -> list[Result[T]]: ...

    async def wait(self, jobs: Any, timeout: float | None = None, *, progress: bool = True) -> Any:
        """See Client.wait."""
        from mulligan.client.progress_bar import bar

        handles, single = handles_of(jobs)
        ended = await self._call(partial(self._client.completion_futures, handles))
        waiting = [asyncio.wrap_future(future) for future in ended]
        for each in waiting:  # results_of raises the errors; asyncio need not log them as well
            each.add_done_callback(lambda done: done.cancelled() or done.exception())
        with bar("waiting", len(handles), enabled=progress) as advance:
            for future in ended:
                future.add_done_callback(lambda _: advance(1))
            try:
                if waiting:
                    await asyncio.wait(waiting, timeout=timeout)
            finally:
                unfinished = [future.cancel() for future in waiting]
        if any(unfinished):
            raise timed_out(handles, unfinished, timeout)
        results = await self._call(partial(self._client.results_of, handles, ended))
        return results[0] if single else results

    async def watch(self, job: Handle[Any] | str) -> AsyncIterator[Event]:
        """See Client.watch; an async iterator."""
        events = await self._call(partial(self._client.events_of, job))
        end = object()
        while (event := await self._call(partial(next, events, end))) is not end:
            if event is not None:
                yield event

    async def cancel(self, job: Handle[Any] | str) -> str:
        """See Client.cancel."""
        return await self._call(partial(self._client.cancel, job))

    async def handle(self, job_id: str, *, returns: type[M] | None = None) -> Handle[M]:
        """See Client.handle."""
        return await self._call(partial(self._client.handle, job_id, returns=returns))

    async def close(self) -> None:
        """See Client.close."""
        await self._call(self._client.close)
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(self, call: Callable[[], T]) -> T:
        """Run on this client's threads: those of the event loop belong to the caller."""
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="mulligan-client")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
