"""The invariants of regressions: what is broken is noticed, and the right commit is blamed.

Whether an item is broken at a commit is judged from the files, not by a job.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mulligan.policies.failures.failure import VerificationStatus
from mulligan.policies.loops.loop import PLANNED
from mulligan.policies.loops.spec import LoopConfig
from mulligan.policies.regressions.bisect import most_steps
from mulligan.policies.regressions.record import SEARCHING, Regression
from mulligan.tasks.loops.repository_sweep import LOOK_INTERVAL
from mulligan.tasks.ports.repositories import ROLLBACK_TRAILER, UNDONE_TRAILER
from simulation.agents import TreeVerifier
from simulation.repositories import Files, GitModel

if TYPE_CHECKING:
    from simulation.repository_checker import RepositoryChecker


@dataclass
class RegressionChecker:
    repositories: RepositoryChecker

    def is_moving(self, loop: str) -> bool:
        """Whether something of a loop is being verified again, or will be by its schedule."""
        row, loops = self.repositories.checker.loops.row(loop), self.repositories.checker.loops
        config = self.repositories.configs[loop]
        rules, log = config.regression_rules, loops.regressions(loop)
        if rules is None or row.get("state") not in PLANNED:
            return False
        if log.check is not None or any(each.status in SEARCHING for each in log.found):
            return True
        begun = log.full_at or float(row.get("started_at", 0)) / 1000
        now = self.repositories.checker.world.scheduler.now
        is_checked = log.full_commit == self._model(config).tip(config.target)
        return not is_checked and now - begun < rules.every + LOOK_INTERVAL + 15.0

    def check_rest(self, loop: str, state: str) -> None:
        """Check what must be true when nothing moves."""
        config = self.repositories.configs[loop]
        loops, model = self.repositories.checker.loops, self._model(config)
        log = loops.regressions(loop)
        for each in log.found:
            self._check_found(loop, model, each)
        tip = model.tip(config.target)
        if config.regression_rules is None or state not in PLANNED or tip is None:
            return
        if log.check is not None or any(each.status in SEARCHING for each in log.found):
            self._violated(f"{loop} is being verified again, but nothing moves")
        known = {each.item for each in log.found if each.is_open or each.awaits_person}
        for item, record in loops.items(loop).items():
            passed = record.state == "passed" and record.job_id and item not in known
            if passed and self._is_broken(loop, item, model.files(tip)):
                self._violated(f"{loop}/{item} passed and is broken, which nobody noticed")

    def check_delivered(self, loop: str, commit: str) -> None:
        """Invariant: what has passed and is broken is not delivered."""
        config, loops = self.repositories.configs[loop], self.repositories.checker.loops
        rules = config.regression_rules
        if rules is None or not rules.after_merge:
            return
        for item, record in loops.items(loop).items():
            passed = record.state == "passed" and record.job_id
            if passed and self._is_broken(loop, item, self._model(config).files(commit)):
                self._violated(f"{loop} was delivered at {commit[:10]}, where {item} is broken")

    def _check_found(self, loop: str, model: GitModel, found: Regression) -> None:
        """Invariant: the culprit is where the item broke last, found in as few checks as promised.

        A rollback is blamed, too, if it left the item broken without what broke it first.
        """
        name = f"the regression {found.number} of {loop}/{found.item}"
        line = model.line(found.seen) if found.seen in model.commits else []
        undone = sum(ROLLBACK_TRAILER in each.trailers for each in line)
        if found.steps > most_steps(found.commits) + undone + 1:  # and one of the good commit
            self._violated(f"{name} took {found.steps} checks for {found.commits} commits")
        if not found.culprit:
            return
        culprit = model.commits[found.culprit]
        if UNDONE_TRAILER in culprit.trailers:
            return
        ids = [each.id for each in line]
        later = ids[: ids.index(culprit.id)] if culprit.id in ids else []
        if any(not self._is_broken(loop, found.item, model.files(each), found.broken)
               for each in later):  # fmt: skip
            self._violated(f"{name} blames {found.culprit[:10]}, after which it was good again")
        before = [self._is_broken(loop, found.item, model.files(each), found.broken)
                  for each in culprit.parents[:1]]  # fmt: skip
        if any(before):
            self._violated(f"{name} blames {found.culprit[:10]}, before which it was broken")
        if not self._is_broken(loop, found.item, model.files(culprit.id), found.broken):
            self._violated(f"{name} blames {found.culprit[:10]}, with which it is good")

    def _is_broken(self, loop: str, item: str, files: Files, places: Collection[int] = ()) -> bool:
        """Whether verifiers of an item (these ones, or all) fail on files."""
        spec = self.repositories.checker.loops.specs[loop][item]
        world = self.repositories.checker.world
        verifiers = [
            TreeVerifier(world, world.processes[0], each)
            for place, each in enumerate(spec.verifiers)
            if not places or place in places
        ]
        results = [each.judge(files, files, 1) for each in verifiers]
        return any(each.status is VerificationStatus.FAIL for each in results)

    def _model(self, config: LoopConfig) -> GitModel:
        return self.repositories.checker.world.repositories.model(config.repo or "")

    def _violated(self, text: str) -> None:
        self.repositories.checker.violated(text)
