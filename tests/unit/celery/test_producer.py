"""A producer imports Celery for its first hint, in whatever thread that is sent."""

from __future__ import annotations

import subprocess
import sys

THREADS = """
import threading
from unittest.mock import Mock
from mulligan.workers.celery.broker.producer import ProducerPublisher

found, together = [], threading.Barrier(20)

def first_hint():
    publisher = ProducerPublisher(Mock(broker_url="memory://"), Mock())
    together.wait()
    found.append(publisher._get())

threads = [threading.Thread(target=first_hint) for _ in range(20)]
for each in threads: each.start()
for each in threads: each.join()
print(len(found))
"""


def test_twenty_threads_may_send_their_first_hint_at_once() -> None:
    for _ in range(3):
        argv = [sys.executable, "-c", THREADS]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "20", done.stderr[-500:]
