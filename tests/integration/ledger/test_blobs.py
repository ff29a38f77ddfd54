"""Content-addressed bytes: the same contract in Redis and in a shared directory."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from support.ledger_scenario import SettingsMaker

from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.clock import Clock
from mulligan.tasks.ports.errors import BadInput, BlobsUnavailable, MissingBlob
from mulligan.workers.ledger.stores.blobs import DirectoryBlobs, RedisBlobs, blob_store
from mulligan.workers.settings.model import Settings

DATA = b"\x00\xff a workspace \r\n" * 100
ADDRESS = "sha256:" + hashlib.sha256(DATA).hexdigest()


@pytest.fixture(params=["redis", "directory"])
def store(request: pytest.FixtureRequest, settings: SettingsMaker, tmp_path: Path) -> BlobStore:
    url = {"redis": None, "directory": f"file://{tmp_path}/shared"}[request.param]
    return blob_store(settings(blob_url=url, workspace_cap=10_000, retention=1000))


def test_a_blob_is_stored_under_the_address_of_its_content(store: BlobStore) -> None:
    assert store.put(DATA) == ADDRESS
    assert store.get(ADDRESS) == DATA
    assert store.put(b"") != ADDRESS


def test_the_same_bytes_are_stored_once(store: BlobStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        addresses = set(pool.map(store.put, [DATA] * 24))
    assert addresses == {ADDRESS}
    assert store.get(ADDRESS) == DATA


def test_a_directory_may_be_used_by_two_threads_for_the_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a thread that looks for the directory just before another one makes it."""
    store, exists = DirectoryBlobs(tmp_path / "shared", cap=100), Path.exists
    others = [b"of the other thread"]

    def look(path: Path) -> bool:
        found = exists(path)
        if others:
            store.put(others.pop())
        return found

    monkeypatch.setattr(Path, "exists", look)
    assert store.get(store.put(b"of this thread")) == b"of this thread"


def test_a_missing_blob_is_reported(store: BlobStore) -> None:
    store.put(b"another")
    with pytest.raises(MissingBlob, match="no longer stored"):
        store.get(ADDRESS)


def test_a_blob_over_the_cap_is_refused_with_both_sizes(store: BlobStore) -> None:
    store.put(b"x" * 10_000)
    with pytest.raises(BadInput, match=r"10,001 bytes are over the cap of 10,000 \(workspace_cap"):
        store.put(b"x" * 10_001)


def test_a_blob_in_redis_outlives_jobs_and_is_renewed_by_use(
    settings: SettingsMaker, redis_client: redis.Redis
) -> None:
    store = blob_store(settings(retention=1000))
    assert isinstance(store, RedisBlobs)
    key = f"mulligan:{{fleet}}:blob:{store.put(DATA)}"
    assert 1000 < redis_client.ttl(key) <= 2000
    redis_client.expire(key, 5)
    store.get(ADDRESS)
    assert redis_client.ttl(key) > 1000
    redis_client.expire(key, 5)
    store.put(DATA)
    assert redis_client.ttl(key) > 1000
    redis_client.expire(key, 5)
    store.keep(ADDRESS)
    assert redis_client.ttl(key) > 1000


@pytest.mark.parametrize("address", ["sha256:../../etc/passwd", "../secret", "sha256:", "a/b"])
def test_an_address_cannot_leave_the_directory(tmp_path: Path, address: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    with pytest.raises(MissingBlob):
        DirectoryBlobs(tmp_path / "shared", cap=100).get(address)


def test_a_failed_write_leaves_no_partial_blob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a disk that fails during a write, then the blob is missing, not truncated."""
    store = DirectoryBlobs(tmp_path, cap=10_000)

    def fail(_descriptor: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(BlobsUnavailable, match="no space"):
            store.put(DATA)
    with pytest.raises(MissingBlob):
        store.get(ADDRESS)
    store.put(DATA)
    assert store.get(ADDRESS) == DATA


def test_an_unsupported_store_is_refused(settings: SettingsMaker) -> None:
    with pytest.raises(BadInput, match="s3:// is not supported; use file:///"):
        blob_store(settings(blob_url="s3://bucket/blobs"))
    with pytest.raises(BadInput, match="no ledger: set MULLIGAN_LEDGER_URL"):
        blob_store(Settings())


def test_a_directory_that_is_not_mounted_has_lost_no_blob(tmp_path: Path) -> None:
    """Given a store whose directory vanishes and comes back, then blobs are unavailable meanwhile,
    not missing, and nothing is written beside it."""
    root, elsewhere = tmp_path / "shared", tmp_path / "unmounted"
    store = DirectoryBlobs(root, cap=10_000)
    store.put(DATA)
    root.rename(elsewhere)
    root.mkdir()  # the mount point
    for call in (lambda: store.get(ADDRESS), lambda: store.put(b"new")):
        with pytest.raises(BlobsUnavailable, match="is not mounted"):
            call()
    assert list(root.iterdir()) == []
    root.rmdir()
    elsewhere.rename(root)
    assert store.get(ADDRESS) == DATA
    with pytest.raises(MissingBlob):
        store.get(ADDRESS.replace("sha256:", "sha256:0"))


def test_a_part_of_an_answer_waits_for_its_store(tmp_path: Path) -> None:
    """Given a diff that was paid for and a store that is away, then it is stored later."""
    root = tmp_path / "shared"
    waits: list[float] = []

    def come_back(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (tmp_path / "away").rename(root)

    store = DirectoryBlobs(root, cap=10_000, keep=3600, clock=Clock(sleep=come_back))
    store.put(b"the mark")
    root.rename(tmp_path / "away")
    assert store.put(DATA, paid=True) == ADDRESS
    assert len(waits) == 3
    assert store.get(ADDRESS) == DATA


def test_a_full_redis_is_an_unavailable_store(
    redis_client: redis.Redis, settings: SettingsMaker
) -> None:
    store = blob_store(settings(submit_patience=0.0, worker_patience=0.0))
    redis_client.config_set("maxmemory", "1")
    try:
        with pytest.raises(BlobsUnavailable, match=r"full \(maxmemory\)"):
            store.put(DATA)
    finally:
        redis_client.config_set("maxmemory", "0")
