"""What loops have to do with each other, on Redis: locks on files, events and decisions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from mulligan.policies.coordination.decision import Decision
from mulligan.policies.coordination.locks import FileLock
from mulligan.tasks.ports.ledger import Coordination, EmittedEvent, Publication
from mulligan.workers.ledger.loop_steps import LoopSteps
from mulligan.workers.ledger.stored import loop_rows, rows

#: Events that people have given off and that are kept, for each tenant.
MOST_SIGNALS = 1_000


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

    def coordination(self, *, limit: int = 100) -> Coordination:
        locks, denied, events, decisions, coupled = self.calls.one(
            "read_coordination", self._loops_prefix, limit=limit
        )
        return Coordination(
            locks=loop_rows.read_locks(locks),
            denied=rows.fields(denied),
            events=[loop_rows.read_event(*each) for each in rows.fields(events).items()],
            decisions=[Decision.parse(text) for text in decisions],
            coupled=coupled,
        )

    def emit_event(
        self, name: str, *, tenant: str, by: str
    ) -> tuple[Literal["emitted", "seen", "full"], Sequence[Publication]]:
        answer = self.calls.one(
            "emit_event", self._loops_prefix, event=name, tenant=tenant, by=by, most=MOST_SIGNALS
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

    def forget_events(self, events: Sequence[EmittedEvent]) -> int:
        found = {f"{each.tenant}/{each.name}": each.at for each in events}
        if not found:
            return 0
        return int(self.calls.one("forget_events", self._loops_prefix, events=found)[0])
