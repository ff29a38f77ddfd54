"""Ids of jobs: `<partition>-<name>`, so that an id says where its job is."""

from __future__ import annotations

import hashlib
import secrets
import time
import zlib
from collections.abc import Iterator

from mulligan.workers.ledger.keys import partition_name, partition_of

__all__ = ["is_own", "job_id", "job_ids_of_key", "own_job_id", "partition_of", "partition_of_scope"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def job_id(*, partitions: int, key: str | None = None, scope: str | None = None) -> str:
    """A new id, sortable by time; with an idempotency key, the id that belongs to it."""
    name = _new_name() if key is None else _name_of_key(key)
    return f"{partition_of_scope(scope or name, partitions=partitions)}-{name}"


def job_ids_of_key(key: str, *, partitions: int) -> Iterator[str]:
    """The ids that the job with this idempotency key may have.

    The key does not tell its job's partition: the memory scope decides it.
    """
    name = _name_of_key(key)
    return (f"{partition_name(number)}-{name}" for number in range(partitions))


def own_job_id(root_id: str, *, partitions: int) -> str:
    """The job of a user's own Celery task, named after the first message of its line."""
    number = int.from_bytes(hashlib.sha256(root_id.encode()).digest()[:14])
    name = "own" + _base32(number, 20)
    return f"{partition_of_scope(name, partitions=partitions)}-{name}"


def is_own(job_id: str) -> bool:
    return job_id.partition("-")[2].startswith("own")


def partition_of_scope(scope: str, *, partitions: int) -> str:
    """The partition that holds the jobs of a scope."""
    return partition_name(zlib.crc32(scope.encode()) % partitions)


def _new_name() -> str:
    return _base32(int(time.time() * 1000), 9) + _base32(secrets.randbits(65), 13)


def _name_of_key(key: str) -> str:
    return "k" + _base32(int.from_bytes(hashlib.sha256(key.encode()).digest()[:14]), 22)


def _base32(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
