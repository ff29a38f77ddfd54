"""Escalations on Redis: reading, grouping and ending them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mulligan.policies.jobs.job import AttemptPlan, Decoding
from mulligan.tasks.ports.ledger import (
    ClaimRefused,
    Ended,
    Escalation,
    EscalationEnd,
    EscalationGroup,
)
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.partitions import Partitioned
from mulligan.workers.ledger.stored import rows
from mulligan.workers.ledger.stored.stored_bodies import read_record, read_records

#: Maximum groups, the newest, to filter.
_GROUPS_SCANNED = 5000
#: Filters read at most this many escalations, newest first.
_SCANNED = 20_000
#: Escalations to read in one round trip.
_CHUNK = 500


class EscalationSteps(Partitioned):
    """See tasks.ports.ledger for the methods' contracts."""

    def groups(
        self, *, only_open: bool = True, tenant: str | None = None, limit: int = 100
    ) -> list[EscalationGroup]:
        names: list[str] = []
        for prefix in self.prefixes():
            newest = self.calls.run("ZREVRANGE", keys.groups(prefix), 0, _GROUPS_SCANNED - 1)
            names += [keys.group(prefix, signature) for signature in newest]
        found = [
            group
            for group in self._read_groups(names).values()
            if (group.open or not only_open) and (tenant is None or tenant in group.tenants)
        ]
        return sorted(found, key=lambda group: group.last_at, reverse=True)[:limit]

    def group(self, signature: str) -> EscalationGroup | None:
        return self.groups_of([signature]).get(signature)

    def groups_of(self, signatures: Sequence[str]) -> dict[str, EscalationGroup]:
        """Return the groups of these signatures that exist. One round trip."""
        prefixes = self.prefixes()
        return self._read_groups([keys.group(p, each) for each in signatures for p in prefixes])

    def _read_groups(self, names: Sequence[str]) -> dict[str, EscalationGroup]:
        """Return the groups with these keys by signature, merged over the partitions."""
        found: dict[str, EscalationGroup] = {}
        *read, muted = self.calls.hashes([*names, self._muted])
        groups = read_records(
            (name, partial(rows.read_group, row, muted))
            for name, row in zip(names, read, strict=True)
            if row
        )
        for group in groups:
            known = found.get(group.signature)
            found[group.signature] = rows.merge_groups(known, group) if known else group
        return found

    def escalation(self, escalation_id: str) -> Escalation | None:
        name = keys.escalation(self._prefix(escalation_id), escalation_id)
        row = self.calls.hashes([name])[0]
        if not row:
            return None
        return read_record(name, lambda: rows.read_escalation(escalation_id, row))

    def escalations(
        self,
        *,
        signature: str | None = None,
        only_open: bool = True,
        tenant: str | None = None,
        limit: int = 50,
    ) -> list[Escalation]:
        # A group's index holds only open escalations.
        scan_all = signature is None or not only_open

        def matches(each: Escalation) -> bool:
            return (
                (each.state == "open" or not only_open)
                and (signature is None or each.signature == signature)
                and (tenant is None or each.tenant == tenant)
            )

        found: list[Escalation] = []
        for prefix in self.prefixes():
            if scan_all:
                index, count = keys.escalations(prefix), _SCANNED
            else:
                index = keys.open_of_group(prefix, signature or "")
                count = limit if tenant is None else 0  # 0: all
            ids = self.calls.run("ZREVRANGE", index, 0, count - 1)
            found += self._first(prefix, ids, matches, limit)
        return sorted(found, key=lambda each: each.at, reverse=True)[:limit]

    def _first(
        self, prefix: str, ids: Sequence[str], matches: Callable[[Escalation], bool], limit: int
    ) -> list[Escalation]:
        """Read escalations in chunks until at least ``limit`` match; return the matches."""
        found: list[Escalation] = []
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            names = [keys.escalation(prefix, i) for i in chunk]
            read = read_records(
                (name, partial(rows.read_escalation, i, row))
                for name, i, row in zip(names, chunk, self.calls.records(names), strict=True)
                if row
            )
            found += [each for each in read if matches(each)]
            if len(found) >= limit:
                break
        return found

    def end_escalation(
        self,
        escalation_id: str,
        *,
        how: EscalationEnd,
        by: str,
        note: str = "",
        prompt: str | None = None,
        decoding: Decoding | None = None,
    ) -> Ended | ClaimRefused:
        prefix = self._prefix(escalation_id)
        job_id = escalation_id.partition(":")[0]
        while True:
            request: dict[str, Any] = {
                "id": escalation_id, "how": how, "by": by, "note": note,
            }  # fmt: skip
            if how == "requeued":
                job = self.calls.hashes([keys.job(prefix, job_id)])[0]
                if job:
                    plan, terms = read_record(
                        keys.job(prefix, job_id),
                        partial(_requeue_terms, job, prompt=prompt, decoding=decoding),
                    )
                    request |= terms | self._needs(plan)
            answer = self.calls.one("end_escalation", prefix, **request)
            if answer[0] == "stored":
                continue  # another escalation of the same job was requeued since we read the job
            if answer[0] != "ended":
                return ClaimRefused(*answer)
            return Ended(state=how, publication=rows.publication(answer[1]) if answer[1] else None)

    def mute(self, signature: str, *, until: float | None) -> bool:
        if self.group(signature) is None:
            return False
        if until is None:
            self.calls.run("HDEL", self._muted, signature)
        else:
            self.calls.run("HSET", self._muted, signature, until * 1000)
        return True

    @property
    def _muted(self) -> str:
        # One place for all partitions: a group is muted where it has no escalation yet, too.
        return keys.muted(keys.fleet_prefix(self._settings.key_prefix))


def _requeue_terms(
    job: Mapping[str, str], *, prompt: str | None, decoding: Decoding | None
) -> tuple[AttemptPlan, dict[str, Any]]:
    plan = rows.requeue_plan(job, prompt=prompt, decoding=decoding)
    return plan, rows.requeue_request(job, plan)
