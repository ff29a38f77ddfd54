"""A worker says each reason once, and again as a reminder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from celery import Celery
from celery.worker.consumer import consumer

from mulligan import install
from mulligan.tasks.ports.clock import SYSTEM_CLOCK
from mulligan.workers.celery.repeated_lines import RepeatedLines
from mulligan.workers.user_tasks.installed_app import _on_worker_init

REFUSED = "consumer: Cannot connect to %s: %s.\n%s\n"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger of Celery's consumer, without what other tests have added."""
    logger: logging.Logger = consumer.logger
    before, logger.filters = logger.filters, []
    yield logger
    logger.filters = before


def test_a_text_is_said_when_it_is_new_and_after_a_minute() -> None:
    now = 0.0
    lines = RepeatedLines(clock=replace(SYSTEM_CLOCK, monotonic=lambda: now))
    said = []
    for now in range(0, 130, 10):
        said += [(now, text) for text in ("away", "full" if now > 50 else "away")
                 if lines.is_news(text)]  # fmt: skip
    assert said == [(0, "away"), (60, "away"), (60, "full"), (120, "away"), (120, "full")]


def test_celery_s_consumer_says_once_that_the_broker_refuses(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    class Worker:
        app = Celery("mine", broker="redis://there", set_as_current=False)

    install(Worker.app)
    for _ in range(2):  # two signals must not add two filters
        _on_worker_init(Worker)
    for reason in ["NOREPLICAS"] * 20 + ["READONLY"] * 20:
        logger.error(REFUSED, "redis://there", reason, "Trying to reconnect...")
    reasons = [line.getMessage().split()[5] for line in caplog.records]
    assert reasons == ["NOREPLICAS.", "READONLY."]
    assert len(logger.filters) == 1
