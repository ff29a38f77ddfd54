"""`mulligan worker`: a pool under any supervisor, with the sizes of the settings."""

from __future__ import annotations

import signal

from celery import Celery
from support.cli_process import invoke, new_shell
from support.waiting import wait_for


def test_the_process_becomes_the_worker_and_gets_its_signals(redis_url: str) -> None:
    """Given a size in the environment, then the pool has it, and SIGTERM ends the process."""
    with new_shell(MULLIGAN_ATTEMPT_SLOTS="3", MULLIGAN_BROKER_URL=redis_url) as shell:
        process = shell.start("worker", "attempt")
        with Celery(broker=redis_url, set_as_current=False) as app:
            found = wait_for(lambda: app.control.inspect(timeout=0.5).stats(), "the worker")
        (stats,) = found.values()
        assert (stats["pid"], stats["pool"]["max-concurrency"]) == (process.pid, 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_an_unknown_pool_is_refused_with_the_names() -> None:
    result = invoke("worker", "atempt", code=2)
    assert (
        "use control, repair, attempt, verify, agent-repair, agent, edit, not 'atempt'"
        in result.stderr
    )
