"""Regressions: verify again what has passed, find what broke it, and have it repaired.

The record in the loop says how far it is. Each step is decided from one reading and written by
compare-and-swap; a check that was submitted by a step that was not written is found by its key. So
two sweeps do nothing twice, and a crash loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mulligan.policies.loops.commands import NotPossible
from mulligan.policies.loops.loop import PLANNED, LoopChange, LoopSnapshot
from mulligan.policies.regressions.bisect import suspects
from mulligan.policies.regressions.due import ItemVerdict
from mulligan.policies.regressions.record import (
    ALL_ITEMS,
    MOST_ROUNDS,
    MOST_TRIES,
    CommitCheck,
    Regression,
    RegressionLog,
)
from mulligan.tasks.loops.change import change_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.regression_checks import (
    ChangedPaths,
    DueItems,
    due_items,
    guards_of,
    is_running,
    next_batch,
    passed_items,
    read_verdicts,
    submit_check,
    verifiers_of,
)
from mulligan.tasks.loops.regression_search import (
    BY,
    CHANGED_SURROUNDINGS,
    FAILS_AS_MERGED,
    RegressionSearch,
    RegressionStep,
    noted,
)
from mulligan.tasks.ports.ledger import LoopReading, LoopWrite, Requester, Written


@dataclass
class RegressionSweep:
    """What one process remembers of the branches that it has looked at."""

    context: LoopContext
    _paths: ChangedPaths = field(default_factory=ChangedPaths)

    def advance(self, reading: LoopReading) -> bool:
        """Take the next step for a loop that was read. Return whether something was written."""
        change = self.next_change(reading.snapshot)
        if change is None:
            return False
        self.context.step("regression_decided", reading.snapshot.loop.name)
        write = LoopWrite(reading=reading, change=change, caller=BY)
        written = self.context.ledger.write_loop(write)
        if not isinstance(written, Written):
            return False
        self.context.publish(written.publish)
        self.context.step("regression_written", reading.snapshot.loop.name)
        return True

    def next_change(self, snapshot: LoopSnapshot) -> LoopChange | None:
        """Return the next step; None if there is none now."""
        log, rules = snapshot.loop.regressions, snapshot.config.regression_rules
        if rules is None or snapshot.loop.state not in PLANNED:
            return None
        now = self.context.ledger.now()
        if ended := _ended(snapshot, now):
            others = [each.item for each in ended if each.repairs != each.item]
            return noted(log.with_found(*ended).with_asked(*others), ended)
        checks = _Checks(self.context, snapshot, rules, now, self._paths)
        running = log.check.job_id if log.check else log.searching.job_id if log.searching else ""
        if running and is_running(self.context, running):
            return None
        if log.check is not None:
            return checks.read_check(log.check)
        if log.searching is not None:
            return RegressionSearch(self.context, snapshot, rules, now).search(log.searching)
        return None if snapshot.loop.rollback else checks.check_due()

    def is_pending(self, snapshot: LoopSnapshot) -> bool:
        """Whether a check or a repair must come before the branch is delivered."""
        log, rules = snapshot.loop.regressions, snapshot.config.regression_rules
        if rules is None:
            return False
        if log.check is not None or any(each.is_open for each in log.found):
            return True
        if any(_awaits_person(snapshot, each) for each in log.found):
            return True
        now = self.context.ledger.now()
        return bool(_Checks(self.context, snapshot, rules, now, self._paths).due().items)


@dataclass
class _Checks(RegressionStep):
    """The steps of checks of the newest commit."""

    paths: ChangedPaths

    def due(self) -> DueItems:
        """Return which items are due, and why."""
        if not passed_items(self.snapshot) or not self.checkpoints:
            return DueItems(reason="merge", items=())
        return due_items(
            self.snapshot,
            self.rules,
            self.checkpoints,
            lambda old, new: self.paths.between(self.repository, old, new),
            self.now,
        )

    def check_due(self) -> LoopChange | None:
        """Begin a check of what is due. What was asked for and is being repaired is due later."""
        due, asked = self.due(), self.log.asked
        later = tuple(each for each in asked if self.log.open_of(each) is not None)
        log = self.log.model_copy(update={"asked": later})
        if not due.items:
            return LoopChange(regressions=log) if later != asked else None
        check = CommitCheck(
            number=log.next_number,
            commit=self.checkpoints[0].commit,
            reason=due.reason,
            items=(),
            rest=due.items,
            job_id="",
            at=self.now,
            until=due.until,
            full=due.full,
        )
        return LoopChange(regressions=self._go_on(log, check))

    def _go_on(self, log: RegressionLog, check: CommitCheck) -> RegressionLog:
        """Go on with the rest of a check, or end it."""
        left = {each.id: each for each in passed_items(self.snapshot) if each.id in check.rest}
        specs = [left[each] for each in check.rest if each in left and log.open_of(each) is None]
        if not specs:
            return self._ended_check(log, check)
        items, verifiers = next_batch(specs)
        part = check.model_copy(
            update={
                "number": log.next_number,
                "items": tuple(items),
                "rest": tuple(each.id for each in specs[len(items) :]),
                "tries": 0,
                "job_id": submit_check(self.context, self.snapshot, check.commit, verifiers),
                "at": self.now,
            }
        )
        return log.model_copy(update={"check": part, "next_number": part.number + 1})

    def _ended_check(self, log: RegressionLog, check: CommitCheck) -> RegressionLog:
        ended: dict[str, object] = {"check": None, "commit": check.until}
        if check.full:
            ended |= {"full_commit": check.commit, "full_at": self.now}
            if check.good and not any(each.is_kept for each in log.found):
                ended |= {"good_commit": check.commit, "good_at": self.now}
        return log.model_copy(update=ended)

    def read_check(self, check: CommitCheck) -> LoopChange | None:
        """Read what a check has found, and go on with the rest of it."""
        found, good = list[Regression](), list[str]()
        verdicts = self._verdicts(check)
        unsure = [item for item, verdict, _, _ in verdicts if verdict == "unknown"]
        if unsure and (again := self._check_again(check)) is not None:
            return again
        for item, verdict, places, said in verdicts:
            if verdict in ("good", "flaky"):
                good.append(item)
            if verdict != "good":
                number = self.log.next_number + len(found)
                each = self._found(number, item, check.commit, verdict, places, said)
                found += [each] if each is not None else []
        told = [self.told(each, each.result) for each in found if each.awaits_person]
        decided = [*good, *(each.item for each in told)]  # who decided that decides again
        log = self.log.with_good(check.commit, *good)
        log = log.with_found(*self.released(*decided), *found)
        is_good = check.good and len(good) == len(verdicts)
        log = self._go_on(log, check.model_copy(update={"good": is_good}))
        return replace(noted(log, found), heals=tuple(told))

    def _verdicts(self, check: CommitCheck) -> list[tuple[str, ItemVerdict, list[int], str]]:
        """Return what a check says about those items whose work is still what it was about."""
        specs = {item: spec for item in check.items if (spec := self.snapshot.spec(item))}
        known = [each.commit for each in self.checkpoints]
        later = {*known[: known.index(check.commit)]} if check.commit in known else {*known}
        return [
            each
            for each in read_verdicts(
                self.context,
                check.job_id,
                {item: verifiers_of(spec) for item, spec in specs.items()},
                {item: guards_of(spec) for item, spec in specs.items()},
            )
            if self.snapshot.record(each[0]).state == "passed"
            and ((merge := self.merge_of(each[0])) is None or merge.commit not in later)
        ]

    def _check_again(self, check: CommitCheck) -> LoopChange | None:
        """Repeat a check that reached no verdict about an item: of fewer items, then of that one.

        None: it was repeated often enough.
        """
        half = (len(check.items) + 1) // 2
        items = check.items[:half]
        tries = check.tries + 1 if items == check.items else 0
        if tries > MOST_TRIES:
            return None
        specs = [each for each in self.snapshot.specs if each.id in items]
        _, verifiers = next_batch(specs)
        again = check.model_copy(
            update={
                "number": self.log.next_number,
                "items": items,
                "rest": (*check.items[half:], *check.rest),
                "tries": tries,
                "job_id": submit_check(self.context, self.snapshot, check.commit, verifiers),
                "at": self.now,
            }
        )
        fields = {"check": again, "next_number": again.number + 1}
        return LoopChange(regressions=self.log.model_copy(update=fields))

    def _found(
        self,
        number: int,
        item: str,
        commit: str,
        verdict: ItemVerdict,
        places: list[int],
        said: str,
    ) -> Regression | None:
        spec = self.snapshot.spec(item)
        commits = [each.commit for each in self.checkpoints]
        if spec is None or commit not in commits or self.log.open_of(item) is not None:
            return None
        if self.log.rounds.get(item, 0) >= MOST_ROUNDS and self._awaits_person(item):
            return None  # it is still as it was when that person was told
        good, why = self._good_before(item, commits, commit)
        labels = ", ".join(spec.verifiers[i].label for i in places)
        regression = Regression(
            number=number,
            item=item,
            runs=self.snapshot.record(item).runs,
            at=self.now,
            good=good,
            bad=commit,
            seen=commit,
            broken=tuple(places),
            checks=labels,
            summary=said,
        )
        if verdict == "flaky":
            return regression.ended("flake", now=self.now, result="it passed when it was repeated")
        if verdict == "unknown" or why:
            why = why if verdict == "bad" else f"it could not be verified: {said}"
            ended = regression.ended("escalated", now=self.now, result=why)
            return ended.changed(awaits_person=True)
        if not good:
            return regression.ended("gone", now=self.now, result="its merge is not on the branch")
        return regression.changed(commits=suspects([*reversed(commits)], good, commit))

    def _awaits_person(self, item: str) -> bool:
        return any(
            each.item == item and _awaits_person(self.snapshot, each) for each in self.log.found
        )

    def _good_before(self, item: str, commits: list[str], commit: str) -> tuple[str, str]:
        """Return the newest commit before another one where an item was good, or why none counts.

        A merge that was verified nowhere is only supposed to be good.
        """
        merge, known = self.merge_of(item), self.known_good(item)
        if commit in known:
            return "", CHANGED_SURROUNDINGS
        supposed = [] if merge is None or any(each in commits for each in known) else [merge.commit]
        older = commits[commits.index(commit) + 1 :]
        before = [each for each in (*known, *supposed) if each in older]
        if not before and merge is not None:
            return "", FAILS_AS_MERGED
        return min(before, key=older.index, default=""), ""


def _awaits_person(snapshot: LoopSnapshot, found: Regression) -> bool:
    """Whether an item is still as it was when a person was asked to decide."""
    record = snapshot.record(found.item)
    is_same = record.state == "passed" and record.runs == found.runs
    return found.awaits_person and is_same and snapshot.spec(found.item) is not None


def _ended(snapshot: LoopSnapshot, now: float) -> list[Regression]:
    """Return the regressions whose item has run again and ended."""
    found = []
    for each in snapshot.loop.regressions.found:
        record = snapshot.record(each.repairs)
        if each.status != "reopened":
            continue
        if record.state == "passed" and record.runs > each.repairs_runs:
            found.append(each.ended("repaired", now=now, result=f"{each.repairs} passed again"))
        elif record.state == "skipped":
            found.append(each.ended("gone", now=now, result=f"{each.repairs} was skipped"))
    return found


def verify_loop(
    context: LoopContext, name: str, caller: Requester, *, item: str | None = None
) -> list[str]:
    """Ask to verify an item, or all that passed, next. Return which. Raises LoopConflict.

    Those that were reopened too often may be reopened again: somebody looks after them.
    """
    passed = list[str]()

    def decide(found: LoopSnapshot, _now: float) -> LoopChange:
        nonlocal passed
        passed = [each.id for each in passed_items(found)]
        if found.config.regression_rules is None:
            raise NotPossible("needs a loop with a repo, and its `regressions` not false")
        if item not in (None, *passed) or not passed:
            who = f"{item} has not passed" if item else "no item has passed yet"
            raise NotPossible(f"{who}: there is nothing to verify again")
        if found.loop.state not in PLANNED:
            raise NotPossible(f"the loop is {found.loop.state}: start or resume it")
        log = found.loop.regressions.with_asked(item or ALL_ITEMS)
        log = log.with_new_rounds(*([item] if item else passed))
        return LoopChange(regressions=log, note=f"verify {item or 'all items'} again")

    change_loop(context, name, caller, decide)
    return passed if item is None else [item]
