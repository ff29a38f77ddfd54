"""Regressions of loops, as the API returns them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from mulligan.policies.loops.loop import LoopRecord
from mulligan.policies.loops.spec import NAME_PATTERN
from mulligan.policies.regressions.record import (
    CheckReason,
    CulpritKind,
    Regression,
    RegressionStatus,
)


class RegressionRow(BaseModel):
    """An item that failed its checks after it had passed, and what came of it."""

    number: int
    at: float
    #: The item.
    test: str
    status: RegressionStatus
    #: The checks that fail.
    checks: str
    #: What they said; null without the right to read texts.
    summary: str | None
    #: The newest commit where the item is known to be good, and where it was seen to fail.
    good: str
    seen: str
    #: The commits among which the culprit was, and the checks that it took.
    commits: int
    steps: int
    #: The commit that broke it, what kind it is, and the item that it is a merge of.
    culprit: str | None
    culprit_kind: CulpritKind
    culprit_test: str | None
    #: The item that runs again because of it.
    repaired_by: str | None
    result: str
    ended_at: float | None


class RunningCheck(BaseModel):
    """A check of the newest commit that is under way."""

    commit: str
    reason: CheckReason
    #: The items of the running job; others may come after them.
    tests: list[str]
    job_id: str
    at: float


class LastGood(BaseModel):
    commit: str
    at: float


class RegressionList(BaseModel):
    check: RunningCheck | None
    #: The items that are verified next; `*` stands for all that have passed.
    asked: list[str]
    #: Where everything that had passed was verified and good last.
    good: LastGood | None
    #: The newest first.
    regressions: list[RegressionRow]


class VerifyRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    #: The item to verify; by default every item that passed.
    test: Annotated[str | None, Field(max_length=80, pattern=NAME_PATTERN)] = None


def regression_list(loop: LoopRecord, *, texts: bool) -> RegressionList:
    log = loop.regressions
    check = log.check
    good = LastGood(commit=log.good_commit, at=log.good_at) if log.good_commit else None
    return RegressionList(
        check=None
        if check is None
        else RunningCheck(
            commit=check.commit,
            reason=check.reason,
            tests=list(check.items),
            job_id=check.job_id,
            at=check.at,
        ),
        asked=list(log.asked),
        good=good,
        regressions=[regression_row(each, texts=texts) for each in reversed(log.found)],
    )


def regression_row(found: Regression, *, texts: bool) -> RegressionRow:
    return RegressionRow(
        number=found.number,
        at=found.at,
        test=found.item,
        status=found.status,
        checks=found.checks,
        summary=found.summary if texts else None,
        good=found.good,
        seen=found.seen,
        commits=found.commits,
        steps=found.steps,
        culprit=found.culprit or None,
        culprit_kind=found.culprit_kind,
        culprit_test=found.culprit_item or None,
        repaired_by=found.repairs or None,
        result=found.result,
        ended_at=found.ended_at,
    )
