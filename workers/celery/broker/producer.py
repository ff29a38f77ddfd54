"""A producer: writes jobs into a fleet's ledger and sends the hints, but cannot run jobs.

It imports no runners or verifiers, and Celery only for the first hint.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from mulligan.policies.jobs.job import Job
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.publish import Publisher
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.ports.ledger import Publication
from mulligan.workers.admission.intake import build_intake, outcome_problems
from mulligan.workers.contract_models import ContractModels, contract_problems
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.settings.model import Settings

#: Held while a publisher is created.
_CREATING = threading.Lock()


def producer_intake(settings: Settings, ledger: RedisLedger, *, models: ContractModels) -> Intake:
    """Return the intake of a producer. Workers check what a job names.

    A producer without a list of targets for `on_done` cannot know the workers' list.
    """

    def check(job: Job) -> list[Problem]:
        targets = outcome_problems(job, settings) if settings.on_done else []
        return contract_problems(job, models) + targets

    def blobs() -> Any:
        from mulligan.workers.ledger.stores.blobs import blob_store

        return blob_store(settings)

    publish = ProducerPublisher(settings, ledger).publish
    return build_intake(
        settings, ledger=ledger, publish=publish, check=check, blobs=blobs, models=models
    )


class ProducerPublisher:
    """Publishes through a minimal Celery app, created for the first publication."""

    def __init__(self, settings: Settings, ledger: RedisLedger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._publisher: Publisher | None = None

    def publish(self, publications: Sequence[Publication]) -> None:
        if publications:
            self._get().publish(publications)

    def _get(self) -> Publisher:
        with _CREATING:
            # Celery replaces its own module while it is imported: one thread at a time.
            from celery import Celery

            from mulligan.workers.celery.broker.celery_broker import CeleryBroker

            if self._publisher is None:
                app = Celery("mulligan-producer", set_as_current=False)
                app.conf.update(
                    broker_url=self._settings.broker_url,
                    result_backend=None,
                    task_ignore_result=True,
                    task_serializer="json",
                    accept_content=["json"],
                    task_default_queue="attempt",
                )
                broker = CeleryBroker(app, self._ledger)
                self._publisher = Publisher(ledger=self._ledger, broker=broker)
            return self._publisher
