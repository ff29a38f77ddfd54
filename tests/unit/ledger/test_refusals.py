"""Recognising why Redis refuses, by the errors of Redis 6.2 and 7.0 as redis-py raises them."""

from __future__ import annotations

import pytest
import redis
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError, ResponseError

from mulligan.workers.ledger.connection.refusals import Refusal, plain_text, refusal_of

OOM = "command not allowed when used memory > 'maxmemory'."
READONLY = "You can't write against a read only replica."
BUSY = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
NOREPLICAS = "NOREPLICAS Not enough good replicas to write."
MISCONF = (
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to"
    " disk. Commands that may modify the data set are disabled."
)
#: What Redis 6.2 writes before the error of a command inside a script.
WRAPPED = (
    "Error running script (call to f_0a9f75e991483d02789696e4c90d26c10395863e): @user_script:1:"
    " @user_script: 1: -"
)
PIPELINE = 'Command # 1 (EVALSHA 0a9f 1 p {"id":"x"}) of pipeline caused error: '
#: What Redis 7 writes after it.
PLACE = " script: 0a9f75e991483d02789696e4c90d26c10395863e, on @user_script:1."


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis.ConnectionError("Error 111 connecting to x:6379."), Refusal.AWAY),
        (redis.TimeoutError("Timeout reading from socket"), Refusal.AWAY),
        (ResponseError("MASTERDOWN Link with MASTER is down"), Refusal.AWAY),
        (ResponseError("CLUSTERDOWN The cluster is down"), Refusal.AWAY),
        (BusyLoadingError("Redis is loading the dataset in memory"), Refusal.LOADING),
        (OutOfMemoryError(OOM), Refusal.FULL),
        (OutOfMemoryError(OOM + PLACE), Refusal.FULL),
        (ResponseError(f"{WRAPPED}OOM {OOM}"), Refusal.FULL),
        (ResponseError(f"{PIPELINE}{WRAPPED}OOM {OOM}"), Refusal.FULL),
        (ReadOnlyError(READONLY), Refusal.READ_ONLY),
        (ReadOnlyError(READONLY + PLACE), Refusal.READ_ONLY),
        (ResponseError(f"{WRAPPED}READONLY {READONLY}"), Refusal.READ_ONLY),
        (ResponseError(f"ERR {WRAPPED}READONLY {READONLY}"), Refusal.READ_ONLY),
        (ResponseError(f"{PIPELINE}{WRAPPED}READONLY {READONLY}"), Refusal.READ_ONLY),
        (ResponseError(BUSY), Refusal.BUSY),
        (ResponseError(PIPELINE + BUSY), Refusal.BUSY),
        (ResponseError(MISCONF), Refusal.DISK),
        (ResponseError(f"{WRAPPED}{MISCONF}"), Refusal.DISK),
        (ResponseError(NOREPLICAS + PLACE), Refusal.NO_REPLICAS),
        (ResponseError(f"{WRAPPED}{NOREPLICAS}"), Refusal.NO_REPLICAS),
        (ResponseError("WRONGTYPE Operation against a key"), None),
        (ResponseError(f"{WRAPPED}WRONGTYPE Operation against a key"), None),
        (ResponseError("NOPERM this user has no permissions"), None),
        (ResponseError("Error running script: attempt to index a nil value about OOM x"), None),
    ],
)
def test_the_reason_of_a_refusal_is_recognised(error: Exception, expected: Refusal | None) -> None:
    assert refusal_of(error) is expected


def test_the_text_for_readers_has_no_script_in_it() -> None:
    wrapped = ResponseError(f"{PIPELINE}{WRAPPED}WRONGTYPE Operation against a key")
    assert plain_text(wrapped) == "WRONGTYPE Operation against a key"
    assert plain_text(ReadOnlyError(READONLY + PLACE)) == READONLY.rstrip(".")
