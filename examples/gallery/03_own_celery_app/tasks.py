"""Your own Celery app: one line makes a task's retries correct their prompt.

    celery -A tasks worker -P threads -l warning    # in this folder
    python producer.py                                 # in another terminal

Both look for Redis at BROKER_URL, by default redis://localhost:6379/0.
"""

import os

from celery import Celery
from pydantic import BaseModel, field_validator

from mulligan import RepairingTask, install

BROKER = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
app = Celery("shop", broker=BROKER, backend=BROKER)
install(app)


class Invoice(BaseModel):
    customer: str
    total: float

    @field_validator("total")
    @classmethod
    def not_negative(cls, total: float) -> float:
        if total < 0:
            raise ValueError("an invoice's total is never negative")
        return total


def ask_my_model(prompt: str) -> str:
    """Your SDK call goes here. This one is wrong until the prompt says what is wrong."""
    sign = "" if "never negative" in prompt else "-"
    return f'{{"customer": "Alice", "total": {sign}12.5}}'


@app.task(base=RepairingTask, verifiers=[Invoice], task_type="invoice")
def extract(self: RepairingTask, text: str) -> str:
    return ask_my_model(self.correct(f"Extract customer and total as JSON: {text}"))
