"""Accepting jobs on Redis: the key alone decides which job it belongs to.

A job lives in the partition of its lane or its shared memory, else in that of its key. A key whose
job lives in another partition is reserved in its own one first: a script touches one partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import EXTERNAL, Decoding, Job, Output
from mulligan.policies.jobs.routing import queue_of
from mulligan.tasks.ports.ledger import (
    Accepted,
    BroughtAttempt,
    Entry,
    KeyConflict,
    Publication,
    Submission,
)
from mulligan.tasks.user_tasks.task_route import task_mode
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.partitions import Partitioned
from mulligan.workers.ledger.stored import job_ids, rows
from mulligan.workers.ledger.stored.digests import job_digest
from mulligan.workers.ledger.stored.stored_bodies import read_tolerantly

#: Milliseconds between reserving a key and storing its job. A later one starts again, so after this
#: time a reservation without a job may be replaced.
RESERVED_MS = 60_000
_FIRST = keys.partition_name(0)


class AcceptSteps(Partitioned):
    """See tasks.ports.ledger for the methods' contracts."""

    def accept(self, submissions: Sequence[Submission]) -> list[Accepted | KeyConflict]:
        self.numbers()  # what the settings say is in force before the first job
        answers = self._store(submissions)
        return [self._accepted(each, answers[i]) for i, each in enumerate(submissions)]

    def conflicts(self, submissions: Sequence[Submission]) -> set[str]:
        answers = self._look([(self._home_id(each), each.job) for each in submissions])
        unsure = [
            (i, answer[1] if answer[0] == "elsewhere" else submissions[i].id)
            for i, answer in enumerate(answers)
            if answer[0] == "elsewhere" or (answer[0] == "new" and answer[1] != submissions[i].id)
        ]
        found = self._look([(job_id, submissions[i].job) for i, job_id in unsure])
        for (i, _), answer in zip(unsure, found, strict=True):
            answers[i] = answer
        pairs = zip(submissions, answers, strict=True)
        return {each.id for each, answer in pairs if _is_another_job(each.job, answer)}

    def latest_id(self, job_id: str) -> str:
        """Return the id of the latest job with the idempotency key that this id is derived from."""
        number = self.calls.run("GET", keys.incarnation(self._prefix(job_id), job_id))
        return f"{job_id}_{number}" if int(number or 1) > 1 else job_id

    def _store(
        self, submissions: Sequence[Submission], *, instead: str | None = None
    ) -> dict[int, list[Any]]:
        """Return the answer for each job. ``instead``: an abandoned reservation to replace."""
        answers, reserved_at = self._reserve(submissions, instead)
        left = [i for i in range(len(submissions)) if i not in answers]
        requests = [
            {
                **self._accept_request(submissions[i]),
                "reserved_at": reserved_at.get(i),
                "instead": instead,
            }
            for i in left
        ]
        stored = self.calls.many(
            "accept", [(self._prefix(request["id"]), request) for request in requests]
        )
        answers |= dict(zip(left, stored, strict=True))
        return {i: self._final(submissions[i], answer) for i, answer in answers.items()}

    def _reserve(
        self, submissions: Sequence[Submission], instead: str | None
    ) -> tuple[dict[int, list[Any]], dict[int, str]]:
        """Reserve the keys of jobs that live in other partitions than their keys.

        Return the answers about keys that have a job or a reservation, and the other ones' times.
        """
        homes = {i: self._home_id(each) for i, each in enumerate(submissions)}
        away = [i for i, home in homes.items() if home != submissions[i].id]
        requests = [
            (
                self._prefix(homes[i]),
                {
                    "id": submissions[i].id,
                    "home": homes[i],
                    "digest": job_digest(submissions[i].job),
                    "deadline_ms": submissions[i].job.deadline * 1000,
                    "reserved_ms": RESERVED_MS,
                    "instead": instead,
                },
            )
            for i in away
        ]
        found = dict(zip(away, self.calls.many("reserve", requests), strict=True))
        return (
            {i: answer for i, answer in found.items() if answer[0] != "reserved"},
            {i: answer[1] for i, answer in found.items() if answer[0] == "reserved"},
        )

    def _final(self, submission: Submission, answer: list[Any]) -> list[Any]:
        """Follow an answer that is none yet."""
        match answer:
            case ["spread", *_]:  # by a process that has raised the number in the meantime
                self._read_numbers()
                scope = rows.scope_of(submission.job, self._settings) or submission.name
                partition = job_ids.partition_of_scope(scope, partitions=self.numbers().first)
                moved = replace(submission, id=f"{partition}-{submission.name}")
                return self._store([moved])[0]
            case ["late", *_]:
                return self._store([submission])[0]
            case ["elsewhere", other, record, abandoned]:
                (found,) = self._look([(other, submission.job)])
                if found[0] != "new":
                    return found
                if not abandoned:  # its job is being stored
                    return ["conflict", other]
                return self._store([submission], instead=record)[0]
        return answer

    def _look(self, jobs: Sequence[tuple[str, Job]]) -> list[list[Any]]:
        """Return what accepting would answer about these ids. Write nothing."""
        requests = [
            (
                self._prefix(job_id),
                {
                    "id": job_id,
                    "digest": job_digest(job),
                    "look": True,
                    "keyed": self._may_be_elsewhere(job),
                    "reserved_ms": RESERVED_MS,
                },
            )
            for job_id, job in jobs
        ]
        return self.calls.many("accept", requests)

    def _may_be_elsewhere(self, job: Job) -> bool:
        return job.idempotency_key is not None and self.numbers().first > 1

    def _home_id(self, submission: Submission) -> str:
        """Return the id that a job would have in the partition of its key."""
        if not self._may_be_elsewhere(submission.job):
            return submission.id
        name = submission.name
        return f"{job_ids.partition_of_scope(name, partitions=self.numbers().first)}-{name}"

    def _accept_request(self, submission: Submission) -> dict[str, Any]:
        job, job_id = submission.job, submission.id
        lane = rows.lane_of(job, self._settings)
        memory = rows.shared_memory_key(job, self._settings)
        named = job.idempotency_key or lane or memory or job_ids.is_user_task(job_id)
        in_first = keys.partition_of(job_id) == _FIRST
        return {
            "id": job_id,
            "body": job.model_dump_json(exclude_defaults=True),
            "digest": job_digest(job),
            "task_type": job.task_type,
            "name": job.label,
            "memory": memory,
            "deadline_ms": job.deadline * 1000,
            "priority": job.priority,
            "runner": rows.runner_key(job, Decoding()),
            "on_done": job.on_done.queue if job.on_done else None,
            "pool": rows.pool_of(job, self._settings) or None,
            "tenant": rows.tenant_of(job, self._settings) or None,
            "owner": submission.owner,
            "lane": lane,
            "first": self.numbers().first if named and in_first else None,
            "keyed": self._home_id(submission) == job_id and self._may_be_elsewhere(job),
            "reserved_ms": RESERVED_MS,
            "caller": task_mode(job) == "enforce",
            **self._needs(job, *_bodies(submission.brought)),
            **self._brought_request(submission.brought),
        }

    def _brought_request(self, brought: BroughtAttempt | None) -> dict[str, Any]:
        if brought is None:
            return {}
        report = {"token": brought.token, "worker": EXTERNAL, "report": brought.report}
        report |= answer_request(brought.output, brought.given)
        return {"report": report, **self._lease_terms()}

    def _accepted(self, submission: Submission, answer: list[Any]) -> Accepted | KeyConflict:
        status, job_id = answer[:2]
        if status != "accepted":
            if _is_another_job(submission.job, answer):
                return KeyConflict(id=job_id)
            return Accepted(id=job_id, status="seen")
        if answer[2] != "due":  # it waits in its subject's lane, or is parked
            return Accepted(id=job_id, status="accepted")
        queue = queue_of("initial", rows.pool_of(submission.job, self._settings))
        publication = Publication(Entry("attempt", job_id, 1), queue, submission.job.priority)
        return Accepted(id=job_id, status="accepted", publication=publication)


def answer_request(output: Output, given: Sequence[VerificationResult]) -> dict[str, Any]:
    """Return the part of a request that stores an answer."""
    return {
        "output": output.model_dump_json(exclude_defaults=True),
        **rows.spending_request(output),
        "seconds": output.elapsed_seconds,
        "given": [result.model_dump_json(exclude_defaults=True) for result in given],
    }


def _bodies(brought: BroughtAttempt | None) -> list[Output | VerificationResult]:
    return [brought.output, *brought.given] if brought else []


def _is_another_job(job: Job, answer: Sequence[Any]) -> bool:
    """Whether accepting found another job with the same key. A digest that another release made
    cannot be compared: the stored job can."""
    status, _, *body = answer
    if status != "compare":
        return bool(status == "conflict")
    stored = read_tolerantly(Job, body[0]).value
    return stored is None or job_digest(stored) != job_digest(job)
