"""Random loops whose items break what others have made."""

from __future__ import annotations

import random
from dataclasses import replace

from simulation.coordination_scenario import Parts, make_loop_of
from simulation.loop_scenario import PlannedLoop

#: Where faults happen beside those of loops, and their weights.
REGRESSION_CALLS = {"regression_decided": 8, "regression_written": 8, "commit_checked": 8}


def with_regressions(chance: random.Random, parts: Parts) -> Parts:
    """Let most loops with a repository verify again what passed, and their items break others."""
    return {
        name: _with_breaks(chance, part) if isinstance(part, PlannedLoop) else part
        for name, part in parts.items()
    }


def _with_breaks(chance: random.Random, planned: PlannedLoop) -> PlannedLoop:
    document = planned.document.model_dump(mode="json", exclude_unset=True)
    if document["loop"].get("repo") is None or chance.random() < 0.2:
        return planned
    rules = {"roll_back": chance.random() < 0.4, "after_merge": chance.random() < 0.9}
    document["loop"]["regressions"] = {**rules, "every": 60}
    breaks = chance.choice([0.1, 0.3])
    for item in document["items"]:
        others = [each["id"] for each in document["items"] if each is not item]
        item["runner"]["breaks"] = [each for each in others if chance.random() < breaks]
    return replace(planned, document=make_loop_of(document))
