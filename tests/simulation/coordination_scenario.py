"""What random loops have to do with each other: files, events, items of others, and orders."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from mulligan.policies.coordination.order import ORDER_WORDS
from simulation.loop_scenario import LoopAction, PlannedLoop, make_loop

Parts = dict[str, PlannedLoop | LoopAction]
#: Where faults happen beside those of loops, and their weights.
COORDINATION_CALLS = {
    "read_coordination": 2,
    "read_waits": 4,
    "emit_event": 2,
    "declare_files": 2,
    "hdel": 1,
}
_EVENTS = ("api-ready", "data-ready")
#: Some of them meet, some do not.
_PATTERNS = ("x", "/src/x", "src/**", "src/*.py", "/src/a.py", "docs/", "/docs/x", "tests/**")
#: The files that items of loops with a repository share: see `make_change`.
_SHARED = ("shared/x", "shared/y", "shared/**", "docs")


def with_coordination(chance: random.Random, parts: Parts) -> Parts:
    """Let loops lock files and wait for each other, and people give orders (q0…)."""
    loops = {name: part for name, part in parts.items() if isinstance(part, PlannedLoop)}
    names = [part.document.loop.name for part in loops.values()]
    kept = {name: part for name, part in parts.items() if name not in loops}
    files, waits = chance.choice([0.0, 0.4, 0.8]), chance.choice([0.0, 0.15, 0.3])
    found: Parts = {
        key: _coordinated(chance, part, names, files, waits) for key, part in loops.items()
    }
    for i in range(chance.choice([0, 0, 2, 5])):
        found[f"q{i}"] = _order(chance, chance.choice(names))
    return {**found, **kept}


def _coordinated(
    chance: random.Random, planned: PlannedLoop, names: list[str], files: float, waits: float
) -> PlannedLoop:
    document = planned.document.model_dump(mode="json", exclude_unset=True)
    others = [each for each in names if each != document["loop"]["name"]]
    in_repository = document["loop"].get("repo") is not None
    for item in document["items"]:
        if chance.random() < files:
            item["touches"] = _touches(chance, item, in_repository)
        if chance.random() < waits and others:
            other = f"{chance.choice(others)}/i{chance.randrange(4)}"
            item["depends_on"] = [*item["depends_on"], other]
        emits = [each for each in _EVENTS if chance.random() < waits / 2]
        item["emits"] = emits
        item["waits_for"] = [
            each for each in _EVENTS if each not in emits and chance.random() < waits / 3
        ]
    document["loop"]["priority"] = chance.choice([1, 2, 5, 9])
    return replace(planned, document=make_loop_of(document))


def make_loop_of(document: dict[str, Any]) -> Any:
    config = dict(document["loop"])
    return make_loop(config.pop("name"), *document["items"], **config)


def _touches(chance: random.Random, item: dict[str, Any], in_repository: bool) -> list[str]:
    if not in_repository:
        return chance.sample(_PATTERNS, chance.randint(1, 2))
    # Its own file, and some of those that it shares: it may change others all the same.
    own = [f"*/items/{item['id']}"] if chance.random() < 0.8 else []
    return [*own, *chance.sample(_SHARED, chance.randint(0 if own else 1, 2))]


def _order(chance: random.Random, loop: str) -> LoopAction:
    at, verb = (
        round(chance.uniform(1, 80), 1),
        chance.choice(["order", "order", "emit", "overrule"]),
    )
    if verb == "emit":
        return LoopAction(at, verb, loop, values={"event": chance.choice(_EVENTS)})
    if verb == "overrule":
        return LoopAction(at, verb, loop, values={"place": round(chance.uniform(0, 0.99), 2)})
    word = chance.choice([*ORDER_WORDS, None])
    return LoopAction(at, verb, loop, item=f"i{chance.randrange(6)}", values={"word": word})
