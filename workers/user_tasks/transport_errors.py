"""Which exceptions of a user's task say that a server could not be reached or asked to wait.

They are recognised by their structure: an HTTP status, an errno, a class and the package that
defines it. No message is read, and nothing is imported for it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from mulligan.policies.failures.classify import message_of
from mulligan.tasks.ports.errors import TransportFault
from mulligan.workers.runners.openai_faults import may_succeed_later
from mulligan.workers.runners.rate_limit_headers import asked_wait

#: Package → its classes for connections that failed or took too long; subclasses count, too.
_AWAY: dict[str, frozenset[str]] = {
    "builtins": frozenset({"ConnectionError", "TimeoutError"}),
    "socket": frozenset({"gaierror", "herror"}),
    "ssl": frozenset({"SSLError"}),
    "http": frozenset({"BadStatusLine", "IncompleteRead"}),
    "httpx": frozenset({"TimeoutException", "NetworkError", "RemoteProtocolError", "ProxyError"}),
    "requests": frozenset({"ConnectionError", "Timeout", "ChunkedEncodingError"}),
    "urllib3": frozenset({"TimeoutError", "ProtocolError", "ProxyError"}),
    "aiohttp": frozenset({"ClientConnectionError", "ClientPayloadError"}),
    "openai": frozenset({"APIConnectionError"}),
    "redis": frozenset({"ConnectionError", "TimeoutError"}),
    "botocore": frozenset({"ConnectionError", "HTTPClientError"}),
    "amqp": frozenset({"RecoverableConnectionError"}),
    "kombu": frozenset({"OperationalError"}),
}
#: Packages with the classes of another one.
_SAME = {"httpcore": "httpx", "httpx2": "httpx", "httpcore2": "httpx", "anthropic": "openai"}
#: Subclasses of these that waiting does not cure.
_FINAL = {
    "builtins": frozenset({"BrokenPipeError"}),  # of a program; libraries wrap that of a socket
    "ssl": frozenset({"SSLCertVerificationError"}),
    "requests": frozenset({"SSLError"}),
    "redis": frozenset({"AuthenticationError"}),
    "botocore": frozenset({"SSLError"}),
}
_ERRNOS = frozenset(
    {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT}
)
#: Packages whose exceptions have the HTTP status as ``code``.
_STATUS_IS_CODE = ("urllib", "google")
#: Statuses of gRPC.
_GRPC = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"})
_MOST_CAUSES = 5


def transport_fault(error: Exception, *, wait: float | None = None) -> TransportFault | None:
    """Return the fault that an exception means; None if it is no fault of the transport.

    ``wait``: the seconds that the task itself asked for.
    """
    if isinstance(error, TransportFault):
        return error
    for cause in _causes(error):
        status = _status(cause)
        if status is not None and not may_succeed_later(status):
            return None
        if status is not None or _is_away(cause):
            asked = [each for each in (wait, _retry_after(cause)) if each is not None]
            return TransportFault(
                f"{type(error).__name__}: {message_of(error)}"[:500],
                provider=_package(type(cause)),
                status=status,
                retry_after=max(asked, default=None),
            )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception, and those that it was explicitly raised from or wraps."""
    cause: Any = error
    for _ in range(_MOST_CAUSES):
        yield cause
        wrapped = _attribute(cause, "reason")  # of urllib and urllib3
        cause = wrapped if isinstance(wrapped, BaseException) else cause.__cause__
        if cause is None:
            return


def _is_away(error: BaseException) -> bool:
    for base in type(error).__mro__:
        package = _package(base)
        if base.__name__ in _FINAL.get(package, ()):
            return False
        if base.__name__ in _AWAY.get(package, ()):
            return True
    return _attribute(error, "errno") in _ERRNOS or _grpc_status(error) in _GRPC


def _package(kind: type) -> str:
    root = kind.__module__.partition(".")[0]
    return _SAME.get(root, root)


def _grpc_status(error: BaseException) -> str | None:
    code = _attribute(error, "code")
    if not callable(code) or not any(_package(base) == "grpc" for base in type(error).__mro__):
        return None
    return str(_attribute(code(), "name"))


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an exception or of the response that it has."""
    response = _attribute(error, "response")
    found = [
        _attribute(holder, name)
        for holder in (error, response)
        for name in ("status_code", "status", "http_status")
    ]
    found.append(_metadata(response).get("HTTPStatusCode"))
    if any(_package(base) in _STATUS_IS_CODE for base in type(error).__mro__):
        found.append(_attribute(error, "code"))
    return next((each for each in found if isinstance(each, int) and 400 <= each < 600), None)


def _retry_after(error: BaseException) -> float | None:
    seconds = _attribute(error, "retry_after")
    if isinstance(seconds, int | float):
        return float(seconds)
    response = _attribute(error, "response")
    for headers in (
        _attribute(error, "headers"),
        _attribute(response, "headers"),
        _metadata(response).get("HTTPHeaders"),
    ):
        items = _attribute(headers, "items")
        if callable(items):
            return asked_wait({str(k).lower(): str(v) for k, v in items()}, datetime.now(UTC))
    return None


def _metadata(response: Any) -> Mapping[str, Any]:
    """Return what botocore says about a response, which it keeps as a dict."""
    found = response.get("ResponseMetadata") if isinstance(response, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _attribute(thing: Any, name: str) -> Any:
    """Return an attribute of an object of any library; None if reading it raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # a property may raise, and the failure itself would be lost
        return None
