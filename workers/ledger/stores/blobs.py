"""Content-addressed bytes that every worker can read: in the ledger's Redis, or in a directory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput, MissingBlob
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.calls import RedisCalls
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.sandbox.workspace import content_address
from mulligan.workers.settings.model import Settings


class RedisBlobs:
    """Blobs in the ledger's Redis."""

    def __init__(self, calls: RedisCalls, *, prefix: str, cap: int, retention: float) -> None:
        self._calls = calls
        self._fleet = keys.fleet_prefix(prefix)
        self._cap = cap
        self._ttl = max(1, int(retention * 2))

    def put(self, data: bytes) -> str:
        address = _address(data, self._cap)
        # Twice the retention of jobs, renewed by each use, so that no job outlives its workspace.
        self._calls.run("SET", keys.blob(self._fleet, address), data, "EX", self._ttl)
        return address

    def get(self, address: str) -> bytes:
        data = self._calls.read_bytes("GETEX", keys.blob(self._fleet, address), "EX", self._ttl)
        if data is None:
            raise MissingBlob(f"{address} is no longer stored")
        return data


class DirectoryBlobs:
    """Blobs in a directory that all workers share."""

    def __init__(self, root: Path, *, cap: int) -> None:
        self._root = root
        self._cap = cap

    def put(self, data: bytes) -> str:
        address = _address(data, self._cap)
        path = self._path(address)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(path)
        return address

    def get(self, address: str) -> bytes:
        try:
            return self._path(address).read_bytes()
        except FileNotFoundError:
            raise MissingBlob(f"{address} is no longer stored") from None

    def _path(self, address: str) -> Path:
        name = address.removeprefix("sha256:")
        if not name.isalnum():
            raise MissingBlob(f"{address!r} is not a content address")
        return self._root / name[:2] / name


def _address(data: bytes, cap: int) -> str:
    if len(data) > cap:
        raise BadInput(f"{len(data):,} bytes are over the cap of {cap:,} (workspace_cap)")
    return content_address(data)


def blob_store(settings: Settings, calls: RedisCalls | None = None) -> BlobStore:
    """Open the store of these settings, over the ledger's connection if it is open already."""
    if settings.blob_url is None:
        return RedisBlobs(
            calls or open_ledger(settings, patience=settings.worker_patience).calls,
            prefix=settings.key_prefix,
            cap=settings.workspace_cap,
            retention=settings.retention,
        )
    url = urlsplit(settings.blob_url)
    if url.scheme != "file":
        raise BadInput.at(
            "blob_url", f"{url.scheme}:// is not supported; use file:///shared/directory"
        )
    return DirectoryBlobs(Path(url.path), cap=settings.workspace_cap)
