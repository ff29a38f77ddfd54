"""Edits: typed changes, plans of them, their outcomes, and the rules for applying them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mulligan.policies.edits.parse_diff import parse
from mulligan.policies.edits.patch import PatchError
from mulligan.policies.edits.self_running import any_runs_by_itself
from mulligan.policies.jobs.job import HALF_A_PAIR
from mulligan.policies.nesting import too_deep
from mulligan.policies.problem import FieldError
from mulligan.policies.value import Json, Value


class EditOp(StrEnum):
    """The built-in operations. Plug-ins add others."""

    SET_MODEL_FOR_QUERY_CLASS = "set_model_for_query_class"
    SET_MODEL_PARAM = "set_model_param"
    SET_AGENT_PARAM = "set_agent_param"
    ADD_TOOL_TO_AGENT = "add_tool_to_agent"
    REMOVE_TOOL_FROM_AGENT = "remove_tool_from_agent"
    EDIT_TOOL_DESCRIPTION = "edit_tool_description"
    PATCH_SYSTEM_PROMPT = "patch_system_prompt"
    REPLACE_SYSTEM_PROMPT = "replace_system_prompt"
    SET_AGENT_CLASS = "set_agent_class"
    EDIT_FEW_SHOT_EXEMPLARS = "edit_few_shot_exemplars"
    LORA_FINETUNE = "lora_finetune"
    WRITE_FILE = "write_file"
    PATCH_FILE = "patch_file"
    SEARCH_REPLACE = "search_replace"
    RENAME_FILE = "rename_file"
    DELETE_FILE = "delete_file"
    EDIT_PYTHON = "edit_python"
    RUN_FORMATTER = "run_formatter"


class EditRiskTier(StrEnum):
    """How much a person is involved: not at all, as a reviewer, or by explicit approval."""

    AUTO = "auto"
    REVIEW = "review"
    MANUAL = "manual"


class AutonomyMode(StrEnum):
    AUTO = "auto"
    TIERED = "tiered"
    MANUAL = "manual"


#: The entry in the table of tiers for files that run by themselves, whatever the operation.
SELF_RUNNING_FILE = "self_running_file"

_STRICTNESS = (EditRiskTier.AUTO, EditRiskTier.REVIEW, EditRiskTier.MANUAL)

#: The tier of each operation. Configuration may change it; an edit may only make it stricter.
#: A diff that deletes or renames files has at least the tier of delete_file, and an edit of a file
#: that runs by itself at least that of SELF_RUNNING_FILE, see ``tier_of``.
TIERS: dict[str, EditRiskTier] = {
    EditOp.SET_MODEL_FOR_QUERY_CLASS: EditRiskTier.AUTO,
    EditOp.SET_MODEL_PARAM: EditRiskTier.AUTO,
    EditOp.SET_AGENT_PARAM: EditRiskTier.AUTO,
    EditOp.ADD_TOOL_TO_AGENT: EditRiskTier.AUTO,
    EditOp.REMOVE_TOOL_FROM_AGENT: EditRiskTier.AUTO,
    EditOp.EDIT_TOOL_DESCRIPTION: EditRiskTier.AUTO,
    EditOp.PATCH_SYSTEM_PROMPT: EditRiskTier.REVIEW,
    EditOp.REPLACE_SYSTEM_PROMPT: EditRiskTier.REVIEW,
    EditOp.SET_AGENT_CLASS: EditRiskTier.REVIEW,
    EditOp.EDIT_FEW_SHOT_EXEMPLARS: EditRiskTier.REVIEW,
    EditOp.LORA_FINETUNE: EditRiskTier.MANUAL,
    EditOp.WRITE_FILE: EditRiskTier.AUTO,
    EditOp.PATCH_FILE: EditRiskTier.AUTO,
    EditOp.SEARCH_REPLACE: EditRiskTier.AUTO,
    EditOp.RENAME_FILE: EditRiskTier.AUTO,
    EditOp.DELETE_FILE: EditRiskTier.REVIEW,
    EditOp.EDIT_PYTHON: EditRiskTier.AUTO,
    EditOp.RUN_FORMATTER: EditRiskTier.AUTO,
    SELF_RUNNING_FILE: EditRiskTier.REVIEW,
}
_UNKNOWN_OP_TIER = EditRiskTier.REVIEW
#: A longer diff is not read for its tier: it counts as if it did everything.
_MAX_READ = 1_000_000

#: Levels of a plan. A session, which contains its edits, must be readable with room to spare.
_MAX_LEVELS = 100
_TOO_DEEP = f"a payload is nested too deeply; a plan may have {_MAX_LEVELS} levels"

EditId = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w][\w.-]*$")]


class Edit(Value):
    """One typed change. ``expected_improvement`` names the cluster that it should improve."""

    id: EditId
    op: Annotated[str, Field(min_length=1, max_length=100)]
    #: A name in the configuration (``models.small``) or a file, relative to the root.
    target: Annotated[str, Field(min_length=1, max_length=1000)]
    payload: dict[str, Json] = Field(default_factory=dict)
    pillar: str | None = None
    rationale: str = ""
    expected_improvement: str | None = None
    #: Counts only if it is stricter than the operation's.
    risk_tier: EditRiskTier | None = None
    references: tuple[str, ...] = ()


class BenchmarkSpec(Value):
    """The suite that measures an edit, or ``policy: allow`` to apply without measuring."""

    #: A suite file, relative to the plan.
    suite: str | None = None
    #: The most that a cluster's score may drop.
    max_regression: float = Field(default=0.05, ge=0, le=1)
    policy: Literal["require", "allow"] = "require"


class EditPlan(Value):
    """An ordered list of edits, and how to measure them."""

    session: EditId | None = None
    #: The job that wrote the plan. If edits fail, it runs again with a corrected prompt.
    author: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    benchmark: BenchmarkSpec = BenchmarkSpec()
    edits: tuple[Edit, ...] = Field(min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _check(self) -> EditPlan:
        ids: set[str] = set()
        for index, edit in enumerate(self.edits):
            if edit.id in ids:
                raise FieldError(("edits", index, "id"), f"{edit.id!r} is used twice")
            ids.add(edit.id)
        try:
            text = self.model_dump_json()
        except ValueError as error:
            problem = _TOO_DEEP if "depth" in str(error) else f"a text {HALF_A_PAIR}"
            raise FieldError("edits", problem) from None
        if too_deep(text, _MAX_LEVELS):
            raise FieldError("edits", _TOO_DEEP)
        return self


EditStatus = Literal[
    "applied", "pending_review", "skipped", "rejected_by_gate", "rejected_by_user", "rolled_back"
]
#: The cause of a status.
EditReason = Literal[
    "kept",
    "ungated",
    "manual_mode",
    "manual_tier",
    "review_tier",
    "unsupported",
    "validation",
    "apply_error",
    "no_op",
    "no_scorer",
    "quarantined",
    "regression",
    "no_improvement",
    "undecided",
    "conflict",
    "rejected",
    "rolled_back",
]


class EditOutcome(Value):
    """The result of one edit."""

    edit_id: str
    status: EditStatus
    reason: EditReason
    #: The change of the overall score; None if nothing was measured.
    benchmark_delta: float | None = None
    cluster_deltas: dict[str, float] = Field(default_factory=dict)
    error: str | None = None
    #: Notes for people: the tolerance that found the place, or why the edit would not apply.
    notes: tuple[str, ...] = ()
    applied_at: datetime | None = None


@dataclass(frozen=True)
class ApplyEdit:
    """Validate the edit, apply it, and measure it if there is a suite."""


@dataclass(frozen=True, kw_only=True)
class HoldForReview:
    """Do not apply the edit now: a person has to decide, or it is not supported."""

    status: Literal["pending_review", "skipped"]
    reason: EditReason
    error: str | None = None


def tier_of(edit: Edit, overrides: Mapping[str, EditRiskTier] | None = None) -> EditRiskTier:
    """Return the strictest of its operations' tiers and the tier that the edit requests."""
    table = {**TIERS, **(overrides or {})}
    tiers = [table.get(op, _UNKNOWN_OP_TIER) for op in (edit.op, *_implied_operations(edit))]
    return max(*tiers, edit.risk_tier or EditRiskTier.AUTO, key=_STRICTNESS.index)


