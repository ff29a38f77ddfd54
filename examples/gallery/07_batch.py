"""A thousand jobs in one call, with a progress bar.

    python 07_batch.py        # scripted answers: no model is needed
    python 07_batch.py 50     # fewer of them

Every tenth job gets a wrong answer first. Its corrected retry overtakes the jobs that wait.
"""

import sys
import time

from pydantic import BaseModel

from mulligan import Client

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 1000


class Square(BaseModel):
    square: int


def job(number: int) -> dict[str, object]:
    answers = [f'{{"square": {number**2}}}']
    if number % 10 == 0:
        answers.insert(0, '{"square": "a lot"}')
    return {
        "prompt": f"What is {number} times {number}?",
        "runner": {"kind": "scripted", "answers": answers},  # or {"kind": "local"}
    }


started = time.perf_counter()
with Client() as client:
    handles = client.submit_many(map(job, range(COUNT)), returns=Square)
    results = client.wait(handles)
seconds = time.perf_counter() - started

assert [result.value.square for result in results] == [n**2 for n in range(COUNT)]
repaired = sum(len(result.attempts) > 1 for result in results)
print(f"{COUNT} jobs in {seconds:.1f} s, {COUNT / seconds:.0f} per second")
print(f"{repaired} of them were repaired, none is wrong")
