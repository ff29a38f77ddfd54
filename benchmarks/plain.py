"""The plain Celery app that mulligan is compared with: default settings, no results."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

BROKER = os.environ.get("BENCH_BROKER", "memory://")
RETRIES = "bench:retries"

app = Celery("plain", broker=BROKER)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)


def noop(payload: str) -> int:
    return len(payload)


def again(self: Any, failed_at: float | None = None) -> None:
    """Fail once, retry at once, and record the milliseconds until the retry starts."""
    if failed_at is None:
        raise self.retry(kwargs={"failed_at": time.time()}, countdown=0)
    waited = time.time() - failed_at
    with redis.Redis(unix_socket_path=BROKER.removeprefix("redis+socket://")) as client:
        client.rpush(RETRIES, f"{waited * 1000:.3f}")


app.task(name="noop")(noop)
app.task(name="again", bind=True, max_retries=1)(again)
