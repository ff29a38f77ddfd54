"""Search what broke an item: probe commits between a good and a bad one, and act on the culprit.

Each step is decided from one reading and returned as a change, as in regressions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mulligan.policies.loops.checkpoints import (
    Checkpoint,
    blamed,
    in_effect,
    verified_commits,
)
from mulligan.policies.loops.commands import NotPossible
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.healing import PERSON
from mulligan.policies.loops.loop import ItemRecord, LoopChange, LoopSnapshot
from mulligan.policies.regressions.bisect import next_probe
from mulligan.policies.regressions.record import (
    LONGEST_DIFFERENCE,
    MOST_ROUNDS,
    MOST_TRIES,
    Regression,
    RegressionLog,
    RegressionRules,
    RegressionStatus,
)
from mulligan.tasks.loops.change import LoopConflict
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.loops.regression_checks import read_verdicts, submit_check, verifiers_of
from mulligan.tasks.loops.rollback import checkpoints_of, repository_of, rollback_change
from mulligan.tasks.ports.ledger import Requester
from mulligan.tasks.ports.repositories import Repository

BY = Requester(by="regressions")
CHANGED_SURROUNDINGS = "it fails where it passed before: its surroundings have changed"
FAILS_AS_MERGED = "it fails where it was merged: what other groups had merged was not there before"


@dataclass
class RegressionStep:
    """One step for a loop: what it reads, and how it is written."""

    context: LoopContext
    snapshot: LoopSnapshot
    rules: RegressionRules
    now: float

    @property
    def log(self) -> RegressionLog:
        return self.snapshot.loop.regressions

    @property
    def repository(self) -> Repository:
        return repository_of(self.context, self.snapshot)

    @cached_property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """The commits of the branch, the newest first."""
        found = self.repository.history(self.snapshot.config.target)
        return checkpoints_of(found, self.snapshot.loop.name)

    def merge_of(self, item: str) -> Checkpoint | None:
        """Return the merge of an item's work that is in effect."""
        return next((each for each in in_effect(self.checkpoints) if each.item == item), None)

    def known_good(self, item: str) -> list[str]:
        """Return commits where an item was good: where it was verified as it landed, and later."""
        merge, known = self.merge_of(item), self.log.known_good.get(item, "")
        verified = verified_commits(self.checkpoints)[merge.commit] if merge else ""
        return [each for each in (verified, known) if each]

    def tell_a_person(self, found: Regression, why: str) -> LoopChange:
        """Stop. Nothing is delivered until the item passes, or a person has it run or skips it."""
        ended = found.ended("escalated", now=self.now, result=why).changed(awaits_person=True)
        log = self.log.with_found(*self.released(found.item), ended)
        return replace(noted(log, [ended]), heals=(self.told(found, why),))

    def told(self, found: Regression, why: str) -> HealRecord:
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

    def released(self, *items: str) -> list[Regression]:
        """Return the regressions of items about which no person has to decide any more."""
        return [
            each.changed(awaits_person=False)
            for each in self.log.found
            if each.awaits_person and each.item in items
        ]

    def write(self, found: Regression) -> LoopChange:
        return noted(self.log.with_found(found), self.log.with_found(found).changes_from(self.log))

    def end(self, found: Regression, status: RegressionStatus, result: str) -> LoopChange:
        return self.write(found.ended(status, now=self.now, result=result))


