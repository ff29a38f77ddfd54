"""Settings of edits."""

from __future__ import annotations

from pydantic import BaseModel, Field

from mulligan.policies.edits.edit import EditRiskTier


class EditSettings(BaseModel):
    #: Tiers of edit operations that override the built-in ones: `write_file = "review"`.
    edit_tiers: dict[str, EditRiskTier] = Field(default_factory=dict)
    #: Formatters that edits may name, each an argument list.
    formatters: dict[str, list[str]] = Field(default_factory=dict)
