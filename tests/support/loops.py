"""Loops on a ledger: created, planned and worked on step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.console.http.context import ConsoleContext
from mulligan.policies.coordination.file_index import ComparedFiles
from mulligan.policies.loops.commands import Verb
from mulligan.policies.loops.loop import ItemRecord, LoopRecord
from mulligan.policies.loops.spec import LoopDocument
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.loops import change
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.plan import Planned, run_plan
from mulligan.tasks.ports.ledger import (
    Claim,
    ClaimRefused,
    Entry,
    LoopReading,
    Publication,
    Requester,
    Settlement,
)
from support.jobs import answer
from support.ledger_scenario import Scenario, intake_of
from support.settlements import escalates, succeeds

ADA = Requester(by="ada")


def item(name: str, *depends_on: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "prompt": f"Do {name}.",
        "depends_on": list(depends_on),
        "verifiers": ["json.object"],
        **fields,
    }


def document(*items: dict[str, Any], name: str = "alpha", **config: Any) -> LoopDocument:
    runner = {"kind": "scripted", "answers": ["{}"]}
    loop = {"name": name, "runner": runner, "concurrency": 10, **config}
    return LoopDocument.model_validate({"loop": loop, "items": list(items)})


@dataclass
class LoopScenario:
    """Loops on a scenario's ledger. Hints are collected, not run."""

    scenario: Scenario
    slots: int = 10
    price: float | None = None
    published: list[Publication] = field(default_factory=list)
    #: The workspaces that planners kept from expiring.
    kept: list[str] = field(default_factory=list)
    compared: ComparedFiles = field(default_factory=ComparedFiles)

    @property
    def context(self) -> LoopContext:
        return LoopContext(
            ledger=self.scenario.ledger,
            intake=intake_of(self.scenario),
            publish=self.published.extend,
            slots=lambda: self.slots,
            price=lambda _: self.price,
            keep=self.kept.append,
            compared=self.compared,
            provider=lambda name: self.scenario.ledger.breakers.all().get(name),
        )

    def create(self, *items: dict[str, Any], name: str = "alpha", **config: Any) -> str:
        """Create and start a loop, and return its name."""
        change.create_loop(self.context, document(*items, name=name, **config), by="ada")
        self.move("start", name)
        return name

    def move(self, verb: Verb, name: str = "alpha") -> None:
        change.move(self.context, name, verb, ADA)

    def plan(self, name: str = "alpha") -> Planned:
        return run_plan(self.context, name)

    def read(self, name: str = "alpha") -> LoopReading:
        reading = self.scenario.ledger.read_loop(name)
        assert reading is not None
        return reading

    def loop(self, name: str = "alpha") -> LoopRecord:
        return self.read(name).snapshot.loop

    def item(self, item: str, name: str = "alpha") -> ItemRecord:
        return self.read(name).snapshot.items[item]

    def states(self, name: str = "alpha") -> dict[str, str]:
        return {item: record.state for item, record in self.read(name).snapshot.items.items()}

    def admitted(self, name: str = "alpha") -> list[str]:
        """Plan a loop and return the items that got a slot."""
        return [each.candidate.item for each in self.plan(name).admitted]

    # -- workers ----------------------------------------------------------------------------------

    def claim(self, item: str, number: int = 1, *, name: str = "alpha") -> Claim:
        return self.scenario.claim(self.item(item, name).job_id, number)

    def refusal(self, item: str, number: int = 1, *, name: str = "alpha") -> ClaimRefused:
        return self.scenario.refusal(self.item(item, name).job_id, number)

    def settle(self, claim: Claim, settlement: Settlement) -> list[Publication]:
        published = self.scenario.ledger.settle(claim.lease, settlement)
        assert not isinstance(published, ClaimRefused), published
        return published

    def passes(self, item: str, *, name: str = "alpha", tokens: int | None = 10) -> None:
        claim = self.claim(item, name=name)
        self.scenario.ledger.store_output(claim.lease, answer(tokens=tokens))
        self.settle(claim, succeeds(claim))

    def fails(self, item: str, reason: str = "max_attempts", *, name: str = "alpha") -> None:
        claim = self.claim(item, name=name)
        self.scenario.ledger.store_output(claim.lease, answer())
        self.settle(claim, escalates(claim, reason))

    def hints(self, publications: Sequence[Publication]) -> list[str]:
        return [each.entry.loop for each in publications if each.entry.kind == "loop"]


def work_on_loop(context: ConsoleContext, name: str = "alpha") -> None:
    """Plan a loop and run its items in this process until nothing is left, as workers would."""
    for _ in range(10):
        run_plan(context.services.loops, name)
        reading = context.ledger.read_loop(name)
        assert reading is not None
        running = [r.job_id for r in reading.snapshot.items.values() if r.state == "running"]
        if not running:
            return
        for job_id in running:
            for number in range(1, 4):
                run_attempt(context.services.context, Entry("attempt", job_id, number))


def used(reading: LoopReading) -> Mapping[str, float]:
    """Return what a loop has used, by names such as ``loop:tokens``."""
    return {f"{scope}:{what}": n for (scope, what), n in reading.snapshot.used.items()}


def hint(name: str = "alpha") -> Entry:
    return Entry("loop", f"p00-{name}", 1)
