"""One worker process with 300 slots, each waiting for a slow model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.fleet import CONTROL, running_fleet

from mulligan.workers.celery.broker.queues import Pool
from mulligan.workers.ledger.connection.connections import SHARED

# The server is a stub on loopback, but the runner cannot know that.
pytestmark = pytest.mark.real_models

SLOTS = 300
#: More than there are slots, so that a slot also takes a second job.
JOBS = SLOTS + 100
#: Seconds after which requests are answered even if the others are missing: the test then fails.
PATIENCE = 60.0

JOB = {
    "task_type": "t",
    "prompt": "answer slowly",
    "runner": {"profile": "slow"},
    "verifiers": ["json.object"],
}
_ANSWER = json.dumps(
    {
        "model": "slow",
        "choices": [{"message": {"content": '{"ok": true}'}, "finish_reason": "stop"}],
        "usage": {"total_tokens": 3},
    }
).encode()
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class SlowModel:
    """A server whose requests wait for each other until all slots are in use."""

    def __init__(self) -> None:
        self.port = 0
        self.waiting = 0
        self.most_waiting = 0
        self.ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._all_here = asyncio.Event()
        self._over = asyncio.Event()

    def run(self) -> None:
        self._loop.run_until_complete(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0, backlog=1000)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await self._over.wait()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
                await reader.readexactly(int(length))
                await self._wait_for_the_others()
                writer.write(_HEAD % len(_ANSWER) + _ANSWER)
                await writer.drain()
        writer.close()

    async def _wait_for_the_others(self) -> None:
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        if self.waiting >= SLOTS:
            self._all_here.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_here.wait(), PATIENCE)
        self.waiting -= 1


@pytest.fixture
def model() -> Iterator[SlowModel]:
    with _running(SlowModel()) as found:
        yield found


@contextmanager
def _running(model: SlowModel) -> Iterator[SlowModel]:
    thread = threading.Thread(target=model.run, daemon=True)
    thread.start()
    assert model.ready.wait(30)
    yield model
    model.stop()
    thread.join(30)


def test_300_slots_of_one_process_wait_for_a_model_at_once(
    tmp_path: Path, model: SlowModel
) -> None:
    """Given one process with 300 slots and a provider that is configured for as many calls, then
    300 calls are in flight at once, every job ends, and the process needs few connections."""
    slots = Pool(name="attempt", queues=("repair", "attempt"), slots=SLOTS)
    slow = {"kind": "openai", "model": "slow", "base_url": f"http://127.0.0.1:{model.port}/v1"}
    runners = {"slow": {**slow, "concurrency": SLOTS}}
    with running_fleet(tmp_path, pools=(CONTROL, slots), runners=runners, lease=30.0) as fleet:
        ids = fleet.submit(*(JOB for _ in range(JOBS)))
        views = fleet.wait_until_finished(ids, seconds=120)
        clients = fleet.server.client().info("clients")["connected_clients"]
    assert {view.state for view in views} == {"succeeded"}
    assert {len(view.attempts) for view in views} == {1}
    assert model.most_waiting == SLOTS
    assert clients < 4 * SHARED + 40
