"""A whole installation in one process: intake, verbs and threads over a ledger, no Celery."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import TracebackType

from mulligan.tasks.jobs.submit import Intake
from mulligan.workers.contract_models import ContractModels
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.blobs import blob_store
from mulligan.workers.local.local_workers import LocalWorkers
from mulligan.workers.services import build_components, redis_breakers
from mulligan.workers.settings.model import Settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry


@dataclass(frozen=True, kw_only=True)
class LocalStack:
    """Takes jobs and runs them here. Closing it leaves what is unfinished in the ledger."""

    settings: Settings
    ledger: RedisLedger
    intake: Intake
    workers: LocalWorkers
    verifiers: VerifierRegistry

    @property
    def models(self) -> ContractModels:
        """Give it a pydantic model to have answers checked by the model's own validators."""
        return self.verifiers.models

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
    components = build_components(
        settings,
        ledger,
        blobs=blob_store(settings, ledger.calls),
        breakers=redis_breakers(settings, ledger),
        publish=lambda _: None,  # the pool brings its own, and its leases
        holding=lambda _lease, _deadline: nullcontext(),
        local_paths=True,
    )
    workers = LocalWorkers(
        components.context,
        slots=slots,
        lease=settings.lease,
        sweep_interval=settings.sweep_interval,
        grace=grace,
    )
    return LocalStack(
        settings=settings,
        ledger=ledger,
        intake=replace(components.intake, publish=workers.publish),
        workers=workers,
        verifiers=components.verifiers,
    )
