"""A deployment for scripted traces: nothing happens by chance, only what the test asks for."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from mulligan.tasks.ports.ledger import JobView
from simulation.faults import Fault
from simulation.loop_processes import ITEM_QUEUES
from simulation.processes import QUEUES, Fleet
from simulation.providers import make_job
from simulation.world import World

#: Simulated seconds after which a drained run must have ended.
_DRAIN_LIMIT = 4000.0


class Simulation:
    """A world with workers and sweeps. Use it as a context manager; see `simulation`."""

    def __init__(
        self,
        *,
        workers: int = 2,
        slots: int = 1,
        earlier: int = 0,
        sweeps: int = 1,
        controls: int = 0,
        planners: int = 0,
        repositories: int = 0,
        monitors: int = 0,
        chance: random.Random | None = None,
        **world: Any,
    ) -> None:
        self.world = World(chance=chance, **world)
        self.fleet = Fleet(self.world, slots=slots, queues=ITEM_QUEUES if planners else QUEUES)
        self._number = 0
        self._subjects: set[str] = set()
        self._draining = False
        self.world.on_crash = self._replace
        for _ in range(workers):
            self.fleet.start_worker()
        for _ in range(earlier):
            self.fleet.start_worker(earlier=True)
        for _ in range(sweeps):
            self.fleet.start_sweep(self._sweep_interval)
        for _ in range(planners):
            self.fleet.loops.start_planner()
        for _ in range(repositories):
            self.fleet.loops.start_repository_sweep(self._control_interval)
        for _ in range(monitors):
            self.fleet.loops.start_monitor(self._control_interval)
        for _ in range(controls):
            self.fleet.start_control(self._control_interval)

    def __enter__(self) -> Simulation:
        self.world.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.world.__exit__(*error)

    # -- steps ------------------------------------------------------------------------------------

    def submit(self, *scores: float, name: str | None = None, tries: int = 1, **job: Any) -> str:
        """Submit a job whose attempts get these scores; the last one repeats. Return its id.

        ``provider``, ``seconds`` (per answer), ``slow`` (slow verifiers) and ``same_failure``
        describe the job's shape; other options are fields of the job.
        """
        self._number += 1
        made = make_job(list(scores), **job)
        if made.subject is not None and made.subject not in self._subjects:
            self._subjects.add(made.subject)
            self.fleet.start_subject(made.subject)
        return self.fleet.submit(name or f"job{self._number}", made, tries=tries)

    def report(self, *scores: float, key: str = "key") -> str:
        """Report first attempts of a subject with these scores at once. Return the job's id."""
        if "mia" not in self._subjects:
            self._subjects.add("mia")
            self.fleet.start_subject("mia")
        for score in scores:
            self.fleet.start_reporter(key, score)
        return self.fleet.reported_id(key)

    def fault(self, kind: str, call: str, nth: int = 1, **options: Any) -> None:
        """Plan a fault at the nth call of a port from now on: see simulation/faults.py."""
        self.world.plan.add(Fault(kind=kind, call=call, nth=nth, **options))

    def run(self, seconds: float) -> None:
        self.world.scheduler.run(seconds=seconds)

    def cancel(self, job_id: str) -> None:
        self.world.checker.cancelled_ids.add(job_id)
        self.fleet.cancel(job_id)

    def item_job(self, loop: str, item: str) -> str | None:
        """Return the job of an item's last run, if it has one."""
        found = self.world.checker.loops.items(loop).get(item)
        return found.job_id if found and found.job_id else None

    def requeue(self, job_id: str) -> None:
        self.fleet.requeue(job_id)

    def pause(self, what: str) -> None:
        """Pause ``queue:NAME``, ``task_type:NAME`` or ``provider:NAME``."""
        self.fleet.pause(what)

    def resume(self, what: str) -> None:
        self.fleet.resume(what)

    def calls(self, call: str) -> int:
        """Return how often a port was called so far, by all processes."""
        return self.world.plan.count(call)

    def view(self, job_id: str) -> JobView:
        found = self.world.outside_ledger().job(job_id)
        assert found is not None, f"{job_id} is not in the ledger"
        return found

    # -- the end ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """End all faults and run until nothing is left to do."""
        world = self.world
        world.note(None, "-- drain")
        world.plan.active = False
        self._draining = True
        world.server.refusal, world.server.away, world.broker.away = None, False, False
        world.heal_providers()
        world.broker.unsendable.clear()
        world.receivers.away = False
        world.repositories.away = False
        ledger = world.outside_ledger()
        for what in ledger.paused():
            ledger.resume(what)
        # What cannot be sent again is of no use any more.
        ledger.quarantine.retry(None, by="drain")
        world.checker.dropped |= {each.id for each in ledger.quarantine.entries()}
        ledger.quarantine.drop(None, by="drain")
        if not any(self._is_live_worker(process) for process in world.processes):
            self.fleet.start_worker()
        if world.checker.loops.specs:
            self.rest()
            world.checker.loops.check_rest()
            self.fleet.loops.unlimited()
            self.rest()
        end = world.scheduler.now + _DRAIN_LIMIT
        while world.scheduler.now < end:
            world.scheduler.run(seconds=5.0)
            if not world.checker.unfinished():
                break
        world.scheduler.run(seconds=1.0)  # messages that were already on their way

    def rest(self) -> None:
        """Run until nothing moves by itself. Time jumps to what is due much later."""
        scheduler, loops, quiet = self.world.scheduler, self.world.checker.loops, 0
        end = scheduler.now + _DRAIN_LIMIT
        while scheduler.now < end:
            scheduler.run(seconds=5.0)
            quiet = 0 if loops.moving() else quiet + 1
            if quiet < 3:
                continue
            due = loops.next_entry()
            if due is None:
                return
            end += due - scheduler.now
            scheduler.now, quiet = due, 0

    def violations(self) -> list[str]:
        """Drain, and return what is wrong."""
        self.drain()
        return self.world.checker.check()

    def check(self) -> None:
        """Drain, and fail with the trace if an invariant is violated."""
        found = self.violations()
        trace = [str(step) for step in self.world.trace if not step.idle]
        assert not found, "\n".join([*found, *trace])

    def _sweep_interval(self) -> float:
        return self.world.chance.uniform(0.5, 3.0) if self.world.random else 1.0

    def _control_interval(self) -> float:
        return self.world.chance.uniform(2.0, 5.0) if self.world.random else 1.0

    @staticmethod
    def _is_live_worker(process: Any) -> bool:
        return process.name.startswith("worker") and not process.dead

    def _replace(self, process: Any) -> None:
        """A supervisor starts another worker for one that crashed."""
        name, later = process.name, self.world.scheduler.now + 2.0
        start: Callable[[], object] | None = None
        if name.startswith(("worker", "earlier")):
            start = partial(self.fleet.start_worker, earlier=name.startswith("earlier"))
        elif name.startswith("sweep"):
            start = partial(self.fleet.start_sweep, self._sweep_interval)
        elif name.startswith("planner"):
            start = self.fleet.loops.start_planner
        elif name.startswith("repository"):
            start = partial(self.fleet.loops.start_repository_sweep, self._control_interval)
        elif name.startswith("monitor"):
            start = partial(self.fleet.loops.start_monitor, self._control_interval)
        elif name.startswith("control"):
            start = partial(self.fleet.start_control, self._control_interval)
        elif name.startswith("subject"):
            start = partial(self.fleet.start_subject, name.removeprefix("subject-"))
        elif name.startswith("reporter"):
            _, key, score = name.split("-")
            start = partial(self.fleet.start_reporter, key, float(score))
        if start is not None:
            self.world.scheduler.at(later, start)
