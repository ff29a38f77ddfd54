"""The wait-for graph of all loops: who waits for whom, and which waits can never end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mulligan.policies.coordination.outer_waits import open_waits
from mulligan.policies.loops.loop import LoopSnapshot, LoopState
from mulligan.policies.loops.plan import satisfied
from mulligan.policies.loops.spec import EVENT

#: The states in which a loop goes on, or would after a pause. Others may never begin.
_STARTED: frozenset[LoopState] = frozenset({"running", "waiting", "paused", "blocked", "completed"})


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One reason for which an item waits. Any of the items it waits for would end it."""

    #: `loop/item`, or `event:name`; of its own loop `loop/item`, too.
    what: str
    #: The items that can end it; none if nobody is known who could.
    by: tuple[str, ...]
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

    def __str__(self) -> str:
        return " → ".join((*self.cycle, self.cycle[0]))


@dataclass(frozen=True, kw_only=True)
class WaitGraph:
    """All items that wait for others, by `loop/item`."""

    nodes: Mapping[str, WaitingNode] = field(default_factory=dict)

    def deadlocks(self) -> list[Deadlock]:
        """Return every deadlock, after each of which the broken wait counts as ended."""
        stuck, found = _Stuck(self.nodes), list[Deadlock]()
        for start in sorted(stuck.waits):
            while start in stuck.waits:
                cycle = stuck.cycle_from(start)
                deadlock = self._deadlock(cycle)
                if deadlock is None:
                    break
                found.append(deadlock)
                stuck.end_wait(deadlock.victim.name, deadlock.wait)
        return found

    def _deadlock(self, cycle: Sequence[tuple[str, Wait]]) -> Deadlock | None:
        """Return which wait of a cycle to break; None if people hold all that could be broken."""
        victims = [
            (self.nodes[name].age, name, wait.what)
            for name, wait in cycle
            if wait.outer and not self.nodes[name].held
        ]
        if not victims:
            return None
        _, name, wait = max(victims)
        names = tuple(each for each, _ in cycle)
        return Deadlock(cycle=names, victim=self.nodes[name], wait=wait)


class _Stuck:
    """The items that can never begin, with the waits because of which.

    What fails, is paused or is not known may still end a wait: only those are stuck that wait for
    nothing but each other. Each wait is looked at once, however many items leave.
    """

    def __init__(self, nodes: Mapping[str, WaitingNode]) -> None:
        self.waits = {
            name: {each.what: each for each in node.waits} for name, node in nodes.items()
        }
        self._waiting_for: dict[str, list[tuple[str, str]]] = {}
        ended = []
        for name, node in nodes.items():
            for wait in node.waits:
                if not wait.by or any(by not in nodes for by in wait.by):
                    ended.append((name, wait.what))
                for by in wait.by:
                    self._waiting_for.setdefault(by, []).append((name, wait.what))
        for name, what in ended:
            self.end_wait(name, what)

    def end_wait(self, name: str, what: str) -> None:
        """Let a wait end, and all that ends with it."""
        ending = [(name, what)]
        while ending:
            item, wait = ending.pop()
            if item not in self.waits or self.waits[item].pop(wait, None) is None:
                continue
            if not self.waits[item]:
                del self.waits[item]
                ending += self._waiting_for.get(item, [])

    def cycle_from(self, start: str) -> list[tuple[str, Wait]]:
        """Follow the waits from one item until one comes again; return the cycle with its waits."""
        path = dict[str, Wait]()
        name = start
        while name not in path:
            wait = self.waits[name][min(self.waits[name])]
            path[name] = wait
            name = min(wait.by)
        names = list(path)
        return [(each, path[each]) for each in names[names.index(name) :]]


def build_graph(snapshots: Sequence[LoopSnapshot]) -> WaitGraph:
    """Return who waits for whom in these loops, which are all that wait for each other."""
    emitters = _emitters(snapshots)
    tenants = {each.loop.name: each.loop.tenant for each in snapshots}
    nodes = (
        node
        for snapshot in snapshots
        if snapshot.loop.state in _STARTED
        for node in _nodes(snapshot, emitters, tenants)
    )
    return WaitGraph(nodes={node.name: node for node in nodes})


def _emitters(snapshots: Sequence[LoopSnapshot]) -> dict[tuple[str, str], list[str]]:
    """Return the items that can still give each event off, by tenant and event."""
    found: dict[tuple[str, str], list[str]] = {}
    for snapshot in snapshots:
        for spec in snapshot.specs:
            for event in spec.emits:
                key = (snapshot.loop.tenant, event)
                found.setdefault(key, []).append(f"{snapshot.loop.name}/{spec.id}")
    return found


def _nodes(
    snapshot: LoopSnapshot,
    emitters: Mapping[tuple[str, str], Sequence[str]],
    tenants: Mapping[str, str],
) -> Iterator[WaitingNode]:
    loop, on_blocked = snapshot.loop, snapshot.config.on_blocked
    for spec in snapshot.specs:
        record = snapshot.record(spec.id)
        if record.state != "pending":
            continue
        own = [
            Wait(what=f"{loop.name}/{each}", by=(f"{loop.name}/{each}",), outer=False)
            for each in spec.own_dependencies
            if not satisfied(snapshot.record(each), on_blocked)
        ]
        outer = [
            Wait(what=each, by=_enders(each, loop.tenant, emitters, tenants), outer=True)
            for each in open_waits(snapshot, spec, record)
        ]
        if own or outer:
            order = snapshot.orders.get(spec.id)
            yield WaitingNode(
                loop=loop.name,
                item=spec.id,
                loop_created=loop.created_at,
                since=record.since,
                held=order is not None and order.word == "hold",
                waits=(*own, *outer),
            )


def _enders(
    wait: str,
    tenant: str,
    emitters: Mapping[tuple[str, str], Sequence[str]],
    tenants: Mapping[str, str],
) -> tuple[str, ...]:
    if not wait.startswith(EVENT):  # what belongs to another tenant is never waited for
        loop = wait.partition("/")[0]
        return (wait,) if tenants.get(loop, tenant) == tenant else ()
    return tuple(emitters.get((tenant, wait.removeprefix(EVENT)), ()))
