"""A whole installation in one process: services and threads over a ledger, no Celery."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from mulligan.tasks.jobs.submit import Intake
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.local.local_workers import LocalWorkers
from mulligan.workers.services import Services, build_services
from mulligan.workers.settings.model import Settings


@dataclass(frozen=True, kw_only=True)
class LocalStack:
    """Takes jobs and runs them here. Closing it leaves what is unfinished in the ledger."""

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def local_stack(
    settings: Settings, ledger: RedisLedger, *, slots: int = 4, grace: float = 5.0
) -> LocalStack:
    """Wire a stack for this process. Nothing is contacted or started before the first job."""
    # The workers run what the services publish, and publish what follows: each needs the other.
    services = build_services(
        settings,
        ledger,
        publish=lambda publications: workers.publish(publications),
        leases=LeaseKeeper(
            ledger,
            interval=settings.lease / 3,
            on_stuck=lambda entry: workers.replace_slot(entry),
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
