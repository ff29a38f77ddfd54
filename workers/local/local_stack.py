"""A whole installation in one process: services and worker threads over a ledger, no Celery."""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.tasks.jobs.submit import Intake
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.local_workers import LocalWorkers
from mulligan.workers.services import Services, build_services
from mulligan.workers.settings.model import Settings


@dataclass(frozen=True, kw_only=True)
class LocalStack:
    """Accepts and runs jobs in this process. Unfinished ones stay in the ledger when it closes."""

    services: Services
    workers: LocalWorkers

    @property
    def ledger(self) -> RedisLedger:
        return self.services.ledger

    @property
    def intake(self) -> Intake:
        return self.services.intake

    def close(self) -> None:
        self.workers.close()

    def __enter__(self) -> LocalStack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def local_stack(
    settings: Settings, ledger: RedisLedger, *, slots: int = 4, grace: float = 5.0
) -> LocalStack:
    """Build a stack for this process. Contacts and starts nothing before the first job."""
    # Services and workers need each other: the workers run what the services publish.
    services = build_services(
        settings,
        ledger,
        publish=lambda publications: workers.publish(publications),
        leases=LeaseKeeper(
            ledger,
            interval=settings.lease / 3,
            on_stuck=lambda entry: workers.replace_slot(entry),
            waited=ledger.calls.waits.waited,
        ),
        local_paths=True,
    )
    workers = LocalWorkers(
        services.context,
        services.leases,
        slots=slots,
        sweep_interval=settings.sweep_interval,
        grace=grace,
    )
    return LocalStack(services=services, workers=workers)
