"""The wait-for graph of all loops: who waits for whom, and which waits can never end.

An event is a node of its own: its size is that of all items, waits and emitters together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mulligan.policies.coordination.outer_waits import open_waits
from mulligan.policies.loops.loop import LoopSnapshot, LoopState
from mulligan.policies.loops.plan import satisfied
from mulligan.policies.loops.spec import EVENT

#: The states in which a loop goes on, or would after a pause. Others may never begin.
_STARTED: frozenset[LoopState] = frozenset({"running", "waiting", "paused", "blocked", "completed"})
#: Items of a deadlock that a sentence names.
_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One reason for which an item waits."""

    #: `loop/item`, or `event:name`; of its own loop `loop/item`, too.
    what: str
    #: Who can end it: an item, or an event of `WaitGraph.emitters`. Empty if nobody is known.
    by: str
    #: Whether it leads out of the loop, so that a rule may break it.
    outer: bool


@dataclass(frozen=True, kw_only=True)
class WaitingNode:
    """An item that waits for others."""

    loop: str
    item: str
    #: When its loop was created, and since when it waits.
    loop_created: float
    since: float
    #: Whether a person keeps it from being begun.
    held: bool
    waits: tuple[Wait, ...]

    @property
    def name(self) -> str:
        return f"{self.loop}/{self.item}"

    @property
    def age(self) -> tuple[float, float, str]:
        return (self.loop_created, self.since, self.name)


@dataclass(frozen=True, kw_only=True)
class Deadlock:
    """Items that wait for each other, and the wait to break."""

    #: In the order in which each waits for the next one.
    cycle: tuple[str, ...]
    victim: WaitingNode
    wait: str
    #: Why it is this one, after "it is".
    rank: str = "the youngest"

    def __str__(self) -> str:
        more = len(self.cycle) - _NAMED
        left_out = [f"{more} more"] if more > 0 else []
        return " → ".join((*self.cycle[:_NAMED], *left_out, self.cycle[0]))


@dataclass(frozen=True, kw_only=True)
class WaitGraph:
    """All items that wait for others, by `loop/item`."""

    nodes: Mapping[str, WaitingNode] = field(default_factory=dict)
    #: Events, as in `Wait.by` → the items any of which can give them off.
    emitters: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def enders(self, by: str) -> Sequence[str]:
        """Return the items any of which would end a wait. ``by``: as in `Wait.by`."""
        if by.startswith(EVENT):
            return self.emitters.get(by, ())
        return (by,) if by else ()

    def deadlocks(self) -> list[Deadlock]:
        """Return every deadlock, after each of which the broken wait counts as ended."""
        stuck, found, hopeless = _Stuck(self), list[Deadlock](), set[str]()
        for start in sorted(stuck.waits):
            name, walk = start, dict[str, Wait]()  # each waits for the next one
            while name in stuck.waits and name not in hopeless:
                if name not in walk:
                    walk[name] = stuck.first_wait(name)
                    name = stuck.first_ender[walk[name].by]
                    continue
                deadlock = self._deadlock(_cycle(walk, name))
                if deadlock is None:
                    break
                found.append(deadlock)
                ended = stuck.end_wait(deadlock.victim.name, deadlock.wait)
                if any(item in hopeless for item, _ in ended):
                    hopeless.clear()
                # Go on from the first of them that does not wait for the next one any more.
                gone = {item for item, what in ended if item in walk and walk[item].what == what}
                while gone:
                    name, _ = walk.popitem()
                    gone.discard(name)
            hopeless.update(walk)
        return found

    def _deadlock(self, cycle: Sequence[tuple[str, Wait]]) -> Deadlock | None:
        """Return which wait of a cycle to break; None if people hold all that could be broken."""
        nodes = [(self.nodes[name], wait) for name, wait in cycle]
        free = [(n.age, n, wait.what) for n, wait in nodes if wait.outer and not n.held]
        if not free:
            return None
        age, victim, wait = max(free, key=lambda each: (each[0], each[2]))
        younger = [node for node, _ in nodes if node.age > age]
        reasons = [
            *(["nobody holds"] if any(n.held for n in younger) else []),
            *(["waits for another loop or an event"] if any(not n.held for n in younger) else []),
        ]
        rank = " and ".join(f"that {each}" for each in reasons)
        return Deadlock(
            cycle=tuple(name for name, _ in cycle),
            victim=victim,
            wait=wait,
            rank=f"the youngest {rank}".strip(),
        )


