"""The simulated processes: workers, sweeps, producers and people, each running the real verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from mulligan.policies.jobs.job import Decoding, Job, RunnerSpec, Usage
from mulligan.tasks.escalations.end_escalations import EndAction, EscalationFilter, select
from mulligan.tasks.external.lane import (
    ReportedAttempt,
    next_task,
    record_attempt,
    report_attempt,
)
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.context import AttemptContext, ResolvedRunner
from mulligan.tasks.jobs.outcome import Outcome
from mulligan.tasks.jobs.publish import Publisher
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.jobs.submit import Intake, submit_jobs
from mulligan.tasks.jobs.sweep import run_sweep
from mulligan.tasks.jobs.verify import run_verification
from mulligan.tasks.loops.draft import create_if_asked
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable
from mulligan.tasks.ports.ledger import ClaimRefused, Entry, EscalationEnd
from mulligan.workers.alerts.webhooks import Webhooks
from mulligan.workers.celery.broker.celery_broker import CeleryBroker
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.ledger.stored import job_ids, rows
from mulligan.workers.ledger.stores.bulk_actions import run_bulks
from mulligan.workers.settings.live_settings import LiveSettings
from mulligan.workers.settings.model import Settings
from simulation.agents import SimulatedWork, verifier_of
from simulation.broker import Message, SimulatedApp
from simulation.loop_processes import LoopFleet
from simulation.providers import TOKENS, SimulatedRunner
from simulation.scheduler import Crashed, Process
from simulation.world import EARLIER, PRESENT, PRODUCER_PATIENCE, STEPS, World

#: The queues of an ordinary worker: mandatory retries first.
QUEUES = ("repair", "attempt", "verify")
_VERBS: dict[str, Callable[[AttemptContext, Entry], Outcome]] = {
    "mulligan.attempt": run_attempt,
    "mulligan.verify": run_verification,
    "mulligan.recheck": run_recheck,
}


@dataclass(frozen=True)
class FixedSettings(LiveSettings):
    """Settings that no file changes."""

    settings: Settings

    def current(self) -> Settings:
        return self.settings


#: Seconds that a simulated runner may take.
_RUNNER_TIMEOUT = 40.0


def publisher(world: World, process: Process, ledger: RedisLedger) -> Publisher:
    """Return the real publisher on the simulated broker."""
    app: Any = SimulatedApp(world.broker, process)
    broker = CeleryBroker(app, ledger, clock=world.clock(process))
    return Publisher(ledger=ledger, broker=broker, on_unreachable=lambda _error: None)


def attempt_context(world: World, process: Process, ledger: RedisLedger) -> AttemptContext:
    """Build a worker's context as the composition root does, on simulated ports."""
    interval = world.settings.lease / 3
    leases = LeaseKeeper(
        world.ledger(process, patience=interval, timeout=interval),
        interval=interval,
        clock=world.clock(process),
        start_thread=lambda run: world.scheduler.spawn(process, run),
        on_stuck=lambda _entry: world.crash(process),
        waited=ledger.calls.waits.waited,
    )

    def step(name: str, entry: Entry) -> None:
        ours = name == "commit_checked" or entry.job_id in world.checker.repositories.jobs
        if name in STEPS and ours:
            world.after(process, world.before(process, name, str(entry)))

    def resolve(spec: RunnerSpec) -> ResolvedRunner:
        runner = SimulatedRunner(world, process, spec)
        return ResolvedRunner(runner=runner, timeout=_RUNNER_TIMEOUT, decoding=Decoding())

    return AttemptContext(
        ledger=ledger,
        runner=resolve,
        verifier=partial(verifier_of, world, process),
        publish=publisher(world, process, ledger).publish,
        holding=leases.holding,
        worker=process.name,
        exempt_task_types=world.settings.exempt_task_types,
        tenant=lambda job: rows.tenant_of(job, world.settings),
        randomness=world.chance.random,
        backoff_base=world.settings.backoff_base,
        backoff_cap=world.settings.backoff_cap,
        clock=world.clock(process),
        repository=partial(world.repositories.open, process),
        answer=SimulatedWork(world, process).answer,
        step=step,
    )


