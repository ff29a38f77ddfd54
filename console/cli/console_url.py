"""The address of a console on this host."""

from __future__ import annotations


def url_of(host: str, port: int) -> str:
    """Return the URL on this host."""
    name = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host  # noqa: S104 - only compared
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
