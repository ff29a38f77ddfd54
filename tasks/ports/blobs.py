"""The port for blobs."""

from __future__ import annotations

from typing import Protocol


class BlobStore(Protocol):
    """Content-addressed bytes that every worker can read."""

    def put(self, data: bytes) -> str:
        """Store the bytes and return ``sha256:<hex>``."""

    def get(self, address: str) -> bytes:
        """Return the bytes, or raise MissingBlob."""