def tier_of_changes(
    tier: EditRiskTier, paths: Iterable[str], overrides: Mapping[str, EditRiskTier]
) -> EditRiskTier:
    """Return the tier of an edit that turns out to change these files."""
    if not any_runs_by_itself(paths):
        return tier
    table = {**TIERS, **overrides}
    return max(tier, table[SELF_RUNNING_FILE], key=_STRICTNESS.index)


def _implied_operations(edit: Edit) -> tuple[str, ...]:
    """Return what an edit does under another name: a diff may delete files, and any operation may
    name a file that runs by itself."""
    removed, named = set[str](), {edit.target}
    diff, to = edit.payload.get("diff"), edit.payload.get("to")
    if edit.op == EditOp.PATCH_FILE and isinstance(diff, str):
        if len(diff) > _MAX_READ:
            return (EditOp.DELETE_FILE, SELF_RUNNING_FILE)
        try:
            parsed = parse(diff)
        except PatchError:
            return ()  # the applier refuses it anyway
        removed, named = parsed.removed_paths, named | parsed.paths
    if edit.op == EditOp.RENAME_FILE and isinstance(to, str):
        named.add(to)
    runs = (SELF_RUNNING_FILE,) if any_runs_by_itself(named) else ()
    return (*((EditOp.DELETE_FILE,) if removed else ()), *runs)


def route(
    edit: Edit, mode: AutonomyMode, *, tier: EditRiskTier, supported: bool, approved: bool = False
) -> ApplyEdit | HoldForReview:
    """Decide whether an edit may be applied now. A person's approval overrides mode and tier."""
    if not approved:
        if mode is AutonomyMode.MANUAL:
            return HoldForReview(status="pending_review", reason="manual_mode")
        if tier is EditRiskTier.MANUAL:
            text = "manual tier, requires explicit approval"
            return HoldForReview(status="skipped", reason="manual_tier", error=text)
        if tier is EditRiskTier.REVIEW and mode is AutonomyMode.TIERED:
            return HoldForReview(status="pending_review", reason="review_tier")
    if not supported:
        text = f"op {edit.op} not implemented in v1"
        return HoldForReview(status="skipped", reason="unsupported", error=text)
    return ApplyEdit()
