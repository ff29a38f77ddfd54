"""Sends a task to the app in tasks.py and waits for its result, as with any Celery task.

The caller of the first message gets the repaired answer. See tasks.py for how to run it.
"""

import os

from celery import Celery

BROKER = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
app = Celery("producer", broker=BROKER, backend=BROKER)

result = app.send_task("tasks.extract", args=["Alice owes 12.50."])
print("invoice:", result.get(timeout=60))