def drafting_context(fleet: Fleet, process: Process, ledger: RedisLedger) -> AttemptContext:
    """Build the context of a worker that creates the loops of drafts which pass."""
    loops = fleet.loops.context(process, ledger)
    context = attempt_context(fleet.world, process, ledger)
    return replace(context, on_passed=partial(create_if_asked, loops))


class Fleet:
    """Starts processes in a world."""

    def __init__(self, world: World, *, slots: int = 1, queues: Sequence[str] = QUEUES) -> None:
        """``slots``: of each worker. ``queues``: of each worker of the present release."""
        self.world = world
        self.loops = LoopFleet(self)
        self._queues = queues
        self._slots = slots
        self._workers = 0
        self._sweeps = 0
        self._controls = 0

    # -- workers ----------------------------------------------------------------------------------

    def start_worker(self, *, earlier: bool = False) -> Process:
        """Start a worker. Its slots share the ledger, and one thread renews all their leases.

        ``earlier``: of the release before this one.
        """
        self._workers += 1
        process = self.world.process(f"{'earlier' if earlier else 'worker'}{self._workers}")
        ledger = self.world.ledger(process, schema=EARLIER if earlier else PRESENT)
        context = drafting_context(self, process, ledger)
        queues = QUEUES if earlier else self._queues
        for _ in range(self._slots):
            self.world.scheduler.spawn(process, lambda: self._work(process, context, queues))
        return process

    def _work(self, process: Process, context: AttemptContext, queues: Sequence[str]) -> None:
        while True:
            message = self.world.broker.take(process, queues)
            entry = Entry.parse(message.args[0])
            self.world.note(process, f"received {message.task} {entry}")
            with self.world.handling(process, entry):
                self._handle(process, context, message, entry)

    def _handle(
        self, process: Process, context: AttemptContext, message: Message, entry: Entry
    ) -> None:
        world = self.world
        try:
            outcome = _VERBS[message.task](context, entry)
        except LedgerUnavailable as error:
            world.note(process, f"gave up {entry}: {type(error).__name__}: {error}")
        except Crashed:
            world.broker.lost_by_crash(message)
            raise
        else:
            world.note(process, f"done {entry}: {describe(outcome)}")

    # -- sweeps -----------------------------------------------------------------------------------

    def start_sweep(self, interval: Callable[[], float]) -> Process:
        """Start a process that sweeps again and again."""
        self._sweeps += 1
        process = self.world.process(f"sweep{self._sweeps}")

        def run() -> None:
            ledger = self.world.ledger(process)
            publish = publisher(self.world, process, ledger).publish
            while True:
                self.world.scheduler.sleep(process, interval())
                self._sweep(process, ledger, publish)

        self.world.scheduler.spawn(process, run)
        return process

    def _sweep(self, process: Process, ledger: RedisLedger, publish: Any) -> None:
        world = self.world
        served = self._queues if self._queues is QUEUES else (*self._queues, "loop")

        def empty() -> list[str]:
            return [queue for queue in served if not world.broker.waiting(queue)]

        try:
            run_sweep(ledger, empty_queues=empty, publish=publish)
        except LedgerUnavailable as error:
            world.note(process, f"gave up: {error}")

    def sweep_once(self) -> None:
        """Sweep in a process that ends afterwards."""
        self._sweeps += 1
        process = self.world.process(f"sweep{self._sweeps}")
        ledger = self.world.ledger(process)
        publish = publisher(self.world, process, ledger).publish
        self.world.scheduler.spawn(process, lambda: self._sweep(process, ledger, publish))

    # -- control workers --------------------------------------------------------------------------

    def start_control(self, interval: Callable[[], float]) -> Process:
        """Start a process that sends alerts and works on bulk actions."""
        self._controls += 1
        world, process = self.world, self.world.process(f"control{self._controls}")
        ledger = world.ledger(process)
        publish = publisher(world, process, ledger).publish
        webhooks = Webhooks(
            ledger,
            FixedSettings(world.settings),
            randomness=world.chance.random,
            post=partial(world.receivers.post, process),
            start_thread=lambda run: world.scheduler.spawn(process, run),
        )

        def work() -> None:
            webhooks.tick()
            run_bulks(ledger, ledger.bulk_actions, publish, clock=world.clock(process).monotonic)

        def run() -> None:
            while True:
                world.scheduler.sleep(process, interval())
                try:
                    work()
                except LedgerUnavailable as error:
                    world.note(process, f"gave up: {error}")

        world.scheduler.spawn(process, run)
        return process

    # -- subjects ---------------------------------------------------------------------------------

    def start_subject(self, name: str) -> Process:
        """Start a person or system that does the external work of one subject."""
        world = self.world
        process = world.process(f"subject-{name}")

        def run() -> None:
            ledger = world.ledger(process, patience=PRODUCER_PATIENCE)
            context = attempt_context(world, process, ledger)
            while True:
                world.scheduler.sleep(process, 2.0)
                try:
                    self._next_report(context, process, name)
                except (LedgerUnavailable, BadInput) as error:
                    world.note(process, f"gave up: {error}")

        world.scheduler.spawn(process, run)
        return process

    def _next_report(self, context: AttemptContext, process: Process, name: str) -> None:
        task = next_task(context, name)
        if task is None:
            return
        world, entry = self.world, task.lease.entry
        with world.handling(process, entry):
            world.scheduler.sleep(process, 3.0)
            number = task.claim.plan.number + (entry.kind == "cycle")
            scores: Any = task.claim.job.runner.options.get("scores", [90])
            score = scores[min(number, len(scores)) - 1]
            outcome = report_attempt(context, task.lease, report(score))
            world.note(process, f"done {entry}: {describe(outcome)}")

    def start_reporter(self, key: str, score: float) -> Process:
        """Start a subject that reports a first attempt until it is answered."""
        world = self.world
        process = world.process(f"reporter-{key}-{score:g}")
        raw = {
            "subject": "mia",
            "task_type": "work",
            "prompt": "Do it.",
            "idempotency_key": key,
            "delayed_verification": {"mode": "reformulate", "after": 10},
        }

        def run() -> None:
            ledger = world.ledger(process, patience=PRODUCER_PATIENCE)
            context = attempt_context(world, process, ledger)
            intake = self.intake(process, ledger, self.reported_id(key))
            try:
                job_id, outcome = record_attempt(context, intake, dict(raw), report(score))
            except LedgerUnavailable as error:
                world.note(process, f"gave up: {error}")
                world.scheduler.sleep(process, 2.0)
                run()
            else:
                world.note(process, f"reported {job_id}: {describe(outcome)}")

        world.scheduler.spawn(process, run)
        return process

    def reported_id(self, key: str) -> str:
        partitions = self.world.settings.partitions or 1
        return job_ids.job_id(partitions=partitions, key=key, scope=rows.lane("mia", None))

    # -- producers and people ---------------------------------------------------------------------

    def submit(self, name: str, job: Job, *, tries: int = 1) -> str:
        """Submit a job in a process of its own. A job with a key is submitted up to ``tries``."""
        world = self.world
        process = world.process(f"to-{name}")
        job_id = self.job_id(name, job)

        def run() -> None:
            ledger = world.ledger(process, patience=PRODUCER_PATIENCE)
            intake = self.intake(process, ledger, job_id)
            for _ in range(tries):
                try:
                    (accepted,) = submit_jobs(intake, [job])
                except LedgerUnavailable as error:
                    world.note(process, f"gave up {job_id}: {error}")
                else:
                    world.checker.accepted(accepted.id, job)
                world.scheduler.sleep(process, 3.0)

        world.checker.submitted(job_id, job)
        world.scheduler.spawn(process, run)
        return job_id

    def intake(self, process: Process, ledger: RedisLedger, job_id: str) -> Intake:
        return Intake(
            ledger=ledger,
            publish=publisher(self.world, process, ledger).publish,
            check=lambda _: [],
            snapshot=lambda workspace: workspace,
            new_id=lambda _, __: job_id,
            prompt_cap=100_000,
            exempt_task_types=self.world.settings.exempt_task_types,
        )

    def job_id(self, name: str, job: Job) -> str:
        """Return the real id of a job with a key, and a readable one otherwise."""
        scope = rows.scope_of(job, self.world.settings)
        partitions = self.world.settings.partitions or 1
        if job.idempotency_key is not None:
            key = rows.key_of(job, self.world.settings)
            return job_ids.job_id(partitions=partitions, key=key, scope=scope)
        return f"{job_ids.partition_of_scope(scope or name, partitions=partitions)}-{name}"

    def person(self, act: Callable[[RedisLedger, Publisher], Any], what: str) -> None:
        """Let a person do something through a ledger of their own."""
        world = self.world
        process = world.process("person")

        def run() -> None:
            ledger = world.ledger(process, patience=PRODUCER_PATIENCE)
            world.note(process, what)
            try:
                act(ledger, publisher(world, process, ledger))
            except LedgerUnavailable as error:
                world.note(process, f"gave up: {error}")

        world.scheduler.spawn(process, run)

    def requeue(self, job_id: str) -> None:
        """Requeue the job's newest open escalation, as a person does on the page."""

        def act(ledger: RedisLedger, publisher: Publisher) -> None:
            found = [e for e in ledger.escalations(limit=50) if e.job_id == job_id]
            if not found:
                return
            ended = ledger.end_escalation(found[0].id, how="requeued", by="ada")
            if not isinstance(ended, ClaimRefused) and ended.publication is not None:
                publisher.publish([ended.publication])

        self.person(act, f"requeue {job_id}")

    def bulk(self, how: EscalationEnd, task_type: str) -> None:
        """End all escalations of a task type by a bulk action, which a control worker runs."""

        def act(ledger: RedisLedger, _publisher: Publisher) -> None:
            which = EscalationFilter(task_type=task_type)
            found = select(ledger, which)
            if how == "cancelled":
                self.world.checker.cancelled_ids |= {each.job_id for each in found}
            action, ids = EndAction(how=how, by="ada"), [each.id for each in found]
            bulk = ledger.bulk_actions.create(action, which, ids, per_second=2)
            self.world.note(None, f"bulk action {bulk.id}: {len(ids)} are to be {how}")

        self.person(act, f"bulk: {how} {task_type}")

    def outbox(self, verb: Literal["retry", "drop"]) -> None:
        """Send everything in quarantine again, or drop it."""

        def act(ledger: RedisLedger, _publisher: Publisher) -> None:
            if verb == "drop":
                self.world.checker.dropped |= {e.id for e in ledger.quarantine.entries()}
                ledger.quarantine.drop(None, by="ada")
            else:
                ledger.quarantine.retry(None, by="ada")

        self.person(act, f"outbox {verb} --all")

    def cancel(self, job_id: str) -> None:
        self.person(lambda ledger, _: ledger.cancel(job_id), f"cancel {job_id}")

    def pause(self, what: str) -> None:
        self.person(lambda ledger, _: ledger.pause(what), f"pause {what}")

    def resume(self, what: str) -> None:
        self.person(lambda ledger, _: ledger.resume(what), f"resume {what}")


def report(score: float, *, prompt: str = "In quite other words, please.") -> ReportedAttempt:
    """Return what a subject reports: an answer, its score, and the prompt that it answered."""
    usage = Usage(total_tokens=TOKENS)
    return ReportedAttempt(score=score, answer=f"{score:g}", prompt=prompt, tokens=usage)


def describe(outcome: Outcome) -> str:
    if isinstance(outcome, ClaimRefused):
        return f"refused: {outcome.reason} {outcome.detail}".rstrip()
    return type(outcome).__name__
