"""The composition root: builds the parts of one process. Imports Celery only when needed."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mulligan.policies.cycles.guardrail import Guardrail
from mulligan.policies.jobs.job import Decoding, RunnerSpec, VerifierSpec
from mulligan.tasks.jobs.context import AttemptContext, ResolvedRunner
from mulligan.tasks.jobs.publish import Publisher, log_unreachable
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.draft import create_if_asked
from mulligan.tasks.loops.repository_sweep import RepositorySweep
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Publication
from mulligan.tasks.ports.message_broker import BrokerAway
from mulligan.tasks.ports.verifiers import Verifier
from mulligan.workers.admission.claim_time import answer_time, verifier_problem
from mulligan.workers.admission.intake import (
    build_intake,
    check_job,
    outcome_problem,
    resolve_command,
)
from mulligan.workers.admission.loop_authority import config_problems, draft_problems
from mulligan.workers.alerts.webhooks import Webhooks
from mulligan.workers.celery.broker.queues import missing_pools
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.celery.release_timers import ReleaseTimers
from mulligan.workers.celery.repeated_lines import RepeatedLines
from mulligan.workers.contract_models import ContractModels
from mulligan.workers.crash_points import step
from mulligan.workers.figures.windows import FigureReader
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import rows
from mulligan.workers.ledger.stores.blobs import blob_store
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.home import is_up
from mulligan.workers.loops.attempt_work import AttemptWork
from mulligan.workers.loops.cache_tidying import CacheTidying
from mulligan.workers.loops.delivery import Delivery
from mulligan.workers.loops.prices import cost_of, token_price
from mulligan.workers.loops.workspace_trees import BlobsAndTrees, WorkspaceTrees, workspace_trees
from mulligan.workers.runners.runner_options import defaults_of
from mulligan.workers.runners.runner_registry import RunnerRegistry
from mulligan.workers.runners.sessions.transcript import read_lines, read_transcript
from mulligan.workers.sandbox.allowed import program_limits
from mulligan.workers.sandbox.worker_paths import WorkerPaths
from mulligan.workers.settings.live_settings import LiveExemptTypes, LiveSettings
from mulligan.workers.settings.model import Settings
from mulligan.workers.settings.profile_pools import longest_claim
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

if TYPE_CHECKING:
    from celery import Celery

#: The queues of the workers that need the repository of a loop.
_AT_WORK = frozenset({"agent", "agent.repair", "attempt", "repair", "verify"})
Publish = Callable[[Sequence[Publication]], None]


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of one process: a Celery worker, the console, a command, or a client's threads."""

    settings: Settings
    #: The current settings: some are reloaded.
    live: LiveSettings
    ledger: RedisLedger
    blobs: BlobStore
    runners: RunnerRegistry
    verifiers: VerifierRegistry
    #: Sends outbox entries to the workers.
    publish: Publish
    leases: LeaseKeeper
    context: AttemptContext
    intake: Intake
    loops: LoopContext
    repository_sweep: RepositorySweep
    webhooks: Webhooks
    figures: FigureReader


def app_services(
    settings: Settings,
    app: Celery,
    *,
    patience: float | None = None,
    local_paths: bool = False,
    on_unreachable: Callable[[BrokerAway], None] | None = None,
) -> Services:
    """Build the services of a process that publishes through a Celery app. Contacts nothing.

    ``on_unreachable``: called instead of a warning when the broker takes no messages.
    """
    from mulligan.workers.celery.broker.celery_broker import CeleryBroker

    live, interval = LiveSettings(settings), settings.lease / 3
    # First, because it has the best error messages about addresses.
    ledger = open_ledger(
        settings,
        patience=settings.worker_patience if patience is None else patience,
        # Only a worker waits longer: an answer is kept as long as its claim may live.
        keep=longest_claim(settings) if patience is None else None,
        live=live.current,
    )
    broker = CeleryBroker(
        app, ledger, outcome_problem=lambda target: outcome_problem(target, live.current())
    )
    lines = RepeatedLines()
    publisher = Publisher(
        ledger=ledger,
        broker=broker,
        step=step,
        on_unreachable=on_unreachable
        or (lambda error: log_unreachable(error) if lines.is_news(str(error)) else None),
    )
    return build_services(
        settings,
        ledger,
        publish=publisher.publish,
        leases=LeaseKeeper(
            # Of its own: a renewal that hangs is given up while the next one is still in time.
            open_ledger(settings, patience=interval),
            interval=interval,
            waited=ledger.calls.waits.waited,
        ),
        local_paths=local_paths,
        live=live,
    )


