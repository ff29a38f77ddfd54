"""Submits a job whose outcome goes to the task `shop.answered`. See shop.py for how to run it."""

import os

from celery import Celery

app = Celery(broker=os.environ["BROKER_URL"])
job = {
    "task_type": "reply",
    "prompt": "Write one friendly line to a customer whose parcel is late.",
    "runner": "writer",  # a profile of the workers' mulligan.toml
    "verifiers": [{"id": "text.match", "contains": "sorry", "max_length": 80}],
    "labels": {"order": "7"},
    "on_done": {"task": "shop.answered", "queue": "shop"},
}
app.send_task("mulligan.submit", kwargs=job, queue="mulligan.submit")
print("order 7: submitted; the shop's worker gets the result")
