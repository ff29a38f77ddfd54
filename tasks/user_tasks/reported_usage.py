"""The tokens that a user's task reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from mulligan.policies.jobs.job import Usage


@dataclass(frozen=True, kw_only=True)
class ReportedUsage:
    """The tokens that a task used in one attempt, as it reported them, and the last model."""

    usage: Usage = field(default_factory=Usage)
    model: str | None = None

    def plus(self, used: Usage, model: str | None) -> ReportedUsage:
        added = {
            name: mine if theirs is None else (mine or 0) + theirs
            for name in Usage.model_fields
            for mine, theirs in [(getattr(self.usage, name), getattr(used, name))]
        }
        return ReportedUsage(usage=Usage(**added), model=model or self.model)