def build_services(
    settings: Settings,
    ledger: RedisLedger,
    *,
    publish: Publish,
    leases: LeaseKeeper,
    local_paths: bool = False,
    live: LiveSettings | None = None,
) -> Services:
    """Build the services over any ledger and any way to publish. Contacts nothing.

    ``local_paths``: whether jobs may name any directory of this host as their workspace.
    """
    live = live or LiveSettings(settings)
    limits = program_limits(settings)
    trees = workspace_trees(settings, limits)
    blobs = BlobsAndTrees(blob_store(settings, ledger.calls), trees)
    runners = RunnerRegistry(
        profiles=settings.runners,
        blobs=blobs,
        confinement=limits.confinement,
        heartbeat_seconds=limits.heartbeat_seconds,
        stuck=settings.stuck_rules,
    )
    ledger.limit_providers(runners.ceilings)
    verifiers = VerifierRegistry(
        limits=limits,
        models=ContractModels(settings.model_modules),
        resolve=lambda spec: resolve_command(spec, settings),
    )
    exempt = LiveExemptTypes(live)
    context = AttemptContext(
        repair=_repair_json,
        ledger=ledger,
        runner=lambda spec: _resolve_runner(runners, settings, spec),
        verifier=lambda spec: _build_verifier(verifiers, settings, blobs, spec),
        publish=publish,
        holding=leases.holding,
        worker=f"{socket.gethostname()}:{os.getpid()}",
        exempt_task_types=exempt,
        tenant=lambda job: rows.tenant_of(job, settings),
        report_labels=lambda: live.current().report_labels,
        randomness=random.random,
        release_later=ReleaseTimers(ledger, publish).start,
        price=lambda spec: token_price(spec, live.current()),
        cost=lambda job, output: cost_of(job, output, live.current()),
        repository=trees.repositories.open,
        answer=AttemptWork(
            trees=trees,
            save_interval=settings.save_interval,
            tidy=CacheTidying(
                settings.repository_folder, settings.repository_cache_cap
            ).tidy_if_due,
            show=ledger.live_transcripts.add,
            step=step,
        ).answer,
        without_paths=WorkerPaths.of_this_process().clean,
        step=step,
        **_limits(settings),
    )

    def loop_context(*, local_paths: bool) -> LoopContext:
        """Return what accepts jobs and loops. ``local_paths``: of a person on this host."""
        intake = build_intake(
            settings,
            ledger=ledger,
            publish=publish,
            check=lambda job: [
                *check_job(
                    job,
                    settings=settings,
                    runners=runners,
                    verifiers=verifiers,
                    local_paths=local_paths,
                ),
                *draft_problems(job, settings=settings, local_paths=local_paths),
            ],
            blobs=lambda: blobs,
            models=verifiers.models,
            exempt=exempt,
            resolve=trees.resolve,
        )
        return replace(
            _loop_context(settings, live, ledger, intake=intake, publish=publish, trees=trees),
            check_config=lambda config: config_problems(
                config, settings=settings, local_paths=local_paths
            ),
        )

    loops = loop_context(local_paths=local_paths)
    # What a drafted loop may name was checked when the draft was accepted.
    drafts = loop_context(local_paths=True)
    context = replace(context, on_passed=partial(create_if_asked, drafts))
    return Services(
        settings=settings,
        live=live,
        ledger=ledger,
        blobs=blobs,
        runners=runners,
        verifiers=verifiers,
        publish=publish,
        leases=leases,
        context=context,
        intake=loops.intake,
        loops=loops,
        repository_sweep=RepositorySweep(loops),
        webhooks=Webhooks(ledger, live),
        figures=FigureReader(ledger),
    )


