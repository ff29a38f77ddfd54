"""Healings of loops and analyses of failures, as the API returns them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from mulligan.policies.loops.analysis import FailureAnalysis, Pattern
from mulligan.policies.loops.heal_record import HealOutcome, HealRecord
from mulligan.policies.loops.spec import PLAIN_LINE, HealAction


class HealRow(BaseModel):
    """One healing: what was done, why, and what came of it."""

    number: int
    at: float
    #: The item; null for the whole loop.
    test: str | None
    action: HealAction
    parameter: str
    #: Null without the right to read texts.
    reason: str | None
    advice: str | None
    outcome: HealOutcome
    result: str | None
    ended_at: float | None
    by: str
    #: The job that it waits for: the draft of a split.
    job_id: str | None


class HealList(BaseModel):
    #: The newest first.
    heals: list[HealRow]


class AnalysisDocument(BaseModel):
    """Why an item failed, and what may help."""

    test: str
    pattern: Pattern
    #: Null without the right to read texts.
    summary: str | None
    differences: list[str]
    tried: list[str]
    #: For a terminal.
    command: str


class HealRequest(BaseModel):
    """What to do; without an action, the next one that was not tried."""

    model_config = ConfigDict(extra="forbid")

    action: HealAction | None = None
    #: Of `escalate`: to a person; else to a stronger runner, or to the orchestrator.
    to_human: bool = True
    #: Of `rollback`: the checkpoint; by default the one before the last merge.
    to_checkpoint: Annotated[str | None, Field(pattern="^[0-9a-f]{4,64}$")] = None
    reason: Annotated[str, Field(max_length=200, pattern=PLAIN_LINE)] = ""


def heal_row(heal: HealRecord, *, texts: bool) -> HealRow:
    return HealRow(
        number=heal.number,
        at=heal.at,
        test=heal.item or None,
        action=heal.action,
        parameter=heal.parameter,
        reason=heal.reason if texts else None,
        advice=heal.advice or None if texts else None,
        outcome=heal.outcome,
        result=heal.result or None if texts else None,
        ended_at=heal.ended_at,
        by=heal.by,
        job_id=heal.job_id or None,
    )


def analysis_document(found: FailureAnalysis, command: str, *, texts: bool) -> AnalysisDocument:
    return AnalysisDocument(
        test=found.item,
        pattern=found.pattern,
        summary=found.summary if texts else None,
        differences=list(found.differences),
        tried=list(found.tried),
        command=command,
    )
