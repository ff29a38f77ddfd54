"""What a loop remembers of its regressions: the running check, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import ConfigDict, Field, ValidationError, field_validator

from mulligan.policies.jobs.job import Seconds
from mulligan.policies.value import Value

#: ``bisecting``: the culprit is searched. ``confirming``: the newest commit is checked once more.
#: ``rolling_back``: the culprit's merge is being undone. ``reopened``: an item runs again because
#: of it. ``repaired``: the checks pass again. ``flake``: a failure that did not repeat.
#: ``escalated``: a person decides. ``gone``: it could not be followed to its end.
RegressionStatus = Literal[
    "bisecting",
    "confirming",
    "rolling_back",
    "reopened",
    "repaired",
    "flake",
    "escalated",
    "gone",
]
REGRESSION_STATUSES: tuple[RegressionStatus, ...] = get_args(RegressionStatus)
#: ``merge``: the work of an item. ``rollback``, ``sync``: made by mulligan. ``other``: of a person,
#: or of another loop.
CulpritKind = Literal["", "merge", "rollback", "sync", "other"]
#: ``merge``: files of items changed. ``schedule``: it was time. ``asked``: a person asked, or an
#: item was repaired without a merge of its own.
CheckReason = Literal["merge", "schedule", "asked"]
SEARCHING: frozenset[RegressionStatus] = frozenset({"bisecting", "confirming", "rolling_back"})
OPEN: frozenset[RegressionStatus] = SEARCHING | {"reopened"}
#: Regressions that a loop remembers; more if more are open or wait for a person.
MOST_REMEMBERED = 30
#: Times that a check without a verdict is repeated before a person decides.
MOST_TRIES = 2
#: Times that an item is reopened before a person decides.
MOST_ROUNDS = 3
#: Every item that has passed: what a person may ask for.
ALL_ITEMS = "*"
LONGEST_DIFFERENCE = 4000
_LONGEST_TEXT = 300


class RegressionRules(Value):
    """When a loop verifies what has passed again, and what follows from a failure."""

    #: The longest time between two checks of everything. A commit is not checked twice for it.
    every: Seconds = Field(default=86400.0, ge=60)
    #: Whether a merge that touches the files of an item has it checked.
    after_merge: bool = True
    #: Whether the culprit's merge is undone, so that the culprit runs again and not the item.
    roll_back: bool = False


class _Stored(Value):
    """What a later release adds to it is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class CommitCheck(_Stored):
    """A check of items at a commit that is under way."""

    number: int
    commit: str
    reason: CheckReason
    #: The items of the running job, and those that come after them.
    items: tuple[str, ...]
    rest: tuple[str, ...] = ()
    job_id: str
    at: float
    #: Checks of these items that reached no verdict.
    tries: int = 0
    #: Up to which commit the checks that are due after merges are done when this one ends.
    until: str = ""
    #: Whether it covers everything that has passed, and whether all of that was good so far.
    full: bool = False
    good: bool = True


class Regression(_Stored):
    """One item that failed its checks after it had passed."""

    number: int
    item: str
    #: The runs that the item had when it was found.
    runs: int
    at: float
    status: RegressionStatus = "bisecting"
    #: The newest commit where the item is known to be good, and the oldest one where it is not.
    good: str
    bad: str
    #: Whether it passes at the good commit now, too: else nothing on the branch broke it.
    good_checked: bool = False
    #: The newest commit where it was seen to fail.
    seen: str
    #: The places of the failed checks in the item's spec, and what they said.
    broken: tuple[int, ...] = ()
    checks: str = ""
    summary: str = ""
    #: Commits among which the culprit was, and the checks that it took.
    commits: int = 0
    steps: int = 0
    #: The check that is under way, and its commit.
    job_id: str = ""
    probe: str = ""
    #: Checks of that commit that reached no verdict.
    tries: int = 0
    culprit: str = ""
    culprit_kind: CulpritKind = ""
    #: The item that the culprit is a merge of.
    culprit_item: str = ""
    #: The item that runs again, and the runs that it had.
    repairs: str = ""
    repairs_runs: int = 0
    rollback: str = ""
    #: What the culprit changed, as long as it is needed.
    difference: str = ""
    result: str = ""
    ended_at: float | None = None
    #: Whether it was escalated, and the item has not been seen to pass since.
    awaits_person: bool = False

    @field_validator("summary", "checks", "result")
    @classmethod
    def _short(cls, text: str) -> str:
        return text[:_LONGEST_TEXT]

    def changed(self, **fields: Any) -> Regression:
        return Regression.model_validate({**self.model_dump(), **fields})

    def ended(self, status: RegressionStatus, *, now: float, result: str = "") -> Regression:
        return self.changed(
            status=status, ended_at=now, result=result, job_id="", probe="", difference=""
        )

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def is_kept(self) -> bool:
        """Whether it is remembered however many there are."""
        return self.is_open or self.awaits_person

    @property
    def culprit_name(self) -> str:
        """Name the culprit in a few words; empty if it is not known."""
        if not self.culprit:
            return ""
        words = {"merge": f"item {self.culprit_item}", "rollback": "a rollback", "sync": "a sync"}
        what = words.get(self.culprit_kind, "a commit that is no work of the loop")
        return f"{self.culprit[:10]} ({what})"


