"""A fleet in one thread: what is published runs at once, through the real verbs and services."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mulligan.policies.loops.spec import LoopDocument
from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.outcome import Outcome
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.jobs.verify import run_verification
from mulligan.tasks.loops import change
from mulligan.tasks.loops.plan import run_plan
from mulligan.tasks.ports.ledger import Entry, Publication, Requester
from mulligan.workers.celery.broker.queues import QUEUES
from mulligan.workers.celery.leases import LeaseKeeper
from mulligan.workers.ledger.redis_ledger import RedisLedger
from mulligan.workers.services import Services, build_services
from mulligan.workers.settings.model import Settings
from support.doubles import fake_ledger

ADA = Requester(by="ada")


class InlineFleet:
    """Runs everything that is published, one after the other."""

    def __init__(
        self,
        home: Path,
        *,
        open_ledger: Callable[[Settings], RedisLedger] = fake_ledger,
        **settings: Any,
    ) -> None:
        self.settings = Settings(
            home=home, repository_cache=home.parent / "cache", allow_inline=True, **settings
        )
        self.ledger = open_ledger(self.settings)
        self.waiting: deque[Publication] = deque()
        self.outcomes: list[Outcome] = []
        self.services: Services = build_services(
            self.settings,
            self.ledger,
            publish=self._publish,
            leases=LeaseKeeper(self.ledger, interval=self.settings.lease / 3),
            local_paths=True,
        )

    def _publish(self, publications: Sequence[Publication]) -> None:
        self.waiting.extend(publications)
        self.ledger.stamp([each.entry for each in publications])

    def create(self, document: LoopDocument) -> None:
        """Create and start a loop."""
        change.create_loop(self.services.loops, document, by="ada")
        change.move(self.services.loops, document.loop.name, "start", ADA)

    def run(self, *, until: Callable[[], bool] = lambda: False, most: int = 1000) -> list[Outcome]:
        """Run until nothing is left to do."""
        for _ in range(most):
            if until():
                break
            if not self.waiting:
                self._publish(self.ledger.sweep(empty_queues=QUEUES))
            if not self.waiting:
                break
            self.step(self.waiting.popleft().entry)
        return self.outcomes

    def step(self, entry: Entry) -> None:
        context = self.services.context
        match entry.kind:
            case "attempt":
                self.outcomes.append(run_attempt(context, entry))
            case "verification":
                self.outcomes.append(run_verification(context, entry))
            case "cycle":
                self.outcomes.append(run_recheck(context, entry))
            case "loop":
                run_plan(self.services.loops, entry.loop)
            case "done":
                pass

    def states(self, loop: str) -> dict[str, str]:
        """Return the state of each item."""
        reading = self.ledger.read_loop(loop)
        assert reading is not None
        return {name: record.state for name, record in reading.snapshot.items.items()}