@dataclass
class RegressionSearch(RegressionStep):
    """The steps from a failed check to what repairs it."""

    def search(self, found: Regression) -> LoopChange | None:
        """Go on with one regression: read its check, probe a commit, or act on the culprit."""
        record = self.snapshot.record(found.item)
        if found.status == "rolling_back":
            return self._rolled_back(found)
        if record.state != "passed" or record.runs != found.runs:
            return self.end(found, "gone", "the item was run again meanwhile")
        if found.job_id:
            return self._read_probe(found)
        try:
            probe = self._next_probe(found)
        except ValueError:
            ended = found.ended("gone", now=self.now, result="the branch was moved")
            return noted(self.log.with_found(ended).with_asked(found.item), [ended])
        if probe is not None:
            return self._probe(found, probe)
        if not found.good_checked:
            return self._probe(found, found.good)
        found = self._blamed(found)
        newest = self.checkpoints[0].commit
        if newest != found.seen:
            return self._probe(found.changed(status="confirming"), newest)
        return self._act(found)

    def _next_probe(self, found: Regression) -> str | None:
        """Return the commit to check next. Raises ValueError if the branch was moved."""
        line = [each.commit for each in reversed(self.checkpoints)]
        rollbacks = {each.commit for each in self.checkpoints if each.kind == "rollback"}
        return next_probe(line, found.good, found.bad, rollbacks)

    def _probe(self, found: Regression, commit: str) -> LoopChange | None:
        spec = self.snapshot.spec(found.item)
        if spec is None:
            return self.end(found, "gone", "the loop has no such item any more")
        job_id = submit_check(self.context, self.snapshot, commit, verifiers_of(spec, found.broken))
        return self.write(found.changed(job_id=job_id, probe=commit))

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
                return self.write(counted)
            passed = found.good in self.known_good(found.item)
            why = CHANGED_SURROUNDINGS if passed else FAILS_AS_MERGED
            return self.tell_a_person(counted, why)
        if found.status == "confirming":
            if is_good:
                again = found.changed(good=found.probe)
                ended = again.ended(
                    "repaired", now=self.now, result="the newest commit is good again"
                )
                log = self.log.with_found(*self.released(found.item), ended)
                return noted(log.with_asked(found.item), [ended])  # its other checks, too
            return self.write(done.changed(seen=found.probe))
        if is_good:
            done = done.changed(good=found.probe, good_checked=True)
        else:
            done = done.changed(bad=found.probe)
        return self.write(done.changed(steps=found.steps + 1))

    def _try_again(self, found: Regression) -> LoopChange:
        """Check a commit again that reached no verdict. The item is broken all the same."""
        tries = found.tries + 1
        if tries > MOST_TRIES:
            return self.tell_a_person(found, f"{found.probe[:10]} could not be checked")
        return self.write(found.changed(job_id="", probe="", tries=tries))

    def _blamed(self, found: Regression) -> Regression:
        culprit = blamed(self.checkpoints, found.bad)
        return found.changed(
            culprit=culprit.commit, culprit_kind=culprit.kind, culprit_item=culprit.item
        )

    def _act(self, found: Regression) -> LoopChange | None:
        if self.snapshot.loop.rollback:
            return None
        if self.log.rounds.get(found.item, 0) >= MOST_ROUNDS:
            why = f"it was reopened {MOST_ROUNDS} times because of regressions"
            return self.tell_a_person(found, why)
        found = found.changed(difference=self._difference(found))
        if self.rules.roll_back and found.culprit_item not in ("", found.item):
            try:
                return self._undo(found)
            except (LoopConflict, NotPossible):
                pass  # what cannot be undone is repaired where it broke
        return self._reopen(found)

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
        written = self.write(undone)
        return replace(written, rollback=change.rollback)

    def _rolled_back(self, found: Regression) -> LoopChange | None:
        """Look whether a rollback was made. If it was not possible, the broken item is repaired."""
        if self.snapshot.loop.rollback:
            return None
        made = any(e.rollback and f'"{e.rollback}"' in found.rollback for e in self.checkpoints)
        if made:
            return self.write(found.changed(status="reopened", rollback=""))
        record = self.snapshot.record(found.item)
        if record.state != "passed" or record.runs != found.runs:
            return self.end(found, "gone", "the item was run again or left out meanwhile")
        return self._reopen(found.changed(rollback=""))

    def _reopen(self, found: Regression) -> LoopChange:
        record = self.snapshot.record(found.item)
        again = found.changed(
            status="reopened", repairs=found.item, repairs_runs=record.runs, job_id="", probe=""
        )
        return replace(
            self.write(again),
            items={found.item: ItemRecord(state="pending", since=self.now, runs=record.runs)},
            forget=(found.item,),
        )


def noted(log: RegressionLog, told: Sequence[Regression]) -> LoopChange:
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
