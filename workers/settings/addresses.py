"""Addresses of brokers and ledgers: what is wrong with one, before anything is accepted.

Nothing of an address is repeated: what stands in the wrong place may be a part of the password.
"""

from __future__ import annotations

from urllib.parse import urlsplit

_SOCKETS = ("redis+socket", "unix")
_LEDGERS = ("redis", "rediss", *_SOCKETS)
#: Known without asking kombu, which takes its time to import.
_BROKERS = ("redis", "rediss", "redis+socket", "amqp", "amqps", "memory")
_EXAMPLE = "redis://localhost:6379/0"


def check_broker(url: str) -> str:
    """The address as it is, or ValueError with what to write instead. May list alternatives."""
    for part in url.split(";"):
        scheme = _scheme(part, f"{_EXAMPLE} or amqp://localhost")
        if scheme not in _BROKERS and not _kombu_knows(scheme):
            raise ValueError(f"there is no transport {scheme!r}; use {_EXAMPLE} or amqp://…")
        if scheme in _BROKERS:
            _check_place(part, scheme)
    return url


def check_ledger(url: str) -> str:
    """The address as it is, or ValueError with what to write instead."""
    scheme = _scheme(url, _EXAMPLE)
    if scheme not in _LEDGERS:
        raise ValueError(f"the ledger is a Redis, not {scheme!r}; use {_EXAMPLE} or unix:///path")
    _check_place(url, scheme)
    return url


def _scheme(url: str, example: str) -> str:
    scheme, found, _ = url.strip().partition("://")
    if not found or not scheme:
        raise ValueError(f"it is no address; write it as {example}")
    return scheme


def _kombu_knows(scheme: str) -> bool:
    from kombu.transport import TRANSPORT_ALIASES

    name = scheme.partition("+")[0]
    return name in TRANSPORT_ALIASES or "." in name  # or a transport class, by its full name


def _check_place(url: str, scheme: str) -> None:
    """The port and the number of the database, which clients meet with errors of their own."""
    if scheme in _SOCKETS:
        return
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(
            "its port must be a number up to 65535, as in redis://host:6379/0;"
            " percent-encode what is special in a password"
        ) from None
    database = parts.path.strip("/")
    if scheme.startswith("redis") and database and not database.isdecimal():
        raise ValueError(f"its database must be a number, as in {_EXAMPLE}")
