"""Scenarios: what one seed decides. Each part has a key, so that a failing run can be shrunk."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simulation.coordination_scenario import COORDINATION_CALLS, with_coordination
from simulation.drafts import PlannedDraft
from simulation.faults import (
    BROKER_FAULTS,
    PROCESS_FAULTS,
    PROVIDER_FAULTS,
    PUSH,
    RECEIVER_FAULTS,
    REDIS_FAULTS,
    REFUSALS,
    REPOSITORY_FAULTS,
    VERIFIER_FAULTS,
    Fault,
)
from simulation.loop_scenario import (
    LOOP_CALLS,
    PUSH_CALLS,
    REPOSITORY_CALLS,
    LoopAction,
    PlannedLoop,
    generate_loops,
)
from simulation.regression_scenario import REGRESSION_CALLS, with_regressions
from simulation.simulation import Simulation
from simulation.world import STEPS, Step

#: Every second seed from here on has loops. Those of the corpus before it stay as they were.
FIRST_WITH_LOOPS = 1000
#: Every second one of those from here on has loops that work in a repository.
FIRST_WITH_REPOSITORIES = 2000
#: The loops of those from here on have to do with each other.
FIRST_WITH_COORDINATION = 3000
#: The items of loops with a repository from here on break each other's work; some are drafted.
FIRST_WITH_REGRESSIONS = 4000
#: Simulated seconds in which faults happen; then the run is drained.
DURATION = 100.0
#: Where faults happen: port calls and their weights.
_CALLS = {
    "accept": 2,
    "claim": 4,
    "store_output": 4,
    "settle": 5,
    "stamp": 2,
    "requeue": 2,
    "renew": 2,
    "sweep": 3,
    "claim_verification": 2,
    "store_result": 3,
    "claim_cycle": 2,
    "settle_cycle": 2,
    "store_cycle_output": 1,
    "next_of_lane": 1,
    "hold": 1,
    "cancel": 1,
    "end_escalation": 1,
    "hgetall": 1,
    "swap": 1,
    "publish": 7,
    "answer": 4,
    "verify": 2,
    "fail": 1,
    "quarantined": 1,
    "alerts": 1,
    "deliveries": 2,
    "bulk": 2,
    "post": 2,
}
#: The longest time of a fault that lasts, in simulated seconds. A lease lasts 10.
_LONGEST = {
    "freeze_before": 40.0,
    "freeze_after": 40.0,
    "slow": 15.0,
    "redis_away": 40.0,
    "redis_refuses": 40.0,
    "redis_restart": 5.0,
    "delay": 60.0,
    "duplicate": 30.0,
    "broker_away": 20.0,
    "provider_away": 30.0,
    "provider_limit": 40.0,
    "provider_unpaid": 90.0,
    "unsendable": 60.0,
    "receiver_away": 40.0,
    "repository_away": 40.0,
}
_SCORES = ([90], [100], [40, 90], [40, 90], [60, 50, 90], [40, 50, 60, 95], [10], [0])


@dataclass(frozen=True)
class PlannedJob:
    at: float
    name: str
    scores: list[float]
    fields: dict[str, Any]
    tries: int = 1

    def __str__(self) -> str:
        return f"{self.at:6.1f} s: {self.name} with scores {self.scores}, {self.fields}"


@dataclass(frozen=True)
class Action:
    """Something that a person does."""

    at: float
    kind: str
    target: str

    def __str__(self) -> str:
        return f"{self.at:6.1f} s: {self.kind} {self.target}"


@dataclass
class Scenario:
    """A seed and what follows from it, by key.

    Jobs (j0…), faults (f0…), actions (a0…, o0…), loops (l0…), a draft of one (d0), what people do
    to loops (p0…), and commits of theirs on the loops' branches (c0…).
    """

    seed: int
    options: dict[str, Any]
    parts: dict[str, PlannedJob | Fault | Action | PlannedLoop | PlannedDraft | LoopAction] = field(
        default_factory=dict
    )

    def only(self, keep: Collection[str]) -> Scenario:
        """Return the scenario without the other parts."""
        kept = {key: part for key, part in self.parts.items() if key in keep}
        return Scenario(self.seed, self.options, kept)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.options}"]
        return "\n".join(lines + [f"  {key:>3}  {part}" for key, part in self.parts.items()])


@dataclass
class Result:
    violations: list[str]
    trace: list[Step]
    steps: int


def has_loops(seed: int) -> bool:
    return seed >= FIRST_WITH_LOOPS and seed % 2 == 1


def has_repositories(seed: int) -> bool:
    return seed >= FIRST_WITH_REPOSITORIES and seed % 4 == 1


def generate(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    chance = random.Random(seed)
    options = {
        "workers": chance.randint(1, 4),
        "slots": chance.choice([1, 1, 2, 4]),
        "earlier": chance.choice([0, 0, 1]),
        "sweeps": chance.choice([1, 1, 2]),
        "acks": chance.random() < 0.3,
        "controls": chance.choice([0, 0, 1, 2]),
        "partitions": chance.choice([1, 1, 2, 3]),
        "redis_version": chance.choice([6, 7]),
        "quotas": {"small": {"concurrency": 1}},
    }
    scenario = Scenario(seed, options)
    calls, count, most = _CALLS, chance.randint(1, 12), 7
    if has_loops(seed):
        options |= {"planners": chance.choice([1, 1, 2]), "loop_slots": chance.randint(1, 3)}
        loops = generate_loops(chance, repositories=has_repositories(seed))
        calls, count = {**_CALLS, **LOOP_CALLS}, min(count, 3)
        if seed >= FIRST_WITH_COORDINATION:
            options |= {
                "monitors": chance.choice([1, 1, 2]),
                "loop_ageing": chance.choice([0, 2, 10, 600]),
                "lock_ttl": chance.choice([5, 30, 600]),
            }
            loops, calls = with_coordination(chance, loops), {**calls, **COORDINATION_CALLS}
        if has_repositories(seed) and seed >= FIRST_WITH_REGRESSIONS:
            loops, calls = with_regressions(chance, loops), {**calls, **REGRESSION_CALLS}
            if chance.random() < 0.4:
                scenario.parts["d0"] = PlannedDraft(round(chance.uniform(0, 20), 1), "drafted")
        scenario.parts |= loops
    if has_repositories(seed):
        options |= {"repositories": chance.choice([1, 1, 2]), "loop_slots": chance.randint(2, 5)}
        calls, count = {**calls, **REPOSITORY_CALLS}, chance.choice([0, 0, 1])
        most = 9
        for i in range(chance.randint(0, 3)):
            call, nth = chance.choice(PUSH_CALLS), 1 + int(chance.expovariate(0.3))
            scenario.parts[f"c{i}"] = Fault(kind=PUSH, call=call, nth=nth)
    for i in range(count):
        scenario.parts[f"j{i}"] = _job(chance, i)
    for i in range(chance.randint(0, most)):
        scenario.parts[f"f{i}"] = fault = _fault(chance, calls)
        if fault.kind == "unsendable":  # somebody looks at the quarantine
            verb = chance.choice(["retry", "drop"])
            scenario.parts[f"o{i}"] = Action(
                round(chance.uniform(20, 95), 1), f"outbox {verb}", "all"
            )
    for i in range(chance.randint(0, 4)):
        for part in _actions(chance, count):
            scenario.parts[f"a{i}{'b' if f'a{i}' in scenario.parts else ''}"] = part
    return scenario


def _job(chance: random.Random, number: int) -> PlannedJob:
    fields: dict[str, Any] = {
        "seconds": round(chance.choice([0.2, 1, 3, 6, 14]), 1),
        "provider": chance.choice(["alpha", "alpha", "beta"]),
        "slow": chance.choice([0, 0, 0, 1, 2]),
        "same_failure": chance.random() < 0.2,
        "priority": chance.choice([5, 5, 0, 9]),
        "task_type": chance.choice(["work", "work", "other", "read_aloud"]),
        "delayed_verification": {"after": chance.choice([1, 20, 40])},
    }
    if chance.random() < 0.25:
        fields["delayed_verification"] |= {"mode": "reformulate", "prompt": "Once more, please."}
    if chance.random() < 0.15:
        fields["deadline"] = chance.choice([30, 90])
    if chance.random() < 0.1:
        fields["budget"] = {"tokens": chance.choice([10, 25])}
    if chance.random() < 0.3:
        fields["labels"] = {"tenant": chance.choice(["small", "large"])}
    if chance.random() < 0.1:
        fields["memory_scope"] = "task_type"
    if chance.random() < 0.1:
        fields["on_done"] = {"task": "their.task", "queue": "theirs"}
    if chance.random() < 0.12:
        fields = {k: fields[k] for k in ("priority", "task_type")} | {"subject": "mia"}
    tries = 1
    if chance.random() < 0.3:
        fields["idempotency_key"] = f"key{number}"
        tries = 2
    at = round(chance.uniform(0, 20), 1)
    return PlannedJob(at, f"job{number}", list(chance.choice(_SCORES)), fields, tries)


def _fault(chance: random.Random, calls: dict[str, int]) -> Fault:
    (call,) = chance.choices(list(calls), list(calls.values()))
    kinds = dict.fromkeys(STEPS, PROCESS_FAULTS) | {
        "publish": PROCESS_FAULTS + 2 * BROKER_FAULTS + 3 * ("unsendable",),
        "answer": PROCESS_FAULTS + 2 * PROVIDER_FAULTS,
        "verify": PROCESS_FAULTS + 2 * VERIFIER_FAULTS,
        "post": PROCESS_FAULTS + 2 * RECEIVER_FAULTS,
        "loop_read": PROCESS_FAULTS,
        "loop_written": PROCESS_FAULTS,
    }
    others = PROCESS_FAULTS + (REPOSITORY_FAULTS if call.startswith("git_") else REDIS_FAULTS)
    kind = chance.choice(kinds.get(call, others))
    longest = _LONGEST.get(kind, 0.0)
    return Fault(
        kind=kind,
        call=call,
        nth=1 + int(chance.expovariate(0.25)),
        seconds=round(chance.uniform(0.3, longest), 1) if longest else 0.0,
        refusal=chance.choice(REFUSALS),
    )


def _actions(chance: random.Random, jobs: int) -> list[Action]:
    at = round(chance.uniform(0, DURATION * 0.8), 1)
    kind = chance.choice(["cancel", "requeue", "requeue", "pause", "pause", "bulk"])
    if kind == "bulk":
        how = chance.choice(["requeued", "requeued", "resolved", "cancelled"])
        return [Action(at, f"bulk {how}", chance.choice(["work", "other"]))]
    if kind != "pause":
        return [Action(at, kind, f"j{chance.randrange(max(1, jobs))}")]
    what = chance.choice(
        ["queue:attempt", "queue:repair", "queue:verify", "task_type:work", "provider:alpha"]
    )
    later = round(at + chance.uniform(1, 30), 1)
    return [Action(at, "pause", what), Action(later, "resume", what)]


def run(scenario: Scenario) -> Result:
    """Run a scenario to its end and check it."""
    options = dict(scenario.options)
    chance = random.Random(f"run {scenario.seed}")
    faults = [part for part in scenario.parts.values() if isinstance(part, Fault)]
    with Simulation(chance=chance, faults=faults, **options) as simulation:
        scheduler, start = simulation.world.scheduler, simulation.world.scheduler.now
        ids: dict[str, str] = {}
        for key, part in scenario.parts.items():
            if isinstance(part, PlannedJob):
                scheduler.at(start + part.at, _submission(simulation, key, part, ids))
            elif isinstance(part, Action):
                scheduler.at(start + part.at, _act(simulation, part, ids))
            elif isinstance(part, PlannedLoop | PlannedDraft | LoopAction):
                scheduler.at(start + part.at, partial(part.begin, simulation))
        simulation.run(DURATION)
        found = simulation.violations()
        return Result(found, simulation.world.trace, scheduler.events)


def _submission(simulation: Simulation, key: str, job: PlannedJob, ids: dict[str, str]) -> Any:
    def submit() -> None:
        ids[key] = simulation.submit(*job.scores, name=job.name, tries=job.tries, **job.fields)

    return submit


def _act(simulation: Simulation, action: Action, ids: dict[str, str]) -> Any:
    def act() -> None:
        match action.kind:
            case "pause":
                simulation.fleet.pause(action.target)
            case "resume":
                simulation.fleet.resume(action.target)
            case "bulk requeued":
                simulation.fleet.bulk("requeued", action.target)
            case "bulk resolved":
                simulation.fleet.bulk("resolved", action.target)
            case "bulk cancelled":
                simulation.fleet.bulk("cancelled", action.target)
            case "outbox retry":
                simulation.fleet.outbox("retry")
            case "outbox drop":
                simulation.fleet.outbox("drop")
            case "cancel" if action.target in ids:
                simulation.cancel(ids[action.target])
            case "requeue" if action.target in ids:
                simulation.fleet.requeue(ids[action.target])

    return act
