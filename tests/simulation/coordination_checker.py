"""The invariants of loops that have to do with each other, checked after each script and at rest.

It keeps its own record of orders, and of who could have run: what is checked must not do the
checking.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mulligan.policies.coordination.order import DEADLOCK_RULE
from mulligan.policies.jobs.job import TERMINAL
from mulligan.policies.loops.admission import most_begun
from mulligan.policies.loops.spec import ItemSpec
from mulligan.policies.path_patterns import shared_file
from mulligan.workers.ledger import keys
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.loop_checker import LoopChecker

_DONE = ("passed", "skipped")
_GAVE_UP = ("failed", "quarantined")
#: Longer than a planner, or a monitor, takes from its first reading to its write.
_WRITE_SECONDS = 90.0
_STARTED = ("running", "waiting", "blocked", "completed", "paused")
_EVENT = "event:"

Place = tuple[str, str]


@dataclass(frozen=True)
class Said:
    """What people say about an item, and the waits that the rule has broken."""

    words: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()

    def ignores(self, wait: str) -> bool:
        return wait in self.broken or "ignore_waits" in self.words


@dataclass
class _Chance:
    """Since when an item could have run, and how often each other loop went before it."""

    since: float
    passed_by: Counter[str] = field(default_factory=Counter)


@dataclass
class CoordinationChecker:
    loops: LoopChecker
    #: Items → their orders, as the scripts wrote them.
    orders: dict[Place, Said] = field(default_factory=dict)
    #: Jobs that may run beside others that have their files.
    unlocked: set[str] = field(default_factory=set)
    #: Process → the names of those that it has seen with files, and those that wait for them.
    _seen: dict[Process, set[str]] = field(default_factory=dict)
    #: When each process first read a loop since its last write.
    _read_at: dict[Process, float] = field(default_factory=dict)
    #: The waits that the rule has broken, and how often.
    broken: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _people_at: float = float("-inf")
    _chances: dict[Place, _Chance] = field(default_factory=dict)

    # -- while the run goes on --------------------------------------------------------------------

    def restored(self) -> None:
        """Redis has lost its last second."""
        self._chances.clear()
        self._people_at = self._now

    def script_answered(
        self, script: str, request: dict[str, Any], answer: Any, process: Process
    ) -> None:
        if script == "read_loop":
            self._read(answer, process)
        elif script == "emit_event":
            self._people_at = self._now
        elif script == "write_loop":
            if answer[0] == "written":
                self._written(request, process)
            self._seen.pop(process, None)
            self._read_at.pop(process, None)

    def _read(self, answer: Any, process: Process) -> None:
        """Invariant: the files of what has ended are free."""
        self._read_at.setdefault(process, self._now)
        if not answer[0]:
            return
        live, seen = self.loops.live_now(), self._seen.setdefault(process, set())
        for job_id, text in answer[5][5]:
            lock = json.loads(text)
            seen.add(f"{lock['loop']}/{lock['item']}")
            row = self.loops.job_row(job_id)
            if job_id not in live and row.get("state", "cancelled") in TERMINAL:
                self._violated(
                    f"{job_id} of {lock['loop']}/{lock['item']} has ended with its files"
                )
        for demand in answer[5][4]:
            *_, items, _records, _files, _seen, _orders = demand
            seen |= {f"{demand[0]}/{item}" for item in items}

    def _written(self, request: dict[str, Any], process: Process) -> None:
        seen = self._seen.get(process, set())
        if request["by"] not in ("", "planner", "monitor", DEADLOCK_RULE):
            self._people_at = self._now
        for loop, change in request["changes"].items():
            for item, text in (change["orders"] or {}).items():
                self._ordered(request, loop, item, text)
            if change.get("fields"):
                self._forget(loop)
        admitted = [each for each in request["admit"] if self.loops.has_slot(each["id"])]
        self._check_decisions(request, seen)
        later = {each["id"] for each in admitted}
        for each in admitted:  # one after the other
            later.discard(each["id"])
            self._admitted(each, later)
        self._check_turns(admitted, self._read_at.get(process, self._now))

    def _ordered(self, request: dict[str, Any], loop: str, item: str, text: str) -> None:
        found = json.loads(text) if text else {"said": [], "broken": []}
        before = self.orders.pop((loop, item), Said())
        now = Said(frozenset(each["word"] for each in found["said"]), frozenset(found["broken"]))
        if text:
            self.orders[loop, item] = now
        if {"first", "hold"} <= now.words:
            self._violated(f"{loop}/{item} is to go first and is held")
        if request["by"] == DEADLOCK_RULE:
            if now.words != before.words:
                self._violated(f"the rule for deadlocks changed what is said about {loop}/{item}")
            self._check_broken(request, loop, item, now.broken - before.broken)
        elif now.broken != before.broken and not request["changes"][loop]["overrules"]:
            self._violated(f"{loop}/{item} waits again although nobody overruled that")

    def _admitted(self, each: dict[str, Any], later: set[str]) -> None:
        loop, item, job_id = each["loop"], each["item"], each["id"]
        order = self.orders.pop((loop, item), Said())
        if "hold" in order.words:
            self._violated(f"{loop}/{item} got a slot although a person holds it")
        if "ignore_locks" in order.words:
            self.unlocked.add(job_id)
        if self._now - self.loops.restored_at > _WRITE_SECONDS:
            if job_id not in self.unlocked:
                self._check_files(loop, item, {job_id, *later})
            if each.get("job"):
                self._check_waits(loop, item, order)

    def _check_files(self, loop: str, item: str, without: set[str]) -> None:
        """Invariant: no item begins with files that another one has."""
        found = self._holder(loop, item, without)
        if found is not None:
            self._violated(f"{loop}/{item} got a slot with files of {found}")

    def _check_waits(self, loop: str, item: str, order: Said) -> None:
        """Invariant: no item begins before what it waits for, unless somebody said so."""
        spec = self.loops.specs[loop].get(item)
        runs = self.loops.items(loop)[item].runs
        for wait in spec.outer_waits if spec else ():
            taken = wait.startswith(_EVENT) and runs > 1
            if not order.ignores(wait) and not taken and not self._is_met(loop, wait):
                self._violated(f"{loop}/{item} got a slot before {wait}")

    def _is_met(self, loop: str, wait: str) -> bool:
        if wait.startswith(_EVENT):
            name = wait.removeprefix(_EVENT)
            return bool(self._client.hexists(f"{self._prefix}loops:events", f"/{name}"))
        other, _, item = wait.partition("/")
        record = self.loops.items(other).get(item)
        goes_on = self.loops.config(loop).get("on_blocked") == "continue"
        return record is not None and (
            record.state in _DONE or (goes_on and record.state in _GAVE_UP)
        )

    # -- decisions --------------------------------------------------------------------------------

    def _check_decisions(self, request: dict[str, Any], seen: set[str]) -> None:
        """Invariant: decisions say who got a slot, and who was denied one because of whom."""
        made = request["decisions"] or []
        slots = {(each["loop"], each["item"]) for each in made if each["kind"] == "slot"}
        admitted = {(each["loop"], each["item"]) for each in request["admit"]}
        if slots != admitted:
            self._violated(f"{admitted} got slots, but the decisions say {slots}")
        known = seen | {f"{loop}/{item}" for loop, item in admitted}
        known |= {
            f"{loop}/{item}"
            for loop, change in request["changes"].items()
            for item in change["items"] or ()
        }
        for each in made:
            if each["kind"] != "denied":
                continue
            name, holder = f"{each['loop']}/{each['item']}", each["other"]
            if holder not in known:
                self._violated(f"{name} was denied a slot for {holder}, which nobody saw")
            loop, _, item = holder.partition("/")
            if not self._share(each["loop"], each["item"], loop, item):
                self._violated(f"{name} was denied a slot for {holder}, which has other files")

    def _share(self, loop: str, item: str, other: str, other_item: str) -> bool:
        mine, theirs = self._files(loop, item), self._files(other, other_item)
        # What was overruled meanwhile is not declared any more.
        lost = not mine or not theirs or self._now - self._people_at < _WRITE_SECONDS
        return lost or shared_file(mine, theirs) is not None

    # -- turns ------------------------------------------------------------------------------------

    def _forget(self, loop: str) -> None:
        self._chances = {each: found for each, found in self._chances.items() if each[0] != loop}

    def _check_turns(self, admitted: Sequence[dict[str, Any]], read_at: float) -> None:
        """Invariant: an item that could run for priority times ageing is overdue.

        From then on each other loop gets one slot at most before its loop does.
        """
        ageing = self.loops.settings.loop_ageing
        for each in admitted:
            self._forget(each["loop"])
        could_run = set(self._could_run())
        for place in list(self._chances):
            if place not in could_run:
                del self._chances[place]
        ordered = any("a person lets it go first" in each["because"] for each in admitted)
        for place in could_run:
            chance = self._chances.setdefault(place, _Chance(self._now))
            overdue = chance.since + int(self.loops.row(place[0])["priority"]) * ageing
            if not ageing or ordered or read_at < overdue:
                continue
            chance.passed_by.update(each["loop"] for each in admitted)
            for other, times in chance.passed_by.items():
                if times > 1:
                    self._violated(f"{other} got {times} slots before {place}, which is overdue")

    def _could_run(self) -> Iterator[Place]:
        """Yield the items that are ready and that nothing but the number of slots holds back."""
        live = Counter(self.loops.jobs[job][0] for job in self.loops.live_now())
        for loop in self._client.smembers(f"{self._prefix}loops:active"):
            row = self.loops.row(loop)
            concurrency, begun = (
                abs(int(row["concurrency"])),
                self._client.scard(self._part(loop, "begun")),
            )
            limited = self._client.hlen(self._part(loop, "limits")) > 1
            if limited or live[loop] >= concurrency or begun >= most_begun(concurrency):
                continue
            for item in self._client.zrange(self._part(loop, "ready"), 0, -1):
                if not self.holds_back(loop, item):
                    yield loop, item

    def held(self, loop: str) -> Callable[[str], bool]:
        """Return whether a person lets an item of a loop get no slot."""
        return lambda item: "hold" in self._said(loop, item).words

    def unsay(self, loop: str, item: str) -> None:
        """Note that people say nothing about an item any more."""
        self.orders[loop, item] = Said(broken=self._said(loop, item).broken)

    def _said(self, loop: str, item: str) -> Said:
        return self.orders.get((loop, item), Said())

    def holds_back(self, loop: str, item: str) -> bool:
        """Whether something else than the number of slots keeps a ready item from its slot."""
        words = self._said(loop, item).words
        if "hold" in words:
            return True
        if "ignore_locks" in words:
            return False
        return self._holder(loop, item) is not None or self._rival(loop, item)

    def _rival(self, loop: str, item: str) -> bool:
        """Whether another one that waits for its files may go first."""
        mine, space = self._files(loop, item), self._space(loop)
        if not mine or not self.loops.settings.loop_ageing:
            return False
        waiting = (
            (other, each)
            for other in self.loops.specs
            if self._space(other) == space
            for each, state in self.loops.states(other).items()
            if state in ("ready", "running") and (other, each) != (loop, item)
        )
        return any(shared_file(mine, self._files(*each)) for each in waiting)

    # -- deadlocks --------------------------------------------------------------------------------

    def _check_broken(
        self, request: dict[str, Any], loop: str, item: str, waits: Iterable[str]
    ) -> None:
        """Invariant: the rule breaks waits of deadlocks only, and says so."""
        name = f"{loop}/{item}"
        texts = [each["text"] for each in request["decisions"] if each["kind"] == "deadlock"]
        heals = [json.loads(each) for each in request["changes"][loop]["heals"].values()]
        if len(texts) != 1 or [each["action"] for each in heals] != ["escalate"]:
            self._violated(f"a wait of {name} is broken with {texts} and {len(heals)} escalations")
            return
        cycle = texts[0].removeprefix("deadlock: ").partition(";")[0].split(" → ")[:-1]
        for wait in waits:
            self.broken[loop, item, wait] += 1
            times, runs = self.broken[loop, item, wait], self.loops.items(loop)[item].runs
            if times > runs + 1 and not self._people_were_here():
                self._violated(f"the wait of {name} for {wait} is broken again")
        if name not in cycle:
            self._violated(f"{name} is not part of {cycle}")
        if self._people_were_here():
            return
        for each in cycle:
            other, _, found = each.partition("/")
            record = self.loops.items(other).get(found)
            if record is None or record.state != "pending":
                self._violated(f"{name} is broken because of {each}: {record}")
        self._check_youngest(name, cycle)

    def _people_were_here(self) -> bool:
        """Whether a person, or the end of Redis, may have changed what a plan was made from."""
        return self._now - max(self._people_at, self.loops.restored_at) < _WRITE_SECONDS

    def _check_youngest(self, name: str, cycle: Sequence[str]) -> None:
        def created(each: str) -> float:
            return float(self.loops.row(each.partition("/")[0])["created_at"])

        outer = [
            each
            for each, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
            if self._waits_outside(each, after)
        ]
        if any(created(each) > created(name) for each in outer):
            self._violated(f"{name} is not the youngest of {cycle}")

    def _waits_outside(self, name: str, other: str) -> bool:
        """Whether an item waits for another one in a way that the rule may break."""
        loop, _, item = name.partition("/")
        spec = self.loops.specs[loop][item]
        ends = self._spec(other)
        events = [_EVENT + each for each in ends.emits] if ends else []
        return not {other, *events}.isdisjoint(spec.outer_waits)

    def stuck(self) -> set[str]:
        """Return the items that can never begin, because they wait for each other only."""
        waiting = {
            f"{loop}/{item}": waits
            for loop in self.loops.specs
            if self.loops.row(loop).get("state") in _STARTED
            for item, record in self.loops.items(loop).items()
            if record.state == "pending" and (waits := [*self._open_waits(loop, item, record.runs)])
        }
        while True:
            kept = {
                name: waits
                for name, waits in waiting.items()
                if any(each and each <= waiting.keys() for each in waits)
            }
            if kept.keys() == waiting.keys():
                return set(waiting)
            waiting = kept

    def _open_waits(self, loop: str, item: str, runs: int) -> Iterator[set[str]]:
        """Yield for each wait the items that could end it."""
        spec = self.loops.specs[loop].get(item)
        said = self._said(loop, item)
        for wait in (*spec.own_dependencies, *spec.outer_waits) if spec else ():
            full = wait if "/" in wait or wait.startswith(_EVENT) else f"{loop}/{wait}"
            ignored = full == wait and said.ignores(wait)
            if ignored or (wait.startswith(_EVENT) and runs) or self._is_met(loop, full):
                continue
            yield set(self._emitters(wait)) if wait.startswith(_EVENT) else {full}

    def _emitters(self, wait: str) -> Iterator[str]:
        event = wait.removeprefix(_EVENT)
        for loop in self.loops.specs:
            for item, spec in self.loops.specs[loop].items():
                if event in spec.emits and self.loops.row(loop):
                    yield f"{loop}/{item}"

    # -- at rest ----------------------------------------------------------------------------------

    def check_rest(self) -> None:
        """Check what must be true when nothing moves."""
        for job_id, text in self._client.hgetall(f"{self._prefix}loops:locks").items():
            if self.loops.job_row(job_id).get("state", "cancelled") in TERMINAL:
                self._violated(f"the ended {job_id} still has {text}")
        for name in self._client.hkeys(f"{self._prefix}loops:denied"):
            loop, _, item = name.partition("/")
            record = self.loops.items(loop).get(item)
            if record is None or record.state not in ("ready", "running"):
                self._violated(f"{name} is said to wait for files: {record}")
        stuck = self.stuck()
        for name in stuck:
            loop, _, item = name.partition("/")
            held = self.held(loop)(item)
            waits = self._open_waits(loop, item, self.loops.items(loop)[item].runs)
            outer = any(each.partition("/")[0] != loop for found in waits for each in found)
            if outer and not held and self._in_cycle(name, stuck):
                self._violated(f"{name} is part of a deadlock that nobody breaks")

    def _in_cycle(self, name: str, stuck: set[str]) -> bool:
        """Whether an item waits for itself, by items that are not held by a person."""
        reached, left = set[str](), [name]
        while left:
            loop, _, item = left.pop().partition("/")
            runs = self.loops.items(loop)[item].runs
            for ends in self._open_waits(loop, item, runs):
                new = (ends & stuck) - reached if ends <= stuck else set()
                reached |= new
                left += sorted(new)
        held = {
            f"{loop}/{item}" for (loop, item), said in self.orders.items() if "hold" in said.words
        }
        return name in reached and held.isdisjoint(reached)

    # -- records ----------------------------------------------------------------------------------

    def _holder(self, loop: str, item: str, without: Collection[str] = ()) -> str | None:
        """Return who has files of an item: with a slot, or for a while without one."""
        mine, space, live = self._files(loop, item), self._space(loop), self.loops.live_now()
        for other in live.difference(without) if mine else ():
            holder, files = self.loops.jobs[other], self._granted(other)
            beside = holder != (loop, item) and self._space(holder[0]) == space
            if beside and files and shared_file(mine, files):
                return "/".join(holder)
        for other, text in self._client.hgetall(f"{self._prefix}loops:locks").items():
            lock = json.loads(text)
            name = f"{lock['loop']}/{lock['item']}"
            kept = lock.get("expires", 0) > self._now * 1000 and other not in live
            ended = self.loops.job_row(other).get("state", "cancelled") in TERMINAL
            beside = lock["space"] == space and name != f"{loop}/{item}"
            if kept and not ended and beside and shared_file(mine, lock["files"]):
                return name
        return None

    def _granted(self, job_id: str) -> Sequence[str]:
        """Return the files that an item got with its slot, or declared later."""
        text = self._client.hget(f"{self._prefix}loops:locks", job_id)
        return json.loads(text)["files"] if text else ()

    def _files(self, loop: str, item: str) -> tuple[str, ...]:
        """Return what an item declares, and what it was seen to change."""
        spec = self._spec(f"{loop}/{item}")
        seen = self._client.hget(self._part(loop, "seen"), item)
        return (*(spec.touches if spec else ()), *(json.loads(seen) if seen else ()))

    def _spec(self, name: str) -> ItemSpec | None:
        loop, _, item = name.partition("/")
        return self.loops.specs.get(loop, {}).get(item)

    def _space(self, loop: str) -> str:
        return str(self._client.hget(keys.loop(self._prefix, loop), "space") or "")

    def _part(self, loop: str, part: str) -> str:
        return f"{keys.loop(self._prefix, loop)}:{part}"

    def _violated(self, text: str) -> None:
        self.loops.checker.violated(text)

    @property
    def _now(self) -> float:
        return self.loops.checker.world.scheduler.now

    @property
    def _client(self) -> Any:
        return self.loops.checker.world.server.client

    @property
    def _prefix(self) -> str:
        return self.loops.prefix
