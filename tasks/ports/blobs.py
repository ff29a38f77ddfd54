"""Blobs: content-addressed bytes that every worker can read."""

from __future__ import annotations

from typing import Protocol


class BlobStore(Protocol):
    """Content-addressed bytes that every worker can read."""

    def put(self, data: bytes) -> str:
        """Store and return ``sha256:<hex>``."""

    def get(self, address: str) -> bytes:
        """The bytes, or MissingBlob."""
