"""Regressions: verify again what has passed, find what broke it, and have it repaired.

The record in the loop says how far it is. Each step is decided from one reading and written by
compare-and-swap; a check that was submitted by a step that was not written is found by its key. So
two sweeps do nothing twice, and a crash loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mulligan.policies.loops.checkpoints import Checkpoint
from mulligan.policies.loops.commands import NotPossible
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.healing import PERSON
from mulligan.policies.loops.loop import PLANNED, ItemRecord, LoopChange, LoopSnapshot
from mulligan.policies.regressions.bisect import next_probe, suspects
from mulligan.policies.regressions.due import ItemVerdict
from mulligan.policies.regressions.record import (
    ALL_ITEMS,
    LONGEST_DIFFERENCE,
    MOST_ROUNDS,
    MOST_TRIES,
    Check,
    CheckReason,
    Regression,
    RegressionLog,
    RegressionRules,
    RegressionStatus,
)
from mulligan.tasks.loops.change import LoopConflict, change_loop
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.regression_checks import (
    ChangedPaths,
    due_items,
    guards_of,
    is_running,
    next_batch,
    passed_items,
    read_verdicts,
    submit_check,
    verifiers_of,
)
from mulligan.tasks.loops.rollback import checkpoints_of, repository_of, rollback_change
from mulligan.tasks.ports.ledger import LoopReading, LoopWrite, Requester, Written
from mulligan.tasks.ports.repositories import Repository

BY = Requester(by="regressions")


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
            return _noted(log.with_found(*ended), ended)
        step = _Step(self.context, snapshot, rules, now, self._paths)
        running = log.check.job_id if log.check else log.searching.job_id if log.searching else ""
        if running and is_running(self.context, running):
            return None
        if log.check is not None:
            return step.read_check(log.check)
        if log.searching is not None:
            return step.search(log.searching)
        return None if snapshot.loop.rollback else step.check_due()

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
        return bool(_Step(self.context, snapshot, rules, now, self._paths).due()[1])


@dataclass
class _Step:
    """One step for a loop: what it reads, and the change that it decides."""

    context: LoopContext
    snapshot: LoopSnapshot
    rules: RegressionRules
    now: float
    paths: ChangedPaths
    _history: Sequence[Checkpoint] | None = None

    @property
    def log(self) -> RegressionLog:
        return self.snapshot.loop.regressions

    @property
    def repository(self) -> Repository:
        return repository_of(self.context, self.snapshot)

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """The commits of the branch, the newest first."""
        if self._history is None:
            found = self.repository.history(self.snapshot.config.target)
            self._history = checkpoints_of(found, self.snapshot.loop.name)
        return self._history

    # -- checks of the newest commit ---------------------------------------------------------------

    def due(self) -> tuple[CheckReason, list[str]]:
        """Return why items are due, and which."""
        if not passed_items(self.snapshot) or not self.checkpoints:
            return "merge", []
        reason, items = due_items(
            self.snapshot,
            self.rules,
            self.checkpoints,
            lambda old, new: self.paths.between(self.repository, old, new),
            self.now,
        )
        return reason, [each.id for each in items]

    def check_due(self, after: Check | None = None) -> LoopChange | None:
        """Begin a check of what is due, or go on with one ``after`` its first items."""
        if not passed_items(self.snapshot) or not self.checkpoints:
            return self._all_checked(after) if after is not None else None
        tip = after.commit if after else self.checkpoints[0].commit
        reason, due = self.due()
        if after is not None:
            order = [each.id for each in self.snapshot.specs]
            done = order.index(after.items[-1]) if after.items[-1] in order else len(order)
            due = [each for each in due if order.index(each) > done]
        if not due:
            return self._all_checked(after)
        specs = [each for each in self.snapshot.specs if each.id in due]
        items, verifiers = next_batch(specs)
        check = Check(
            number=self.log.next_number,
            commit=tip,
            reason=after.reason if after else reason,
            items=tuple(items),
            job_id=submit_check(self.context, self.snapshot, tip, verifiers),
            at=self.now,
        )
        return LoopChange(regressions=self._log(check=check, next_number=check.number + 1))

    def _all_checked(self, check: Check | None) -> LoopChange | None:
        if check is None:
            asked = self.log.asked
            return LoopChange(regressions=self._log(asked="")) if asked else None
        asked = "" if check.reason == "asked" else self.log.asked
        log = self._log(check=None, commit=check.commit, asked=asked)
        if check.reason == "schedule":
            log = log.model_copy(update={"full_commit": check.commit, "full_at": self.now})
        return LoopChange(regressions=log)

    def read_check(self, check: Check) -> LoopChange | None:
        """Read what a check has found, and go on with the rest of it."""
        found, good = list[Regression](), list[str]()
        specs = {item: spec for item in check.items if (spec := self.snapshot.spec(item))}
        verdicts = [
            (item, verdict, places, said)
            for item, verdict, places, said in read_verdicts(
                self.context,
                check.job_id,
                {item: verifiers_of(spec) for item, spec in specs.items()},
                {item: guards_of(spec) for item, spec in specs.items()},
            )
            if self.snapshot.record(item).state == "passed"
        ]
        unsure = [each for each in verdicts if each[1] == "unknown"]
        if unsure and (again := self._check_again(check)) is not None:
            return again
        for item, verdict, places, said in verdicts:
            if verdict in ("good", "flaky"):
                good.append(item)
            if verdict != "good":
                number = self.log.next_number + len(found)
                each = self._found(number, item, check.commit, verdict, places, said)
                found += [each] if each is not None else []
        rest = self.check_due(after=check)
        if rest is None or rest.regressions is None:
            return None
        good += [item for item, _, _, _ in unsure]  # who decided that decides again
        log = rest.regressions.with_found(*self._released(*good), *found)
        told = [self._told(each, each.result) for each in found if each.awaits_person]
        return replace(_noted(log, found), heals=tuple(told))

    def _check_again(self, check: Check) -> LoopChange | None:
        """Repeat a check that reached no verdict about an item: of fewer items, then of that one.

        None: it was repeated often enough.
        """
        items = check.items[: (len(check.items) + 1) // 2]
        tries = check.tries + 1 if items == check.items else 0
        if tries > MOST_TRIES:
            return None
        specs = [each for each in self.snapshot.specs if each.id in items]
        _, verifiers = next_batch(specs)
        again = check.model_copy(
            update={
                "number": self.log.next_number,
                "items": items,
                "tries": tries,
                "job_id": submit_check(self.context, self.snapshot, check.commit, verifiers),
                "at": self.now,
            }
        )
        return LoopChange(regressions=self._log(check=again, next_number=again.number + 1))

    def _released(self, *good: str) -> list[Regression]:
        """Return the regressions of items that pass again: no person has to decide any more."""
        return [
            each.changed(awaits_person=False)
            for each in self.log.found
            if each.awaits_person and each.item in good
        ]

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
        good = self._last_good(item, commits, commit)
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
        if verdict == "unknown":
            why = f"it could not be verified: {said}"
            ended = regression.ended("escalated", now=self.now, result=why)
            return ended.changed(awaits_person=True)
        if verdict == "flaky":
            return regression.ended("flake", now=self.now, result="it passed when it was repeated")
        if not good:
            return regression.ended("gone", now=self.now, result="its merge is not on the branch")
        ordered = [*reversed(commits)]
        return regression.changed(commits=suspects(ordered, good, commit))

    def _last_good(self, item: str, commits: list[str], before: str) -> str:
        """Return the newest commit before another one where an item was good; empty: none."""
        older = commits[commits.index(before) + 1 :]
        job = self.snapshot.record(item).job_id
        own = [e.commit for e in self.checkpoints if e.item == item and e.job_id == job] or [
            e.commit for e in self.checkpoints if e.item == item and not e.undone
        ]
        # Where it was found to be good again, without a merge of its own.
        again = [
            each.good for each in self.log.found if each.item == item and each.status == "repaired"
        ]
        known = [each for each in (*own[:1], *again) if each in older]
        return min(known, key=older.index, default="")

    # -- the search for a culprit ------------------------------------------------------------------

    def search(self, found: Regression) -> LoopChange | None:
        """Go on with one regression: read its check, probe a commit, or act on the culprit."""
        record = self.snapshot.record(found.item)
        if found.status == "rolling_back":
            return self._rolled_back(found)
        if record.state != "passed" or record.runs != found.runs:
            return self._end(found, "gone", "the item was run again meanwhile")
        if found.job_id:
            return self._read_probe(found)
        commits = [each.commit for each in reversed(self.checkpoints)]
        try:
            probe = next_probe(commits, found.good, found.bad)
        except ValueError:
            return self._end(found, "gone", "the branch was moved")
        if probe is not None:
            return self._probe(found, probe)
        if not found.good_checked:
            return self._probe(found, found.good)
        blamed = self._blamed(found)
        if commits[-1] != found.seen:
            return self._probe(blamed.changed(status="confirming"), commits[-1])
        return self._act(blamed)

    def _probe(self, found: Regression, commit: str) -> LoopChange | None:
        spec = self.snapshot.spec(found.item)
        if spec is None:
            return self._end(found, "gone", "the loop has no such item any more")
        job_id = submit_check(self.context, self.snapshot, commit, verifiers_of(spec, found.broken))
        return self._write(found.changed(job_id=job_id, probe=commit))

    def _read_probe(self, found: Regression) -> LoopChange | None:
        spec = self.snapshot.spec(found.item)
        wanted = {found.item: verifiers_of(spec, found.broken)} if spec else {}
        read = [v for _, v, _, _ in read_verdicts(self.context, found.job_id, wanted)]
        verdict = read[0] if read else "unknown"
        if verdict == "unknown":
            return self._try_again(found)
        done = found.changed(job_id="", probe="", tries=0)
        is_good = verdict != "bad"
        if found.probe == found.good:
            counted = done.changed(good_checked=is_good, steps=found.steps + 1)
            if is_good:
                return self._write(counted)
            why = "it fails where it passed before: its surroundings have changed"
            return self._tell_a_person(counted, why)
        if found.status == "confirming":
            if is_good:
                again = found.changed(good=found.probe)
                ended = again.ended(
                    "repaired", now=self.now, result="the newest commit is good again"
                )
                log = self.log.with_found(*self._released(found.item), ended)
                return _noted(log, [ended])
            return self._write(done.changed(seen=found.probe))
        if is_good:
            done = done.changed(good=found.probe, good_checked=True)
        else:
            done = done.changed(bad=found.probe)
        return self._write(done.changed(steps=found.steps + 1))

    def _try_again(self, found: Regression) -> LoopChange:
        """Check a commit again that reached no verdict. The item is broken all the same."""
        tries = found.tries + 1
        if tries > MOST_TRIES:
            return self._tell_a_person(found, f"{found.probe[:10]} could not be checked")
        return self._write(found.changed(job_id="", probe="", tries=tries))

    def _blamed(self, found: Regression) -> Regression:
        culprit = next(each for each in self.checkpoints if each.commit == found.bad)
        return found.changed(
            culprit=culprit.commit, culprit_kind=culprit.kind, culprit_item=culprit.item
        )

    # -- what follows ------------------------------------------------------------------------------

    def _act(self, found: Regression) -> LoopChange | None:
        if self.snapshot.loop.rollback:
            return None
        if self.log.rounds(found.item) >= MOST_ROUNDS:
            why = f"it was reopened {MOST_ROUNDS} times because of regressions"
            return self._tell_a_person(found, why)
        blamed = found.changed(difference=self._difference(found))
        if self.rules.roll_back and found.culprit_item not in ("", found.item):
            try:
                return self._undo(blamed)
            except (LoopConflict, NotPossible):
                pass  # what cannot be undone is repaired where it broke
        return self._reopen(blamed)

    def _difference(self, found: Regression) -> str:
        culprit = next(each for each in self.checkpoints if each.commit == found.culprit)
        if culprit.parent is None:
            return ""
        return self.repository.diff(culprit.parent, culprit.commit, max_bytes=LONGEST_DIFFERENCE)

    def _undo(self, found: Regression) -> LoopChange:
        if self.snapshot.record(found.culprit_item).state != "passed":
            raise NotPossible(f"{found.culprit_item} is being worked on")
        change = rollback_change(
            self.context, self.snapshot, to=None, item=found.culprit_item, by=BY.by, now=self.now
        )
        undone = found.changed(
            status="rolling_back",
            rollback=change.rollback,
            repairs=found.culprit_item,
            repairs_runs=self.snapshot.record(found.culprit_item).runs,
        )
        written = self._write(undone)
        return replace(written, rollback=change.rollback)

    def _rolled_back(self, found: Regression) -> LoopChange | None:
        """Look whether a rollback was made. If it was not possible, the broken item is repaired."""
        if self.snapshot.loop.rollback:
            return None
        made = any(e.rollback and f'"{e.rollback}"' in found.rollback for e in self.checkpoints)
        if made:
            return self._write(found.changed(status="reopened", rollback=""))
        record = self.snapshot.record(found.item)
        if record.state != "passed" or record.runs != found.runs:
            return self._end(found, "gone", "the item was run again or left out meanwhile")
        return self._reopen(found.changed(rollback=""))

    def _reopen(self, found: Regression) -> LoopChange:
        record = self.snapshot.record(found.item)
        again = found.changed(
            status="reopened", repairs=found.item, repairs_runs=record.runs, job_id="", probe=""
        )
        return replace(
            self._write(again),
            items={found.item: ItemRecord(state="pending", since=self.now, runs=record.runs)},
            forget=(found.item,),
        )

    def _tell_a_person(self, found: Regression, why: str) -> LoopChange:
        """Stop. Nothing is delivered until the item passes, or a person has it run or skips it."""
        ended = found.ended("escalated", now=self.now, result=why).changed(awaits_person=True)
        log = self.log.with_found(*self._released(found.item), ended)
        return replace(_noted(log, [ended]), heals=(self._told(found, why),))

    def _told(self, found: Regression, why: str) -> HealRecord:
        """Return the record of having told a person."""
        since = f"since {found.culprit_name}" if found.culprit else f"at {found.seen[:10]}"
        return HealRecord(
            number=max((each.number for each in self.snapshot.heals), default=0) + 1,
            at=self.now,
            item=found.item,
            action="escalate",
            parameter=PERSON,
            reason=f"{why}; now {since}: {found.summary}",
            pattern=why,
            run=found.runs,
            by=BY.by,
        )

    # -- writing -----------------------------------------------------------------------------------

    def _log(self, **fields: object) -> RegressionLog:
        return self.log.model_copy(update=fields)

    def _write(self, found: Regression) -> LoopChange:
        return _noted(self.log.with_found(found), self.log.with_found(found).changes_from(self.log))

    def _end(self, found: Regression, status: RegressionStatus, result: str) -> LoopChange:
        return self._write(found.ended(status, now=self.now, result=result))


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


def _noted(log: RegressionLog, told: Sequence[Regression]) -> LoopChange:
    """Return a change of the record, with a line for the log that quotes no texts."""
    return LoopChange(regressions=log, note="; ".join(map(regression_words, told))[:500])


def regression_words(found: Regression) -> str:
    """Say in a few words what became of a regression."""
    blamed = f" since {found.culprit_name}" if found.culprit else ""
    words = {
        "bisecting": f"fails at {found.seen[:10]}: the culprit among {found.commits} is searched",
        "confirming": f"fails{blamed}: the newest commit is checked",
        "rolling_back": f"fails{blamed}, which is undone",
        "reopened": f"fails{blamed}: {found.repairs} runs again",
        "repaired": f"repaired: {found.result}",
        "flake": "failed once: it passed when it was repeated",
        "escalated": f"a person must decide: {found.result}",
        "gone": f"not followed: {found.result}",
    }
    return f"{found.item}: {words[found.status]}"


def verify_loop(
    context: LoopContext, name: str, caller: Requester, *, item: str | None = None
) -> None:
    """Ask to verify an item, or all that passed, now. Raises LoopConflict."""

    def decide(found: LoopSnapshot, _now: float) -> LoopChange:
        if found.config.regression_rules is None:
            raise NotPossible("needs a loop with a repo, and its `regressions` not false")
        if item is not None and found.record(item).state != "passed":
            raise NotPossible(f"{item} has not passed: there is nothing to verify again")
        if found.loop.state not in PLANNED:
            raise NotPossible(f"the loop is {found.loop.state}: start or resume it")
        log = found.loop.regressions.model_copy(update={"asked": item or ALL_ITEMS})
        return LoopChange(regressions=log, note=f"verify {item or 'all items'} again")

    change_loop(context, name, caller, decide)
