"""Whose fault an error of the broker is: kombu wraps the errors of its transports in its own."""

from __future__ import annotations

from collections.abc import Iterator

from amqp import exceptions as amqp  # type: ignore[import-untyped] # has no types
from kombu.exceptions import LimitExceeded, OperationalError
from redis import exceptions as redis

#: The broker refuses every message for now.
_REFUSING = (
    redis.OutOfMemoryError,
    redis.ReadOnlyError,
    redis.BusyLoadingError,
    redis.ClusterDownError,
    redis.TryAgainError,
    redis.AuthenticationError,
    redis.MaxConnectionsError,
    amqp.Blocked,
    LimitExceeded,
)
#: The same, where redis-py has no class.
_REFUSING_CODES = ("BUSY ", "MISCONF ", "NOREPLICAS ")
_LOST = (redis.ConnectionError, redis.TimeoutError, amqp.RecoverableConnectionError, OSError)


def takes_no_messages(error: BaseException) -> bool:
    """Return whether the broker answers that it takes no messages now, whatever they are."""
    return any(
        isinstance(cause, _REFUSING)
        or (isinstance(cause, redis.ResponseError) and _names_refusal(str(cause)))
        for cause in _causes(error)
    )


def lost_connection(error: BaseException) -> bool:
    """Return whether there was no connection to the broker, or it broke."""
    causes = list(_causes(error))
    return any(isinstance(cause, _LOST) for cause in causes) or isinstance(
        causes[-1], OperationalError
    )


def _names_refusal(text: str) -> bool:
    # A pipeline puts its own words before the code.
    return any(text.startswith(code) or f": {code}" in text for code in _REFUSING_CODES)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