def _cycle(walk: dict[str, Wait], start: str) -> list[tuple[str, Wait]]:
    """Return the end of a walk, which has come back to one of its items."""
    found = list[tuple[str, Wait]]()
    for name in reversed(walk):
        found.append((name, walk[name]))
        if name == start:
            break
    return found[::-1]


class _Stuck:
    """The items that can never begin, with the waits because of which.

    What fails, is paused or is not known may still end a wait: only those are stuck that wait for
    nothing but each other. Each wait and each emitter is looked at once, however many items leave.
    """

    def __init__(self, graph: WaitGraph) -> None:
        #: Of each item, sorted by what it waits for.
        self.waits = {
            name: {each.what: each for each in sorted(node.waits, key=lambda each: each.what)}
            for name, node in graph.nodes.items()
        }
        #: `Wait.by` → the first of the items that could end it.
        self.first_ender = dict[str, str]()
        self._waiting: dict[str, list[tuple[str, str]]] = {}
        self._ends: dict[str, list[str]] = {}
        for name, node in graph.nodes.items():
            for wait in node.waits:
                self._waiting.setdefault(wait.by, []).append((name, wait.what))
        ended = list[tuple[str, str]]()
        for by in list(self._waiting):
            enders = graph.enders(by)
            if not enders or any(each not in graph.nodes for each in enders):
                ended += self._waiting.pop(by)
                continue
            self.first_ender[by] = min(enders)
            for each in enders:
                self._ends.setdefault(each, []).append(by)
        for name, what in ended:
            self.end_wait(name, what)

    def first_wait(self, name: str) -> Wait:
        return next(iter(self.waits[name].values()))

    def end_wait(self, name: str, what: str) -> list[tuple[str, str]]:
        """Let a wait end, and all that ends with it. Return these waits."""
        ended, ending = list[tuple[str, str]](), [(name, what)]
        while ending:
            item, wait = ending.pop()
            if item not in self.waits or self.waits[item].pop(wait, None) is None:
                continue
            ended.append((item, wait))
            if not self.waits[item]:
                del self.waits[item]
                for by in self._ends.get(item, ()):
                    ending += self._waiting.pop(by, ())
        return ended


def build_graph(snapshots: Sequence[LoopSnapshot]) -> WaitGraph:
    """Return who waits for whom in these loops, which are all that wait for each other."""
    loops = {each.loop.name: each for each in snapshots}
    nodes = (
        node
        for snapshot in snapshots
        if snapshot.loop.state in _STARTED
        for node in _nodes(snapshot, loops)
    )
    return WaitGraph(nodes={node.name: node for node in nodes}, emitters=_emitters(snapshots))


def _event(tenant: str, wait: str) -> str:
    return f"{EVENT}{tenant}/{wait.removeprefix(EVENT)}"


def _emitters(snapshots: Sequence[LoopSnapshot]) -> dict[str, list[str]]:
    """Return the items that can still give each event off."""
    found: dict[str, list[str]] = {}
    for snapshot in snapshots:
        for spec in snapshot.specs:
            for event in spec.emits:
                name = _event(snapshot.loop.tenant, event)
                found.setdefault(name, []).append(f"{snapshot.loop.name}/{spec.id}")
    return found


def _nodes(snapshot: LoopSnapshot, loops: Mapping[str, LoopSnapshot]) -> Iterator[WaitingNode]:
    loop, on_blocked = snapshot.loop, snapshot.config.on_blocked
    for spec in snapshot.specs:
        record = snapshot.record(spec.id)
        if record.state != "pending":
            continue
        own = [
            Wait(what=f"{loop.name}/{each}", by=f"{loop.name}/{each}", outer=False)
            for each in spec.own_dependencies
            if not satisfied(snapshot.record(each), on_blocked)
        ]
        outer = [
            Wait(what=each, by=_ender(each, loop.tenant, loops), outer=True)
            for each in open_waits(snapshot, spec, record)
        ]
        if own or outer:
            yield WaitingNode(
                loop=loop.name,
                item=spec.id,
                loop_created=loop.created_at,
                since=record.since,
                held=bool(snapshot.held_by(spec.id)),
                waits=(*own, *outer),
            )


def _ender(wait: str, tenant: str, loops: Mapping[str, LoopSnapshot]) -> str:
    if wait.startswith(EVENT):
        return _event(tenant, wait)
    loop, _, item = wait.partition("/")
    other = loops.get(loop)
    if other is None:
        return wait
    # What belongs to another tenant is never waited for.
    return f"{loop}/{other.last_part(item)}" if other.loop.tenant == tenant else ""
