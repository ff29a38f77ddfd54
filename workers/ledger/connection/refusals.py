"""Why Redis does not do what it is asked: recognised once, by type and by the text of its errors.

Redis 6.2 wraps the error of a command inside a script: ``Error running script (call to f_…):
@user_script:1: @user_script: 1: -OOM command not allowed …``. Redis 7 and Valkey pass it on as it
is. redis-py strips the code of the errors that it has a class for.
"""

from __future__ import annotations

import re
from enum import StrEnum

import redis
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError


class Refusal(StrEnum):
    """A condition of Redis that passes, by itself or by an operator's hand."""

    AWAY = "away"
    LOADING = "loading"
    BUSY = "busy"
    READ_ONLY = "read_only"
    FULL = "full"
    DISK = "disk"
    NO_REPLICAS = "no_replicas"

    @property
    def refuses_writes(self) -> bool:
        """Whether Redis answers, and refuses only what would be stored."""
        return self in (Refusal.READ_ONLY, Refusal.FULL, Refusal.DISK, Refusal.NO_REPLICAS)

    @property
    def ends_by_itself(self) -> bool:
        """Whether it usually ends without an operator: a restart, a failover, a long script."""
        return self in (Refusal.AWAY, Refusal.LOADING, Refusal.BUSY, Refusal.READ_ONLY)


#: What to say of the ledger or the broker; `away` names the address instead.
SAID = {
    Refusal.LOADING: "is loading its data after a start",
    Refusal.BUSY: "is busy with a script that runs too long",
    Refusal.READ_ONLY: "is read-only: its Redis is a replica, perhaps after a failover",
    Refusal.FULL: "is full (maxmemory): Redis stores nothing until it has free memory",
    Refusal.DISK: "cannot write to its disk, so Redis stores nothing",
    Refusal.NO_REPLICAS: "has too few replicas (min-replicas-to-write)",
}

_CODES = {
    "OOM": Refusal.FULL,
    "READONLY": Refusal.READ_ONLY,
    "BUSY": Refusal.BUSY,
    "LOADING": Refusal.LOADING,
    "MISCONF": Refusal.DISK,
    "NOREPLICAS": Refusal.NO_REPLICAS,
    "MASTERDOWN": Refusal.AWAY,
    "CLUSTERDOWN": Refusal.AWAY,
    "TRYAGAIN": Refusal.AWAY,
}
_TYPES = (
    (BusyLoadingError, Refusal.LOADING),  # a ConnectionError to redis-py
    (redis.ConnectionError, Refusal.AWAY),
    (redis.TimeoutError, Refusal.AWAY),
    (ReadOnlyError, Refusal.READ_ONLY),
    (OutOfMemoryError, Refusal.FULL),
)
#: What redis-py and Redis add to the error of a script or a pipeline.
_NOISE = re.compile(
    r"^(?:Command # \d+ \(.*\) of pipeline caused error: )?"
    r"(?:(?:ERR )?Error running script \(call to f_\w+\): )?(?:@\w+: ?\d+: )*(?:-(?=[A-Z]))?"
    r"|\s*script: [0-9a-f]{40}, on @\w+:\d+\.?",
    re.DOTALL,
)
_CODE = re.compile(r"([A-Z]+) ")


def plain_text(error: Exception) -> str:
    """Return what Redis says, without what redis-py and the script engine add."""
    return _NOISE.sub("", str(error)).rstrip(".")


def refusal_of(error: Exception) -> Refusal | None:
    """Return the condition that an error tells of; None if the request itself is at fault."""
    for kind, refusal in _TYPES:
        if isinstance(error, kind):
            return refusal
    code = _CODE.match(plain_text(error))
    return _CODES.get(code.group(1)) if code else None
