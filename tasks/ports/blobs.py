"""The port for blobs."""

from __future__ import annotations

from typing import Protocol


class BlobStore(Protocol):
    """Content-addressed bytes that every worker can read."""

    def put(self, data: bytes, *, paid: bool = False) -> str:
        """Store the bytes and return ``sha256:<hex>``, or raise BlobsUnavailable.

        ``paid``: they are part of an answer, so a store that is away is waited for.
        """

    def keep(self, address: str) -> None:
        """Start the term anew after which the bytes expire. Raises BlobsUnavailable."""

    def get(self, address: str) -> bytes:
        """Return the bytes, or raise MissingBlob or BlobsUnavailable."""
