"""Regressions of a loop on a repository: loops that break, sweeps until nothing moves, checks."""

from __future__ import annotations

from typing import Any

from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Output
from mulligan.policies.regressions.record import Regression
from mulligan.tasks.jobs import verify
from mulligan.tasks.loops.regression_checks import TASK_TYPE
from mulligan.tasks.ports.ledger import Claim, JobView
from mulligan.tasks.ports.verifiers import Verifier
from support.coding_loop import CodingLoop, item

#: An agent whose item BREAK empties the file of A, unless it is told about the regression.
BREAKS = """
write(f"{item}.txt", "done\\n")
if item == "BREAK" and "Regression:" not in prompt:
    write("A.txt", "broken\\n")
"""


def settle(fleet: CodingLoop) -> None:
    """Sweep and run until nothing is found and nothing is left to do."""
    for _ in range(60):
        fleet.run()
        before = fleet.loop.version
        fleet.sweep()
        fleet.run()
        log = fleet.loop.regressions
        looks = fleet.loop.rollback or log.check or log.searching
        if fleet.loop.version == before and not looks:
            return
        fleet.clock.shift += fleet.settings.lease / 3
    raise AssertionError(f"it does not end: {fleet.loop.regressions}")


def found(fleet: CodingLoop) -> list[Regression]:
    return list(fleet.loop.regressions.found)


def chain(*names: str, **fields: Any) -> list[dict[str, Any]]:
    """Return items that are done one after the other."""
    before = ("", *names)
    return [item(n, *filter(None, [b]), **fields) for n, b in zip(names, before, strict=False)]


def check_jobs(fleet: CodingLoop) -> list[JobView]:
    return [each for each in fleet.ledger.jobs(limit=500) if each.job.task_type == TASK_TYPE]


def checks(fleet: CodingLoop) -> int:
    return len(check_jobs(fleet))


class Surroundings:
    """What the checks of commits need besides the commit: they fail while it is away."""

    away = False

    def check(
        self, claim: Claim, output: Output, index: int, verifier: Verifier
    ) -> VerificationResult:
        result = verify.check_one(claim, output, index, verifier)
        status = VerificationStatus.FAIL if self.away else result.status
        return result.model_copy(update={"status": status})
