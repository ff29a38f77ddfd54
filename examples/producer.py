"""A producer in ten lines: any Celery client, no import of mulligan, only the task's name.

Start the workers with `mulligan up` in a directory whose mulligan.toml names the runner `small`
(examples/mulligan.toml does), then: BROKER_URL=… python examples/producer.py
"""

import os

from celery import Celery

app = Celery(broker=os.environ["BROKER_URL"])
schema = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}
job = {
    "task_type": "extract_person",
    "prompt": "Extract the age as JSON: 'Alice is 31 years old.'",
    "runner": "small",
    "verifiers": ["json.object", {"id": "contract.schema", "schema": schema}],
    "idempotency_key": "alice-1",
}
app.send_task("mulligan.submit", kwargs=job, queue="mulligan.submit")
