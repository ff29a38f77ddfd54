"""Edits: a typed change, an ordered plan of them, what became of each, and who may apply which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mulligan.policies.edits.patch import PatchError, parse
from mulligan.policies.problem import FieldError
from mulligan.policies.value import Json, Value


class EditOp(StrEnum):
    """The operations that are built in. Plug-ins bring others."""

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
    """How much a person has to do with it: nothing, a review, or everything."""

    AUTO = "auto"
    REVIEW = "review"
    MANUAL = "manual"


class AutonomyMode(StrEnum):
    AUTO = "auto"
    TIERED = "tiered"
    MANUAL = "manual"


_STRICTNESS = (EditRiskTier.AUTO, EditRiskTier.REVIEW, EditRiskTier.MANUAL)

#: The tier of each operation. Configuration may change it; an edit itself may only be stricter.
#: A diff that deletes or renames files has at least the tier of delete_file, see ``tier_of``.
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
}
#: What nobody knows is reviewed.
_UNKNOWN = EditRiskTier.REVIEW

EditId = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w][\w.-]*$")]


class Edit(Value):
    """One typed change. ``expected_improvement`` names the cluster that it is meant to better."""

    id: EditId
    op: Annotated[str, Field(min_length=1, max_length=100)]
    #: A name in the configuration (``models.small``) or a file, relative to the root.
    target: Annotated[str, Field(min_length=1, max_length=1000)]
    payload: dict[str, Json] = Field(default_factory=dict)
    pillar: str | None = None
    rationale: str = ""
    expected_improvement: str | None = None
    #: Stricter than the table's, if given; never laxer.
    risk_tier: EditRiskTier | None = None
    references: tuple[str, ...] = ()


class BenchmarkSpec(Value):
    """What an edit is measured by, or ``policy: allow`` to apply without measuring."""

    #: A suite file, relative to the plan.
    suite: str | None = None
    #: What a cluster may lose.
    max_regression: float = Field(default=0.05, ge=0, le=1)
    policy: Literal["require", "allow"] = "require"


class EditPlan(Value):
    """An ordered list of edits, and how they are measured."""

    session: EditId | None = None
    #: The job whose answer it is: told in a corrected prompt what failed.
    author: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    benchmark: BenchmarkSpec = BenchmarkSpec()
    edits: tuple[Edit, ...] = Field(min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _each_once(self) -> EditPlan:
        seen: set[str] = set()
        for place, edit in enumerate(self.edits):
            if edit.id in seen:
                raise FieldError(("edits", place, "id"), f"{edit.id!r} is given twice")
            seen.add(edit.id)
        try:
            self.model_dump_json()
        except ValueError:
            raise FieldError("edits", "a text holds half a surrogate pair") from None
        return self


EditStatus = Literal[
    "applied", "pending_review", "skipped", "rejected_by_gate", "rejected_by_user", "rolled_back"
]
#: Why: one status never hides several causes.
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
    "regression",
    "no_improvement",
    "undecided",
    "conflict",
    "rejected",
    "rolled_back",
]


class EditOutcome(Value):
    """What became of one edit."""

    edit_id: str
    status: EditStatus
    reason: EditReason
    #: How the overall score changed; None if nothing was measured.
    benchmark_delta: float | None = None
    #: How each cluster changed.
    cluster_deltas: dict[str, float] = Field(default_factory=dict)
    error: str | None = None
    #: What a person should know besides: how its place was found, or why it would not fit.
    notes: tuple[str, ...] = ()
    applied_at: datetime | None = None


@dataclass(frozen=True)
class ApplyEdit:
    """Validate it, apply it, and measure it if there is something to measure by."""


@dataclass(frozen=True, kw_only=True)
class HoldForReview:
    """Not now: a person decides, or nobody can."""

    status: Literal["pending_review", "skipped"]
    reason: EditReason
    error: str | None = None


def tier_of(edit: Edit, overrides: Mapping[str, EditRiskTier] | None = None) -> EditRiskTier:
    """The tier of an edit: configuration's or the table's, of its operation and of whatever else
    it amounts to. Its author may only make it stricter."""
    table = {**TIERS, **(overrides or {})}
    given = [table.get(op, _UNKNOWN) for op in (edit.op, *_amounts_to(edit))]
    return max(*given, edit.risk_tier or EditRiskTier.AUTO, key=_STRICTNESS.index)


def _amounts_to(edit: Edit) -> tuple[EditOp, ...]:
    """Operations that an edit performs under another's name: after a diff, files may be gone."""
    diff = edit.payload.get("diff")
    if edit.op != EditOp.PATCH_FILE or not isinstance(diff, str):
        return ()
    try:
        return (EditOp.DELETE_FILE,) if parse(diff).vanishing else ()
    except PatchError:
        return ()  # it is refused anyway


def route(
    edit: Edit, mode: AutonomyMode, *, tier: EditRiskTier, supported: bool, approved: bool = False
) -> ApplyEdit | HoldForReview:
    """Whether an edit may be applied now. A person's approval overrides mode and tier."""
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
