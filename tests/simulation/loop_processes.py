"""Planners, and people who create, change and stop loops: each runs the real verbs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mulligan.policies.coordination.order import OrderWord
from mulligan.policies.jobs.job import Workspace
from mulligan.policies.loops.commands import Verb
from mulligan.policies.loops.spec import LoopDocument
from mulligan.tasks.coordination import orders
from mulligan.tasks.loops import change
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.draft import request_draft
from mulligan.tasks.loops.monitor import reconcile, run_monitor
from mulligan.tasks.loops.plan import run_plan
from mulligan.tasks.loops.repository_sweep import RepositorySweep
from mulligan.tasks.loops.rollback import read_checkpoints, request_rollback
from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable, RepositoryUnavailable
from mulligan.tasks.ports.ledger import Entry, Requester
from mulligan.workers.ledger.redis_ledger import RedisLedger
from simulation.drafts import draft_request
from simulation.scheduler import Crashed, Process
from simulation.world import PRODUCER_PATIENCE

if TYPE_CHECKING:
    from simulation.processes import Fleet

#: The queues of the workers that run items: those of agents and, as fallbacks, the others.
ITEM_QUEUES = ("agent.repair", "repair", "agent", "attempt", "verify")
_ADA = Requester(by="ada")
#: Seconds for which the work of ended items is kept.
WORK_RETENTION = 45.0
#: How often a process that looks after repositories begins afresh.
_AFRESH = 0.1


class LoopFleet:
    """Starts planners and people in a world."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._world = fleet.world
        self._planners = 0
        self._repository_sweeps = 0
        self._monitors = 0
        self._keys = 0
        #: Loop → the job that drafts it.
        self.drafts: dict[str, str] = {}

    # -- planners ---------------------------------------------------------------------------------

    def start_planner(self) -> Process:
        """Start a process that takes hints from the queue of loops."""
        world, process = self._world, self._next_planner()
        context = self.context(process, world.ledger(process))

        def run() -> None:
            while True:
                message = world.broker.take(process, ("loop",))
                entry = Entry.parse(message.args[0])
                world.note(process, f"received {message.task} {entry}")
                try:
                    self._plan(process, context, entry.loop)
                except Crashed:
                    world.broker.lost_by_crash(message)
                    raise

        world.scheduler.spawn(process, run)
        return process

    def plan(self, loop: str) -> None:
        """Plan a loop in a process of its own, whoever else plans it."""
        process = self._next_planner()
        context = self.context(process, self._world.ledger(process))
        self._world.scheduler.spawn(process, lambda: self._plan(process, context, loop))

    def _next_planner(self) -> Process:
        self._planners += 1
        return self._world.process(f"planner{self._planners}")

    def _plan(self, process: Process, context: LoopContext, loop: str) -> None:
        try:
            planned = run_plan(context, loop)
        except LedgerUnavailable as error:
            self._world.note(process, f"gave up {loop}: {error}")
        else:
            admitted = [f"{each.loop}/{each.candidate.item}" for each in planned.admitted]
            state = planned.change.state or ""
            self._world.note(process, f"planned {loop}: {planned.result} {state} {admitted}")

    def context(self, process: Process, ledger: RedisLedger) -> LoopContext:
        world = self._world

        def step(name: str, loop: str) -> None:
            world.after(process, world.before(process, name, loop))

        def pin(space: Workspace) -> Workspace:
            if space.git is None:
                return space
            commit = world.repositories.open(process, space.git).resolve(space.ref)
            return space.model_copy(update={"commit": commit})

        def files(git: str, commit: str) -> dict[str, bytes]:
            found = world.repositories.open(process, git).files(commit)
            return {path: text.encode() for path, text in found.items()}

        intake = self._fleet.intake(process, ledger, "")
        intake = replace(intake, new_id=ledger.new_id, snapshot=pin)
        return LoopContext(
            ledger=ledger,
            intake=intake,
            publish=intake.publish,
            slots=lambda: world.settings.loop_slots,
            price=lambda _runner: None,
            repository=partial(world.repositories.open, process),
            work_retention=WORK_RETENTION,
            ageing=lambda: world.settings.loop_ageing,
            lock_ttl=world.settings.lock_ttl,
            files=files,
            step=step,
        )

    def start_monitor(self, interval: Callable[[], float]) -> Process:
        """Start a process that looks at loops again and again, and breaks their deadlocks."""
        self._monitors += 1
        world, process = self._world, self._world.process(f"monitor{self._monitors}")

        def run() -> None:
            context = self.context(process, world.ledger(process))
            while True:
                world.scheduler.sleep(process, interval())
                self._monitor(process, context)

        world.scheduler.spawn(process, run)
        return process

    # -- repositories -----------------------------------------------------------------------------

    def start_repository_sweep(self, interval: Callable[[], float]) -> Process:
        """Start a process that looks after repositories again and again."""
        self._repository_sweeps += 1
        world, process = self._world, self._world.process(f"repository{self._repository_sweeps}")

        def run() -> None:
            context = self.context(process, world.ledger(process))
            sweep = RepositorySweep(context)
            while True:
                world.scheduler.sleep(process, interval())
                if world.random and world.chance.random() < _AFRESH:
                    sweep = RepositorySweep(context)  # which proves everything again
                self._look_after(process, sweep)
                self._monitor(process, context)

        world.scheduler.spawn(process, run)
        return process

    def _look_after(self, process: Process, sweep: RepositorySweep) -> None:
        try:
            sweep.run()
            sweep.deliver()
        except LedgerUnavailable as error:
            self._world.note(process, f"gave up: {error}")

    def _monitor(self, process: Process, context: LoopContext) -> None:
        try:
            # No key is ever lost here, so that nothing is listed as running that does not.
            assert reconcile(context) == 0
            run_monitor(context)
        except LedgerUnavailable as error:
            self._world.note(process, f"gave up: {error}")

    def draft(self, loop: str, *answers: str) -> None:
        """Ask for a draft of a loop, which is created and started when an answer passes."""
        asked, made = draft_request(loop, *answers)
        self._world.checker.loops.created(made)

        def act(context: LoopContext) -> None:
            self.drafts[loop] = request_draft(context, asked, key=loop).id

        self.person(act, f"draft {loop}", tries=20)

    def roll_back(self, loop: str, *, item: str | None = None, place: float = 0.0) -> None:
        """Ask for a rollback of an item, or to the checkpoint at a place: 0 is the newest."""

        def act(context: LoopContext) -> None:
            reading = context.ledger.read_loop(loop)
            if reading is None:
                return
            if item is not None:
                request_rollback(context, loop, _ADA, item=item)
            elif found := read_checkpoints(context, reading.snapshot):
                to = found[int(place * len(found))].commit
                request_rollback(context, loop, _ADA, to=to[:12])

        self.person(act, f"roll back {item or f'to {place:g}'} in {loop}")

    def push(self, loop: str, branch: str, path: str) -> None:
        """Let a person put a commit on a branch, beside the loop."""
        config = self._world.checker.repositories.configs.get(loop)
        if config is not None and config.repo is not None:
            process = self._world.process("person")
            self._world.note(process, f"push {path} to {branch}")
            repositories = self._world.repositories
            repositories.push(repositories.model(config.repo), branch, path)

    # -- people -----------------------------------------------------------------------------------

    def create(self, document: LoopDocument) -> None:
        """Create and start a loop. A person tries again if it works in a repository."""
        name = document.loop.name
        self._world.checker.loops.created(document)

        def act(context: LoopContext) -> None:
            change.create_loop(context, document, by="ada")
            change.move(context, name, "start", _ADA)

        def act_again(context: LoopContext) -> None:
            with contextlib.suppress(change.LoopConflict):  # an answer was lost
                change.create_loop(context, document, by="ada")
            change.move(context, name, "start", _ADA)

        if document.loop.repo is None:
            self.person(act, f"create {name}")
        else:
            self.person(act_again, f"create {name}", tries=6)

    def move(self, loop: str, verb: Verb) -> None:
        self.person(lambda context: change.move(context, loop, verb, _ADA), f"{verb} {loop}")

    def configure(self, loop: str, values: dict[str, Any]) -> None:
        self.person(
            lambda context: change.configure(context, loop, values, _ADA),
            f"configure {loop} {values}",
        )

    def reset(self, loop: str, item: str) -> None:
        """Reset an item with an idempotency key, twice: the second time has no effect."""
        self._keys += 1
        caller = Requester(by="ada", key=f"key{self._keys}", digest=f"reset {item}")

        def act(context: LoopContext) -> None:
            for _ in range(2):
                change.reset(context, loop, item, caller)

        self.person(act, f"reset {loop}/{item}")

    def skip(self, loop: str, item: str) -> None:
        self.person(
            lambda context: change.skip(context, loop, item, _ADA, reason="not needed"),
            f"skip {loop}/{item}",
        )

    def inject(self, loop: str, document: LoopDocument) -> None:
        self._world.checker.loops.injected(loop, document.items)
        self.person(
            lambda context: change.inject(context, loop, document.items, _ADA),
            f"inject {[item.id for item in document.items]} into {loop}",
        )

    def order(self, loop: str, item: str, word: OrderWord | None) -> None:
        self.person(
            lambda context: orders.give_order(context, loop, item, word, _ADA),
            f"order {word} for {loop}/{item}",
        )

    def overrule(self, place: float) -> None:
        """Overrule the decision at a place: 0 is the newest."""

        def act(context: LoopContext) -> None:
            if found := context.ledger.coordination(limit=20).decisions:
                orders.overrule(context, found[int(place * len(found))].id, _ADA)

        self.person(act, f"overrule {place:g}")

    def emit(self, event: str) -> None:
        self.person(
            lambda context: orders.emit(context, event, tenant="", by="ada"), f"emit {event}"
        )

    def set_slots(self, slots: int) -> None:
        self.person(lambda context: change.set_slots(context, slots), f"set {slots} slots")

    def person(self, act: Callable[[LoopContext], Any], what: str, *, tries: int = 1) -> None:
        """Let a person change loops, up to ``tries``. What is not possible is refused."""
        world = self._world
        process = world.process("person")

        def run() -> None:
            world.note(process, what)
            ledger = world.ledger(process, patience=PRODUCER_PATIENCE)
            for left in reversed(range(tries)):
                try:
                    act(self.context(process, ledger))
                except (LedgerUnavailable, RepositoryUnavailable, BadInput) as error:
                    world.note(process, f"gave up: {error}")
                    if left:
                        world.scheduler.sleep(process, 5.0)
                else:
                    return

        world.scheduler.spawn(process, run)

    def unlimited(self) -> None:
        """Remove every shared limit and let every loop with running items go on, without faults."""
        process = self._world.process("drain")
        context = self.context(process, self._world.outside_ledger())
        unlimited = {scope: {"tokens": None} for scope in ("loop", "day")}
        silent = LoopContext(
            ledger=context.ledger,
            intake=context.intake,
            publish=lambda _: None,  # the sweep publishes it
            slots=context.slots,
            price=context.price,
        )
        for loop in context.ledger.loops():
            change.configure(silent, loop.name, {"budget": unlimited}, _ADA)
            if loop.state == "paused":
                change.move(silent, loop.name, "resume", _ADA)
            for item in list(self._world.checker.loops.items(loop.name)):
                if self._world.checker.loops.coordination.held(loop.name)(item):
                    orders.give_order(silent, loop.name, item, None, _ADA)
                    self._world.checker.loops.coordination.unsay(loop.name, item)
            if loop.state == "stopped" and self._world.checker.loops.running(loop.name):
                change.move(silent, loop.name, "start", _ADA)
