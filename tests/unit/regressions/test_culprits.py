"""The culprit is the commit at which an item went from good to bad last, whatever came before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mulligan.policies.loops.checkpoints import (
    Checkpoint,
    CheckpointKind,
    blamed,
    marked,
    present,
)
from mulligan.policies.regressions.bisect import most_steps, next_probe
from mulligan.policies.regressions.record import RegressionLog

#: ``revert``: everything goes back to an earlier commit. ``undo``: one merge is taken out.
STEPS = ["break", "break", "mend", "other", "other", "undo", "revert", "check"]


@dataclass
class History:
    """A branch on which one item is good or bad, and what is known about it."""

    commits: list[Checkpoint] = field(default_factory=list)
    log: RegressionLog = field(default_factory=RegressionLog)

    def add(self, word: str, choice: int) -> None:
        """Add a commit. It does nothing that is not possible now."""
        place, now = len(self.commits), present(self.newest_first)
        undoes, restores = list[str](), list[str]()
        if word == "undo" and len(now) > 1:
            undoes = [now[choice % (len(now) - 1)].name]
        elif word == "revert":
            then = present(marked(self.newest_first[choice % place :]))
            undoes = [each.name for each in now if each.name not in {e.name for e in then}]
            restores = [each.name for each in then if each.name not in {e.name for e in now}]
        kind: CheckpointKind = "rollback" if word in ("undo", "revert") else "merge"
        made = Checkpoint(commit=f"c{place}", parent=None, at=0, kind=kind, subject=word,
                          name=f"c{place}", undoes=tuple(undoes), restores=tuple(restores),
                          rollback="r" if kind == "rollback" else "")  # fmt: skip
        self.commits.append(made)

    @property
    def newest_first(self) -> list[Checkpoint]:
        return marked(self.commits[::-1])

    def is_good(self, commit: str) -> bool:
        """Whether all that breaks the item at a commit is mended there by what came later."""
        names = [each.commit for each in self.commits]
        then = present(marked(self.commits[names.index(commit) :: -1]))
        words = [each.subject for each in then if each.subject in ("break", "mend")]
        return not words or words[0] == "mend"

    def check(self) -> None:
        """Check the newest commit: what is good is noted, and what is bad has a culprit."""
        tip = self.commits[-1].commit
        if self.is_good(tip):
            self.log = self.log.with_good(tip, "item")
            return
        good, bad, steps = self.log.known_good["item"], tip, 0
        line = [each.commit for each in self.commits]
        rollbacks = [each.commit for each in self.commits if each.kind == "rollback"]
        suspects = line.index(bad) - line.index(good)
        between = [each for each in rollbacks if line.index(good) < line.index(each)]
        while (probe := next_probe(line, good, bad, rollbacks)) is not None:
            steps += 1
            good, bad = (probe, bad) if self.is_good(probe) else (good, probe)
        assert steps <= most_steps(suspects) + len(between)
        culprit = blamed(self.newest_first, bad).commit
        assert culprit == self.expected(line)
        # It is repaired, and found to be good.
        self.add("mend", 0)
        self.log = self.log.with_good(self.commits[-1].commit, "item")

    def expected(self, line: Sequence[str]) -> str:
        """Return the last commit with which the item became bad, or what undid that one last."""
        last = [b for a, b in pairwise(line) if self.is_good(a) and not self.is_good(b)][-1]
        undone = next(each for each in self.newest_first if each.commit == last).undone
        undid = [each.commit for each in self.commits if last in each.undoes]
        return undid[-1] if undone else last


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20)), max_size=25))
def test_the_culprit_is_where_it_went_from_good_to_bad_last(steps: list[tuple[str, int]]) -> None:
    """Given merges that break and mend an item, rollbacks, and checks in between."""
    history = History()
    history.add("other", 0)
    history.log = history.log.with_good("c0", "item")
    for word, choice in steps:
        if word != "check":
            history.add(word, choice)
        if word in ("check", "mend"):  # nothing tells of a mend but a check
            history.check()
    history.check()
