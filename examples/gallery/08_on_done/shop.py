"""Your own Celery app gets a message when a job has ended, without polling.

    mulligan up                                   # terminal 1: Redis, and workers that answer
    export BROKER_URL=redis+socket://$PWD/.mulligan/redis.sock    # in terminals 2 and 3
    celery -A shop worker -Q shop -l warning      # terminal 2: this app
    python order.py                               # terminal 3: submits a job

Run all of it in this folder; its mulligan.toml defines the runner. This app does not need mulligan.
"""

import os
from typing import Any

from celery import Celery

app = Celery("shop", broker=os.environ["BROKER_URL"])


@app.task(name="shop.answered", ignore_result=True)
def answered(outcome: dict[str, Any]) -> None:
    """Called when a job ends, succeeded or not. It may come twice: store it by job_id."""
    order = outcome["labels"]["order"]
    print(f"order {order}: {outcome['state']} after {outcome['attempts']} attempts")
    print(f"order {order}: {outcome['answer']}")
