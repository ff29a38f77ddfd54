"""The composition root: settings in, a workbench out. Celery is imported by its users alone."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mulligan.policies.cycles.guardrail import Guardrail
from mulligan.policies.jobs.job import Decoding, RunnerSpec, VerifierSpec
from mulligan.tasks.jobs.context import AttemptContext, Breakers, ResolvedRunner
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Lease, Ledger, Publication
from mulligan.tasks.ports.verifiers import Verifier
from mulligan.workers.admission.claim_time import answer_time, verifier_problem
from mulligan.workers.admission.intake import build_intake, check_job, resolve_command
from mulligan.workers.alerts.webhooks import Webhooks
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.contract_models import ContractModels
from mulligan.workers.crash_points import step
from mulligan.workers.ledger import rows
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stores.blobs import blob_store
from mulligan.workers.ledger.stores.breakers import RedisBreakers
from mulligan.workers.ledger.stores.config_changes import ConfigChanges
from mulligan.workers.runners.runner_options import defaults_of
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.settings.live_settings import LiveExemptTypes, LiveSettings
from mulligan.workers.settings.model import Settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

if TYPE_CHECKING:
    from celery import Celery

    from mulligan.workers.celery.publisher import Publisher

Publish = Callable[[Sequence[Publication]], None]


@dataclass(frozen=True, kw_only=True)
class Services:
    """One process's own set of everything."""

    settings: Settings
    ledger: RedisLedger
    blobs: BlobStore
    runners: RunnerRegistry
    verifiers: VerifierRegistry
    publisher: Publisher
    leases: LeaseKeeper
    context: AttemptContext
    intake: Intake
    #: The settings that are read again, and who is told what happens.
    live: LiveSettings
    webhooks: Webhooks
    #: When the configuration changed.
    configured: ConfigChanges


@dataclass(frozen=True, kw_only=True)
class Components:
    """What every process has, whoever brings it its messages."""

    runners: RunnerRegistry
    verifiers: VerifierRegistry
    context: AttemptContext
    intake: Intake


def build_services(
    settings: Settings, app: Celery, *, patience: float | None = None, local_paths: bool = False
) -> Services:
    """Wire everything for one process. Nothing is contacted yet."""
    from mulligan.workers.celery.publisher import Publisher

    live = LiveSettings(settings)
    # First, because it says best what is wrong with the addresses.
    ledger = open_ledger(
        settings,
        patience=settings.worker_patience if patience is None else patience,
        live=live.current,
    )
    blobs = blob_store(settings, ledger.calls)
    publisher = Publisher(app, ledger, step=step)
    leases = LeaseKeeper(ledger, interval=settings.lease / 3)
    components = build_components(
        settings,
        ledger,
        blobs=blobs,
        breakers=redis_breakers(settings, ledger),
        publish=publisher.publish,
        holding=leases.holding,
        local_paths=local_paths,
        live=live,
    )
    return Services(
        settings=settings,
        ledger=ledger,
        blobs=blobs,
        runners=components.runners,
        verifiers=components.verifiers,
        publisher=publisher,
        leases=leases,
        context=components.context,
        intake=components.intake,
        live=live,
        webhooks=Webhooks(ledger.calls, settings.key_prefix, live, job=ledger.job),
        configured=ConfigChanges(ledger.calls, settings.key_prefix),
    )


def redis_breakers(settings: Settings, ledger: RedisLedger) -> RedisBreakers:
    return RedisBreakers(ledger.calls, prefix=settings.key_prefix, now=ledger.now)


def build_components(
    settings: Settings,
    ledger: Ledger,
    *,
    blobs: BlobStore,
    breakers: Breakers,
    publish: Publish,
    holding: Callable[[Lease, float], AbstractContextManager[None]],
    local_paths: bool,
    live: LiveSettings | None = None,
) -> Components:
    """Runners, verifiers, workbench and intake over any ledger."""
    known = live or LiveSettings(settings)
    exempt = LiveExemptTypes(known)
    runners = RunnerRegistry(profiles=settings.runners, blobs=blobs)
    verifiers = VerifierRegistry(models=ContractModels(settings.model_modules))
    context = AttemptContext(
        ledger=ledger,
        runner=lambda spec: _in_hand(runners, settings, spec),
        verifier=lambda spec: _verifier(verifiers, settings, blobs, spec),
        publish=publish,
        holding=holding,
        breakers=breakers,
        worker=f"{socket.gethostname()}:{os.getpid()}",
        exempt_task_types=exempt,
        tenant=lambda job: rows.tenant_of(job, settings),
        guardrail=Guardrail(
            window=settings.guard_window, loops=settings.guard_loops, share=settings.guard_share
        ),
        guard_jobs=settings.guard_jobs,
        external_lease=settings.external_lease,
        report_labels=lambda: known.current().report_labels,
        verifier_tries=settings.verifier_tries,
        answer_cap=settings.answer_cap,
        backoff_base=settings.backoff_base,
        backoff_cap=settings.backoff_cap,
        randomness=random.random,
        step=step,
    )
    intake = build_intake(
        settings,
        ledger=ledger,
        publish=publish,
        check=lambda job: check_job(
            job,
            settings=settings,
            runners=runners,
            verifiers=verifiers,
            local_paths=local_paths,
        ),
        blobs=lambda: blobs,
        models=verifiers.models,
        exempt=exempt,
    )
    return Components(runners=runners, verifiers=verifiers, context=context, intake=intake)


def _in_hand(runners: RunnerRegistry, settings: Settings, spec: RunnerSpec) -> ResolvedRunner:
    runner = runners.for_job(spec, allow_inline=settings.allow_inline)
    defaults = defaults_of(runner)
    return ResolvedRunner(
        runner=runner,
        timeout=answer_time(spec, runner, runners=runners, settings=settings),
        decoding=Decoding(temperature=defaults.temperature, max_tokens=defaults.max_tokens),
    )


def _verifier(
    verifiers: VerifierRegistry, settings: Settings, blobs: BlobStore, spec: VerifierSpec
) -> Verifier:
    verifier = verifiers.build(resolve_command(spec, settings), blobs=blobs)
    if problem := verifier_problem(verifier, settings=settings):
        raise BadInput(f"{spec.label}: {problem}")
    return verifier
