"""What loops have to do with each other, on Redis: locks on files, events and decisions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from mulligan.policies.coordination.decision import Decision
from mulligan.policies.coordination.locks import FileLock
from mulligan.policies.coordination.order import ItemOrders
from mulligan.policies.loops.loop import LoopSnapshot
from mulligan.policies.loops.spec import is_loop_name
from mulligan.tasks.ports.ledger import Coordination, Publication
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.loop_steps import LoopSteps
from mulligan.workers.ledger.stored import loop_rows, rows
from mulligan.workers.ledger.stored.stored_bodies import read_record

#: Events that one person or system has given off and that are kept, of all tenants together.
MOST_SIGNALS = 1_000
#: The items that an event names of those that gave it off; the others are counted.
NAMED = 10
#: Loops, or events, that are read at once: Redis serves others between two such pieces.
_READ_AT_ONCE = 50


class CoordinationSteps(LoopSteps):
    """See tasks.ports.ledger for the methods' contracts."""

    def declare_files(
        self, lock: FileLock, *, seen: Sequence[str], new: Sequence[str], text: str
    ) -> bool:
        answer = self.calls.one(
            "declare_files",
            self._loops_prefix,
            loop=lock.loop,
            item=lock.item,
            id=lock.job_id,
            seen=loop_rows.stored_files(seen),
            all=json.dumps(lock.files),
            new=json.dumps(list(new)),
            lock=loop_rows.stored_lock(lock, self._settings.lock_ttl),
            text=text,
        )
        return bool(answer[0] == "declared")

    def coordination(self, *, limit: int = 100, tenant: str | None = None) -> Coordination:
        locks, denied, events, decisions, orders = self.calls.one(
            "read_coordination", self._loops_prefix, limit=limit, tenant=tenant, named=NAMED
        )
        return Coordination(
            locks=loop_rows.read_locks(locks),
            denied=rows.fields(denied),
            events=[loop_rows.read_event(each) for each in events],
            decisions=[Decision.parse(text) for text in decisions],
            orders={loop: loop_rows.read_orders(rows.fields(each)) for loop, each in orders},
        )

    def coupled_loops(self) -> list[str]:
        return sorted(self.calls.run("SMEMBERS", keys.coupled_loops(self._loops_prefix)))

    def loop_waits(self, names: Sequence[str]) -> Iterator[LoopSnapshot]:
        names = [name for name in names if is_loop_name(name)]
        for start in range(0, len(names), _READ_AT_ONCE):
            piece = names[start : start + _READ_AT_ONCE]
            requests = [(self._loops_prefix, {"loop": name}) for name in piece]
            for name, answer in zip(piece, self.calls.many("read_waits", requests), strict=True):
                row, items, others = answer
                if not row:
                    continue
                loop = self._read_row(name, rows.fields(row))
                specs = self._specs_of(loop)
                if specs is None:
                    yield from self.loop_waits([name])  # items were added between the two reads
                    continue
                yield LoopSnapshot(
                    loop=loop,
                    specs=specs,
                    items=self._read_items(name, items),
                    **loop_rows.read_others(*others),
                )

    def loop_orders(self, names: Sequence[str]) -> list[Mapping[str, ItemOrders]]:
        places = [keys.loop_orders(self._loops_prefix, name) for name in names]
        return [
            read_record(place, partial(loop_rows.read_orders, row))
            for place, row in zip(places, self.calls.records(places), strict=True)
        ]

    def event_sources(self, tenant: str, event: str | None = None) -> Mapping[str, Sequence[str]]:
        begins = tenant if event is None else f"{tenant}/{event}"
        key, found = keys.event_sources(self._loops_prefix), dict[str, list[str]]()
        # In the order of texts, 0 follows /.
        for member in self.calls.run("ZRANGEBYLEX", key, f"[{begins}/", f"({begins}0"):
            of, name, loop = member.rsplit("/", 2)
            if of == tenant:
                found.setdefault(name, []).append(loop)
        return found

    def emit_event(
        self, name: str, *, tenant: str, by: str, account: str
    ) -> tuple[Literal["emitted", "seen", "full"], Sequence[Publication]]:
        answer = self.calls.one(
            "emit_event",
            self._loops_prefix,
            event=name,
            tenant=tenant,
            by=by,
            account=account,
            most_signals=MOST_SIGNALS,
        )
        if answer[0] == "emitted":
            return "emitted", rows.publications(answer[1])
        return ("seen" if answer[0] == "seen" else "full"), ()

    def withdraw_event(
        self, name: str, *, tenant: str
    ) -> tuple[Literal["withdrawn", "held", "unknown"], Sequence[Publication]]:
        answer = self.calls.one(
            "emit_event", self._loops_prefix, event=name, tenant=tenant, withdraw=True
        )
        if answer[0] == "withdrawn":
            return "withdrawn", rows.publications(answer[1])
        return ("held" if answer[0] == "held" else "unknown"), ()

    def forget_events(self, *, before: float) -> int:
        found = _READ_AT_ONCE
        gone = 0
        while found == _READ_AT_ONCE:
            removed, found = self.calls.one(
                "forget_events", self._loops_prefix, before=before * 1000, most=_READ_AT_ONCE
            )
            gone += removed
        return gone