class RegressionLog(_Stored):
    """What a loop remembers about regressions."""

    #: The number of the next check or regression.
    next_number: int = 1
    #: Up to which commit the checks that are due after merges are done.
    commit: str = ""
    #: Where everything was checked last, and where all of it was good, and when.
    full_commit: str = ""
    full_at: float = 0.0
    good_commit: str = ""
    good_at: float = 0.0
    #: The items to check whatever has changed; ALL_ITEMS stands for all.
    asked: tuple[str, ...] = ()
    check: CommitCheck | None = None
    #: The oldest first.
    found: tuple[Regression, ...] = ()
    #: Commits → the items that were found to be good there last. An item has one at most.
    good: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    #: Items → how often they were reopened since a person last dealt with them.
    rounds: Mapping[str, int] = Field(default_factory=dict)

    def to_text(self) -> str:
        """Return it as the ledger keeps it."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def from_text(cls, text: str) -> RegressionLog:
        """Read what the ledger keeps. A damaged record is as good as none: checks are repeated."""
        try:
            return cls.model_validate_json(text or "{}")
        except ValidationError:
            return cls()

    def with_found(self, *found: Regression) -> RegressionLog:
        """Add or replace regressions. Of too many, the oldest that ended before go.

        Those that are open or wait for a person stay. An item has at most one of each.
        """
        before = {each.number: each for each in self.found}
        known = {**before, **{each.number: each for each in found}}
        kept = [known[number] for number in sorted(known)]
        new = {each.number for each in found}
        ended = [each.number for each in kept if not each.is_kept and each.number not in new]
        dropped = ended[: max(0, len(kept) - MOST_REMEMBERED)]
        kept = [each for each in kept if each.number not in dropped]
        after = max(self.next_number, *(each.number + 1 for each in found), 1)
        rounds = dict(self.rounds)
        for each in found:
            if each.repairs and not getattr(before.get(each.number), "repairs", ""):
                for item in {each.item, each.repairs}:
                    rounds[item] = rounds.get(item, 0) + 1
        return self.model_copy(
            update={"found": tuple(kept), "next_number": after, "rounds": rounds}
        )

    def with_good(self, commit: str, *items: str) -> RegressionLog:
        """Note the newest commit where items were found to be good."""
        others = {
            at: tuple(each for each in known if each not in items)
            for at, known in self.good.items()
        }
        others[commit] = (*others.get(commit, ()), *items)
        return self.model_copy(update={"good": {at: kept for at, kept in others.items() if kept}})

    def with_asked(self, *items: str) -> RegressionLog:
        """Have items checked, besides those that are to be checked already."""
        return self.model_copy(update={"asked": tuple(sorted({*self.asked, *items}))})

    def with_new_rounds(self, *items: str) -> RegressionLog:
        """Forget how often items were reopened: a person has dealt with them."""
        kept = {item: count for item, count in self.rounds.items() if item not in items}
        return self.model_copy(update={"rounds": kept})

    @property
    def known_good(self) -> dict[str, str]:
        """Items → the newest commit where a check found them to be good."""
        return {item: commit for commit, items in self.good.items() for item in items}

    def open_of(self, item: str) -> Regression | None:
        """Return the newest open regression that an item was found with, or that it repairs."""
        return next(
            (e for e in reversed(self.found) if e.is_open and item in (e.item, e.repairs)), None
        )

    def repaired_by(self, item: str) -> Regression | None:
        """Return the regression because of which an item runs again."""
        wanted = ("reopened", "rolling_back")
        return next(
            (e for e in reversed(self.found) if e.status in wanted and e.repairs == item), None
        )

    @property
    def searching(self) -> Regression | None:
        """The regression whose culprit is searched: one after the other."""
        return next((each for each in self.found if each.status in SEARCHING), None)

    def changes_from(self, earlier: RegressionLog) -> list[Regression]:
        """Return the regressions that are new or have another status: what people are told."""
        before = {each.number: each.status for each in earlier.found}
        return [each for each in self.found if before.get(each.number) != each.status]
