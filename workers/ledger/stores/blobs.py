"""Content-addressed bytes that every worker can read: in the ledger's Redis, or in a directory."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.tasks.ports.errors import (
    BadInput,
    BlobsUnavailable,
    LedgerUnavailable,
    MissingBlob,
)
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.connection.calls import Patience, RedisCalls
from mulligan.workers.ledger.open_ledger import open_ledger
from mulligan.workers.sandbox.workspace import content_address
from mulligan.workers.settings.model import Settings
from mulligan.workers.settings.profile_pools import longest_claim

log = logging.getLogger(__name__)

#: Marks a directory as a store.
_MARK = ".mulligan-blobs"
#: Seconds between two tries to store what was paid for.
_PAUSE = 2.0


class RedisBlobs:
    """Blobs in the ledger's Redis."""

    def __init__(self, calls: RedisCalls, *, prefix: str, cap: int, retention: float) -> None:
        self._calls = calls
        self._fleet = keys.fleet_prefix(prefix)
        self._cap = cap
        self._ttl = max(1, int(retention * 2))

    def put(self, data: bytes, *, paid: bool = False) -> str:
        address = _address(data, self._cap)
        key, patience = keys.blob(self._fleet, address), Patience.NORMAL
        if paid:
            patience = Patience.KEEP
        try:
            # Twice the retention of jobs, renewed by each use: no job outlives its workspace.
            self._calls.run("SET", key, data, "EX", self._ttl, patience=patience)
        except LedgerUnavailable as error:
            raise BlobsUnavailable(f"the blob store: {error}") from error
        return address

    def keep(self, address: str) -> None:
        try:
            self._calls.run("EXPIRE", keys.blob(self._fleet, address), self._ttl)
        except LedgerUnavailable as error:
            raise BlobsUnavailable(f"the blob store: {error}") from error

    def get(self, address: str) -> bytes:
        key = keys.blob(self._fleet, address)
        try:
            data = self._calls.read_bytes("GETEX", key, "EX", self._ttl)
        except LedgerUnavailable as error:
            raise BlobsUnavailable(f"the blob store: {error}") from error
        if data is None:
            raise MissingBlob(f"{address} is no longer stored")
        return data


class DirectoryBlobs:
    """Blobs in a directory that all workers share.

    A file in it marks it as the store: a directory that lost the mark is not mounted.
    """

    def __init__(
        self, root: Path, *, cap: int, keep: float = 0.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """``keep``: seconds to wait for a store that is away with bytes that were paid for."""
        self._root = root
        self._cap = cap
        self._keep = keep
        self._clock = clock
        self._seen = False

    def put(self, data: bytes, *, paid: bool = False) -> str:
        address = _address(data, self._cap)
        path = self._path(address)
        deadline = self._clock.monotonic() + (self._keep if paid else 0.0)
        waiting = False
        while (problem := self._try_put(path, data)) is not None:
            if self._clock.monotonic() >= deadline:
                raise problem
            if not waiting:
                log.warning("%s; an answer waits to be stored.", problem)
            waiting = True
            self._clock.sleep(_PAUSE)
        return address

    def _try_put(self, path: Path, data: bytes) -> BlobsUnavailable | None:
        try:
            self._require(create=True)
            if not path.exists():
                _write(path, data)
        except OSError as error:
            return self._unavailable(error)
        return None

    def keep(self, address: str) -> None:
        """Nothing expires in a directory."""

    def get(self, address: str) -> bytes:
        path = self._path(address)
        try:
            try:
                return path.read_bytes()
            except FileNotFoundError:
                self._require()
                raise MissingBlob(f"{address} is no longer stored") from None
        except OSError as error:
            raise self._unavailable(error) from error

    def _require(self, *, create: bool = False) -> None:
        """Raise OSError if the directory is not there or not the store."""
        # Before the look: another thread may use it for the first time in between.
        mark, was_seen = self._root / _MARK, self._seen
        if not mark.exists():
            if was_seen or not create:
                raise FileNotFoundError(errno.ENOENT, "it is not mounted", str(mark))
            self._root.mkdir(parents=True, exist_ok=True)
            mark.touch()
        self._seen = True

    def _unavailable(self, error: OSError) -> BlobsUnavailable:
        reason = error.strerror or error
        return BlobsUnavailable(f"the blob store {self._root} cannot be used: {reason}")

    def _path(self, address: str) -> Path:
        name = address.removeprefix("sha256:")
        if not name.isalnum():
            raise MissingBlob(f"{address!r} is not a content address")
        return self._root / name[:2] / name


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


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
    # Only a worker's patience is longer than a submission's: see Patience.KEEP.
    waits = settings.worker_patience > settings.submit_patience
    keep = longest_claim(settings) if waits else settings.submit_patience
    return DirectoryBlobs(Path(url.path), cap=settings.workspace_cap, keep=keep)
