"""Settings of the rules that tell a stuck agent from one that works."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, Field

from mulligan.policies.jobs.job import Seconds
from mulligan.policies.loops.stuck import Rule, RuleName, StuckAction, changed_rules


class StuckSettings(BaseModel):
    #: Other thresholds of rules: a number, or a duration. 0 switches a rule off.
    stuck: dict[RuleName, Seconds] = Field(default_factory=dict)
    #: Other actions of rules.
    stuck_actions: dict[RuleName, StuckAction] = Field(default_factory=dict)

    @property
    def stuck_rules(self) -> Mapping[RuleName, Rule]:
        """The table of rules as it is configured."""
        return changed_rules(self.stuck, self.stuck_actions)
