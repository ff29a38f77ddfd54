"""Checks of the addresses of brokers and ledgers.

Messages do not quote an address: a misplaced part of it may belong to the password.
"""

from __future__ import annotations

from urllib.parse import urlsplit

_SOCKETS = ("redis+socket", "unix")
_LEDGERS = ("redis", "rediss", *_SOCKETS)
#: Listed here because importing kombu takes long.
_BROKERS = ("redis", "rediss", "redis+socket", "amqp", "amqps", "memory")
_EXAMPLE = "redis://localhost:6379/0"


def check_broker(url: str) -> str:
    """Return the address, or several separated by `;`. Raises ValueError with an example."""
    for part in url.split(";"):
        scheme = _scheme(part, f"{_EXAMPLE} or amqp://localhost")
        if scheme not in _BROKERS and not _kombu_knows(scheme):
            raise ValueError(f"there is no transport {scheme!r}; use {_EXAMPLE} or amqp://…")
        if scheme in _BROKERS:
            _check_port_and_database(part, scheme)
    return url


def check_ledger(url: str) -> str:
    """Return the address. Raises ValueError with an example."""
    scheme = _scheme(url, _EXAMPLE)
    if scheme not in _LEDGERS:
        raise ValueError(f"the ledger is a Redis, not {scheme!r}; use {_EXAMPLE} or unix:///path")
    _check_port_and_database(url, scheme)
    return url


def _scheme(url: str, example: str) -> str:
    scheme, found, _ = url.strip().partition("://")
    if not found or not scheme:
        raise ValueError(f"this is not an address; use {example}")
    if "sentinel" in scheme:
        raise ValueError(
            "addresses of Sentinel are not supported;"
            f" use a name or a proxy that follows the primary, such as {_EXAMPLE}"
        )
    return scheme


def _kombu_knows(scheme: str) -> bool:
    from kombu.transport import TRANSPORT_ALIASES

    name = scheme.partition("+")[0]
    return name in TRANSPORT_ALIASES or "." in name  # a transport class by its full name


def _check_port_and_database(url: str, scheme: str) -> None:
    if scheme in _SOCKETS:
        return
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(
            "its port must be a number up to 65535, as in redis://host:6379/0;"
            " percent-encode special characters in a password"
        ) from None
    database = parts.path.strip("/")
    if scheme.startswith("redis") and database and not database.isdecimal():
        raise ValueError(f"its database must be a number, as in {_EXAMPLE}")