def _repair_json(text: str) -> str | None:
    from mulligan.workers.verifiers.json_text import (
        repair_json_text,  # a producer loads no verifier
    )

    return repair_json_text(text)


def _loop_context(
    settings: Settings,
    live: LiveSettings,
    ledger: RedisLedger,
    *,
    intake: Intake,
    publish: Publish,
    trees: WorkspaceTrees,
) -> LoopContext:
    embedded = EmbeddedRedis(settings.home).url
    delivery = Delivery(settings=settings, trees=trees, limits=trees.limits)
    blobs = blob_store(settings, ledger.calls)
    return LoopContext(
        ledger=ledger,
        intake=intake,
        publish=publish,
        slots=lambda: live.current().loop_slots,
        ageing=lambda: live.current().loop_ageing,
        lock_ttl=settings.lock_ttl,
        price=lambda spec: token_price(spec, live.current()),
        provider=lambda name: ledger.breakers.all().get(name),
        stuck_rules=lambda: live.current().stuck_rules,
        missing_pools=lambda: missing_pools(ledger.beats.served(now=ledger.now())),
        blobs=blobs,
        keep=blobs.keep,
        repository=trees.repositories.open,
        run_delivery=delivery.run,
        delivery_time=delivery.longest,
        worker_hosts=lambda: {
            beat.host for beat in ledger.beats.live(now=ledger.now()) if {*beat.queues} & _AT_WORK
        },
        parse_transcript=read_transcript,
        live_transcript=lambda job, attempt: read_lines(ledger.live_transcripts.tail(job, attempt)),
        host=socket.gethostname(),
        is_local_path=lambda name: name.startswith(("/", "~")),
        work_retention=settings.work_retention,
        files=lambda git, commit: {
            name: node.content
            for name, node in trees.tree(git, commit).items()
            if node.kind == "file"
        },
        commands=sorted(settings.commands),
        step=step,
        up=lambda: is_up(settings.home) if settings.broker_url == embedded else None,
        tenant_label=settings.tenant_label,
    )


def _limits(settings: Settings) -> dict[str, Any]:
    return {
        "guardrail": Guardrail(
            window=settings.guard_window, loops=settings.guard_loops, share=settings.guard_share
        ),
        "guard_subjects": settings.guard_subjects,
        "guard_jobs": settings.guard_jobs,
        "external_lease": settings.external_lease,
        "verifier_tries": settings.verifier_tries,
        "hard_limit": settings.hard_limit,
        "answer_cap": settings.answer_cap,
        "backoff_base": settings.backoff_base,
        "backoff_cap": settings.backoff_cap,
    }


def _resolve_runner(
    runners: RunnerRegistry, settings: Settings, spec: RunnerSpec
) -> ResolvedRunner:
    if spec.profile is not None and spec.profile not in runners.profiles:
        raise BadInput.at(
            "runner.profile",
            f"no profile {spec.profile!r} in mulligan.toml, which this worker read when it started:"
            " restart it if the profile is new",
            "unknown_name",
        )
    runner = runners.for_job(spec, allow_inline=settings.allow_inline)
    defaults = defaults_of(runner)
    return ResolvedRunner(
        runner=runner,
        timeout=answer_time(spec, runner, runners=runners, settings=settings),
        decoding=Decoding(temperature=defaults.temperature, max_tokens=defaults.max_tokens),
    )


def _build_verifier(
    verifiers: VerifierRegistry, settings: Settings, blobs: BlobStore, spec: VerifierSpec
) -> Verifier:
    verifier = verifiers.build(resolve_command(spec, settings), blobs=blobs)
    if problem := verifier_problem(verifier, settings=settings):
        raise BadInput(f"{spec.label}: {problem}")
    return verifier
