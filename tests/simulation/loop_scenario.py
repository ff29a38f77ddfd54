"""The loops of a scenario, and what people do to them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from mulligan.policies.loops.commands import Verb
from mulligan.policies.loops.spec import ItemSpec, LoopDocument

if TYPE_CHECKING:
    from simulation.simulation import Simulation

_NAMES = ("alpha", "beta", "gamma")
_SCORES = ([90], [90], [100], [40, 90], [60, 50, 90], [10])
_REPOSITORY_SCORES = ([90], [90], [90], [100], [40, 90], [60, 50, 90], [10])
_VERBS = ("pause", "pause", "resume", "stop", "start", "start", "reset", "reset", "skip", "inject",
          "configure", "configure", "cancel", "requeue", "requeue", "plan", "plan",
          "slots")  # fmt: skip
#: What people do to loops that work in a repository.
_REPOSITORY_VERBS = (
    *_VERBS, *6 * ("rollback", "undo"), "push", "push", "stop", "start",
)  # fmt: skip
#: Where faults happen beside those of jobs, and their weights.
LOOP_CALLS = {"read_loop": 4, "write_loop": 8, "create_loop": 1, "loop_read": 4, "loop_written": 4}
#: Calls of a merge, at which people come between with a commit of theirs.
PUSH_CALLS = ("git_merge", "git_commit", "git_tree_of", "git_land")
REPOSITORY_CALLS = {
    "begin_merge": 12,
    "claim_verification": 8,
    "store_result": 10,
    "git_land": 24,
    "git_take_fence": 12,
    "git_history": 8,
    "git_begin_branch": 4,
    "git_commit": 6,
    "git_merge": 4,
    "git_files": 4,
    "git_resolve": 2,
    "git_save": 6,
    "git_saved": 2,
    "git_forget": 2,
    "git_tree_of": 2,
    "base_checked": 4,
    "merge_begun": 6,
    "merge_fenced": 8,
    "merge_verified": 6,
    "merge_failed": 8,
    "merge_landed": 16,
    "read_merges": 6,
    "set_merge_window": 4,
    "result_stored": 8,
    "rollback_fenced": 8,
    "rollback_landed": 12,
    "rollback_written": 4,
}


def make_item(name: str, *depends_on: str, scores: Sequence[float] = (90,), **shape: Any) -> Any:
    """Return an item whose attempts get these scores; the last one repeats.

    ``seconds``, ``uses`` (tokens), ``meters``, ``slow`` and ``priority`` describe it further.
    """
    return {
        "id": name,
        "prompt": "Do it.",
        "depends_on": list(depends_on),
        "priority": shape.get("priority", 5),
        "runner": {
            "kind": "simulated",
            "provider": shape.get("provider", "alpha"),
            "scores": list(scores),
            "takes": shape.get("seconds", 1.0),
            "uses": shape.get("uses", 10),
            "meters": shape.get("meters", False),
        },
        "verifiers": [
            {"id": "simulated.check", "slow": shape.get("slow", False), "same": False}
        ],
    }  # fmt: skip


def make_change(name: str, *depends_on: str, loop: str = "alpha", **shape: Any) -> Any:
    """Return an item that changes files of a repository: its own one, whose score is that of the
    attempt, and those that it shares with others.

    Further shapes: ``touches`` (names of shared files), ``apart`` (items that must be known to it
    if they are there), ``eager`` (items whose work it does, too), ``breaks`` (items whose merged
    work its first attempt spoils), ``idle`` and ``raises`` (numbers of attempts), ``early`` (it
    saves something before its end), ``declared`` (it says which files it changes).
    """
    item = make_item(name, *depends_on, **shape)
    for key in ("touches", "apart", "eager", "breaks", "idle", "raises"):
        item["runner"][key] = list(shape.get(key, ()))
    item["runner"]["early"] = shape.get("early", False)
    if shape.get("declared"):
        shared = [f"shared/{each}" for each in shape.get("touches", ())]
        item["touches"] = [f"{loop}/items/{name}", *shared]
    pairs = [[name, other] for other in shape.get("apart", ())]
    slow = shape.get("slow", False)
    item["verifiers"] = [
        {"id": "simulated.tree", "loop": loop, "item": name, "slow": slow},
        {"id": "simulated.guard", "loop": loop, "apart": pairs, "role": "guard", "slow": slow},
    ]
    return item


def make_loop(name: str, *items: Any, **config: Any) -> LoopDocument:
    # Those that look for regressions say so: older seeds stay as they were.
    quiet = {"regressions": False} if "repo" in config else {}
    loop = {"name": name, **quiet, **config}
    return LoopDocument.model_validate({"loop": loop, "items": list(items)})


@dataclass(frozen=True)
class PlannedLoop:
    at: float
    document: LoopDocument

    def __str__(self) -> str:
        loop = self.document.loop
        config = loop.model_dump(mode="json", exclude_defaults=True)
        lines = [f"{self.at:6.1f} s: loop {config}"]
        for item in self.document.items:
            runner = item.runner.options if item.runner else {}
            slow = bool(item.verifiers[0].options.get("slow"))
            lines.append(f"         {item.id} after {item.depends_on}: {runner} slow={slow}")
        return "\n".join(lines)

    def begin(self, simulation: Simulation) -> None:
        simulation.fleet.loops.create(self.document)


@dataclass(frozen=True)
class LoopAction:
    """Something that a person does to a loop, or to the job of an item."""

    at: float
    verb: str
    loop: str
    #: Empty: one that runs at that time.
    item: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    injected: LoopDocument | None = None

    def __str__(self) -> str:
        return f"{self.at:6.1f} s: {self.verb} {self.loop} {self.item} {self.values or ''}"

    def begin(self, simulation: Simulation) -> None:
        loops = simulation.fleet.loops
        item = self.item or simulation.world.checker.loops.running(self.loop)
        match self.verb:
            case "reset":
                loops.reset(self.loop, item)
            case "skip":
                loops.skip(self.loop, item)
            case "inject":
                assert self.injected is not None
                loops.inject(self.loop, self.injected)
            case "configure":
                loops.configure(self.loop, self.values)
            case "rollback":
                loops.roll_back(self.loop, place=self.values["place"])
            case "undo":
                merged = simulation.world.checker.repositories.merged_items(self.loop)
                place = int(self.values["place"] * len(merged))
                loops.roll_back(self.loop, item=merged[place] if merged else "i0")
            case "push":
                loops.push(self.loop, self.values["branch"], self.values["path"])
            case "slots":
                loops.set_slots(self.values["slots"])
            case "plan":
                loops.plan(self.loop)
            case "order":
                loops.order(self.loop, self.item, self.values["word"])
            case "overrule":
                loops.overrule(self.values["place"])
            case "emit":
                loops.emit(self.values["event"])
            case "cancel" | "requeue":
                job = simulation.item_job(self.loop, item)
                if job and self.verb == "cancel":
                    simulation.cancel(job)
                elif job:
                    simulation.requeue(job)
            case _:
                loops.move(self.loop, cast(Verb, self.verb))


def generate_loops(
    chance: random.Random, *, repositories: bool = False
) -> dict[str, PlannedLoop | LoopAction]:
    """Return one to three loops (l0…) and what people do to them (p0…).

    ``repositories``: most of them work in one.
    """
    # Without drawing from it, so that seeds which found something still do.
    healing = random.Random(chance.getstate()[1][0])
    parts = _repository_loops(chance) if repositories else _plain_loops(chance)
    parts = {name: _with_healing(healing, part) for name, part in parts.items()}
    return {name: _with_groups(healing, part) for name, part in parts.items()}


#: Without `split`: no simulated runner drafts an item.
_HEALS: tuple[list[str], ...] = (
    [],
    ["change_strategy"],
    ["change_strategy", "unblock", "rollback", "escalate"],
    ["unblock", "repair_dependency_chain", "skip"],
    ["change_strategy", "repair_dependency_chain", "escalate"],
)


def _with_healing(
    chance: random.Random, part: PlannedLoop | LoopAction
) -> PlannedLoop | LoopAction:
    """Let half of the loops heal themselves."""
    heals = chance.choice(_HEALS) if chance.random() < 0.6 else []
    if not heals or isinstance(part, LoopAction):
        return part
    config: dict[str, Any] = {"auto_heal": tuple(heals)}
    if "repair_dependency_chain" in heals:
        config["on_blocked"] = "reroute"
    loop = part.document.loop.model_copy(update=config)
    return replace(part, document=part.document.model_copy(update={"loop": loop}))


def _with_groups(chance: random.Random, part: PlannedLoop | LoopAction) -> PlannedLoop | LoopAction:
    """Let items of some loops say which files they change, and those of some be merged at once."""
    if isinstance(part, LoopAction) or part.document.loop.repo is None:
        return part
    loop, items = part.document.loop, part.document.items
    if chance.random() < 0.5:
        items = tuple(
            each.model_copy(update={"touches": _touches(each, loop.name)}) for each in items
        )
    if chance.random() < 0.5:
        loop = loop.model_copy(update={"concurrency": 7})
        items = tuple(map(_at_once, items))
    return replace(part, document=part.document.model_copy(update={"loop": loop, "items": items}))


def _at_once(item: ItemSpec) -> ItemSpec:
    """Return an item that takes as long as others, and longer to verify."""
    assert item.runner is not None
    runner = item.runner.model_copy(update={"takes": 1.0})
    slow = tuple(each.model_copy(update={"slow": True}) for each in item.verifiers)
    return item.model_copy(update={"runner": runner, "verifiers": slow})


def _touches(item: ItemSpec, loop: str) -> tuple[str, ...]:
    shared = item.runner.options.get("touches", ()) if item.runner else ()
    own = f"{loop}/items/{item.id}", f"{loop}/notes/{item.id}"
    return (*own, *(f"shared/{each}" for each in shared))


def _plain_loops(chance: random.Random) -> dict[str, PlannedLoop | LoopAction]:
    parts: dict[str, PlannedLoop | LoopAction] = {}
    names = _NAMES[: chance.randint(1, 3)]
    for i, name in enumerate(names):
        at = round(chance.uniform(0, 15), 1)
        parts[f"l{i}"] = PlannedLoop(at, make_loop(name, *_items(chance), **_config(chance)))
    for i in range(chance.randint(0, 8)):
        parts[f"p{i}"] = _action(chance, i, chance.choice(names))
    return parts


def _repository_loops(chance: random.Random) -> dict[str, PlannedLoop | LoopAction]:
    parts: dict[str, PlannedLoop | LoopAction] = {}
    names = _NAMES[: chance.choice([1, 1, 2])]
    for i, name in enumerate(names):
        at = round(chance.uniform(0, 10), 1)
        items = _changes(chance, name) if i == 0 or chance.random() < 0.7 else _items(chance)
        config = _config(chance)
        if items[0]["verifiers"][0]["id"] == "simulated.tree":
            config |= _repository(chance)
        parts[f"l{i}"] = PlannedLoop(at, make_loop(name, *items, **config))
    for i in range(chance.randint(1, 10)):
        parts[f"p{i}"] = _repository_action(chance, i, chance.choice(names))
    return parts


def _repository(chance: random.Random) -> dict[str, Any]:
    sync, target = chance.choice(["main", "main", None]), chance.choice(["release", "main"])
    return {
        "repo": "repo",
        "concurrency": chance.randint(1, 5),
        "already_done": chance.choice(["skip", "skip", "refuse"]),
        "sync": sync,
        "deliver": chance.choice(["branch", {"fast_forward": target if sync else "release"}]),
        "budget": _budget(chance) if chance.random() < 0.2 else {},
    }


def _changes(chance: random.Random, loop: str) -> list[Any]:
    count = chance.randint(2, 7)
    linked = chance.choice([0.0, 0.2, 0.4])
    shared = chance.choice([0.0, 0.3, 0.6])
    names = [f"i{n}" for n in range(count)]
    return [
        make_change(
            name,
            *(each for each in names[:n] if chance.random() < linked),
            loop=loop,
            touches=[each for each in "xy" if chance.random() < shared],
            apart=[each for each in names if each != name and chance.random() < 0.05],
            eager=[each for each in names if each != name and chance.random() < 0.03],
            idle=[each for each in (1, 2) if chance.random() < 0.05],
            raises=[each for each in (1, 2) if chance.random() < 0.08],
            early=chance.random() < 0.3,
            **_shape(chance) | {"scores": chance.choice(_REPOSITORY_SCORES)},
        )
        for n, name in enumerate(names)
    ]


def _repository_action(chance: random.Random, number: int, loop: str) -> LoopAction:
    at, verb = round(chance.uniform(4, 95), 1), chance.choice(_REPOSITORY_VERBS)
    item = f"i{chance.randrange(5)}"
    if verb in ("rollback", "undo"):
        return LoopAction(at, verb, loop, values={"place": round(chance.uniform(0.1, 0.99), 2)})
    if verb == "push":
        branch = chance.choice(["main", "main", f"mulligan/{loop}"])
        path = chance.choice(["shared/x", "README", "docs"])
        return LoopAction(at, verb, loop, values={"branch": branch, "path": path})
    if verb == "inject":
        new = make_change(f"new{number}", item, loop=loop, **_shape(chance))
        return LoopAction(at, verb, loop, injected=make_loop(loop, new))
    return _action(chance, number, loop, verb, at)


def _items(chance: random.Random) -> list[Any]:
    count = chance.randint(3, 12)
    linked = chance.choice([0.0, 0.2, 0.5])
    return [
        make_item(
            f"i{n}",
            *(f"i{each}" for each in range(n) if chance.random() < linked),
            **_shape(chance),
        )
        for n in range(count)
    ]


def _shape(chance: random.Random) -> dict[str, Any]:
    return {
        "scores": chance.choice(_SCORES),
        "seconds": chance.choice([0.2, 1.0, 3.0, 8.0]),
        "uses": chance.choice([10, 25, 60]),
        "meters": chance.random() < 0.5,
        "slow": chance.random() < 0.2,
        "provider": chance.choice(["alpha", "alpha", "beta"]),
        "priority": chance.choice([5, 5, 1]),
    }


def _config(chance: random.Random) -> dict[str, Any]:
    return {
        "priority": chance.choice([5, 5, 1]),
        "weight": chance.choice([1.0, 1.0, 3.0]),
        "concurrency": chance.randint(1, 4),
        "on_blocked": chance.choice(["wait", "wait", "continue"]),
        "max_attempts": chance.choice([2, 3]),
        "budget": _budget(chance),
    }


def _budget(chance: random.Random) -> dict[str, Any]:
    shared = {chance.choice(["loop", "day"]): {"tokens": chance.choice([60, 150, 400])}}
    return chance.choice(
        [
            {},
            shared,
            {"attempt": {"tokens": chance.choice([20, 40])}, **shared},
            {"item": {"tokens": 80}, **shared},
        ]
    )


def _action(
    chance: random.Random, number: int, loop: str, verb: str = "", at: float = 0.0
) -> LoopAction:
    if not verb:
        at, verb = round(chance.uniform(2, 80), 1), chance.choice(_VERBS)
    item = f"i{chance.randrange(6)}"
    if verb == "inject":
        injected = make_loop(loop, make_item(f"new{number}", item, **_shape(chance)))
        return LoopAction(at, verb, loop, injected=injected)
    if verb == "slots":
        return LoopAction(at, verb, loop, values={"slots": chance.randint(1, 3)})
    if verb == "configure":
        values: dict[str, Any] = chance.choice(
            [
                {"concurrency": chance.randint(1, 4)},
                {"priority": chance.choice([1, 5, 9])},
                {"budget": {"loop": {"tokens": chance.choice([30, 200, 1000, None])}}},
                {"budget": {"day": {"tokens": chance.choice([30, 200, 1000, None])}}},
            ]
        )
        return LoopAction(at, verb, loop, values=values)
    return LoopAction(at, verb, loop, item=chance.choice(["", item]))
