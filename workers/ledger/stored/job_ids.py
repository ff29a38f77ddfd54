"""Job ids: `<partition>-<name>`, so that an id tells its job's partition."""

from __future__ import annotations

import hashlib
import secrets
import time
import zlib
from collections.abc import Iterator

from mulligan.workers.ledger.keys import partition_name, partition_of

__all__ = [
    "is_user_task",
    "item_job_id",
    "job_id",
    "job_ids_of_key",
    "partition_of",
    "partition_of_scope",
    "user_task_job_id",
]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def job_id(*, partitions: int, key: str | None = None, scope: str | None = None) -> str:
    """Return a new id, sortable by time, or the id that belongs to an idempotency key."""
    name = _new_name() if key is None else _name_of_key(key)
    return f"{partition_of_scope(scope or name, partitions=partitions)}-{name}"


def job_ids_of_key(key: str, *, partitions: int) -> Iterator[str]:
    """Yield the ids that the job with this idempotency key may have.

    The memory scope decides the partition, and the key does not contain it.
    """
    name = _name_of_key(key)
    return (f"{partition_name(number)}-{name}" for number in range(partitions))


def user_task_job_id(root_id: str, *, partitions: int) -> str:
    """Return the job id of a user's Celery task, derived from the id of its first message."""
    number = int.from_bytes(hashlib.sha256(root_id.encode()).digest()[:14])
    name = "own" + _base32(number, 20)
    return f"{partition_of_scope(name, partitions=partitions)}-{name}"


def item_job_id(loop: str, item: str, run: int) -> str:
    """Return the id of the job of an item's run. Loops live in the first partition."""
    digest = hashlib.sha256(f"{loop}/{item}/{run}".encode()).digest()
    return f"{partition_name(0)}-i{_base32(int.from_bytes(digest[:14]), 22)}"


def is_user_task(job_id: str) -> bool:
    return job_id.partition("-")[2].startswith("own")


def is_item(job_id: str) -> bool:
    """Whether the job does an item of a loop. No other name has this letter."""
    return job_id.partition("-")[2].startswith("i")


def partition_of_scope(scope: str, *, partitions: int) -> str:
    """Return the partition that holds the jobs of a scope."""
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
