"""The lock of the embedded server: one server for a directory, whatever it answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import redis
from support.waiting import wait_for

from mulligan.workers.local import embedded_redis, hang_watch, redis_watchdog, server_lock
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.home import SupervisedRedis
from mulligan.workers.local.server_binary import ServerBinary, find_server
from mulligan.workers.local.server_lock import end_owner, lock_owner
from mulligan.workers.local.server_probe import Reply


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What users of the server are told. Messages come early, and a hung server is ended soon."""
    monkeypatch.setattr(hang_watch, "_FIRST_MESSAGE", 0.1)
    monkeypatch.setattr(hang_watch, "_NEXT_MESSAGE", 0.1)
    monkeypatch.setattr(server_lock, "_GRACE", 0.2)
    monkeypatch.setattr("mulligan.workers.local.server_probe._TIMEOUT", 0.2)
    monkeypatch.setattr("mulligan.workers.local.home._CHECK_SECONDS", 0.0)
    return []


@pytest.fixture
def first(home: Path, said: list[str]) -> Iterator[EmbeddedRedis]:
    """A user of a running server."""
    user = EmbeddedRedis(home, say=said.append)
    user.start()
    yield user
    user.stop()
    assert lock_owner(home / "redis/server.lock") is None


@pytest.fixture
def second(home: Path, said: list[str], first: EmbeddedRedis) -> Iterator[EmbeddedRedis]:
    """Another user of the same directory. A server that hangs for 60 s is ended."""
    user = EmbeddedRedis(home, hung_after=60.0, say=said.append)
    yield user
    user.stop()


def pid_of(user: EmbeddedRedis) -> int:
    pid = user.state().pid
    assert pid is not None
    return pid


def client(user: EmbeddedRedis) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(user.socket), decode_responses=True)


def servers_of(home: Path) -> set[int]:
    """Return the running servers whose working directory is the data directory."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(home / "redis") and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


def test_the_lock_belongs_to_the_server_alone(home: Path, first: EmbeddedRedis) -> None:
    with client(first) as connection:
        assert pid_of(first) == connection.info("server")["process_id"]
    assert servers_of(home) == {pid_of(first)}
    os.kill(pid_of(first), signal.SIGKILL)
    wait_for(lambda: first.state().pid is None)


def test_a_second_server_ends_before_it_touches_the_data(home: Path, first: EmbeddedRedis) -> None:
    lock = str(home / "redis/server.lock")
    argv = [sys.executable, "-I", redis_watchdog.__file__, str(home / "users.lock"), lock]
    touched = home / "touched"
    done = subprocess.run([*argv, "touch", str(touched)], timeout=60, check=False)
    assert done.returncode == redis_watchdog.LOCKED
    assert not touched.exists()


def test_a_stopped_server_is_there_and_the_next_user_waits_for_it(
    home: Path, first: EmbeddedRedis, second: EmbeddedRedis, said: list[str]
) -> None:
    """Given a server that is stopped and goes on later, then there is never a second one."""
    pid = pid_of(first)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert first.state().reply is None
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(second.start)
            wait_for(lambda: bool(said), "the user to be told")
            assert servers_of(home) == {pid}
            assert not joining.done()
            os.kill(pid, signal.SIGCONT)
            joining.result(60)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert pid_of(second) == pid
    assert said[0].startswith(f"The embedded server (process {pid}) has not answered for ")


def test_a_hung_server_is_ended_before_another_starts(
    home: Path, first: EmbeddedRedis, second: EmbeddedRedis, said: list[str]
) -> None:
    with client(first) as connection:
        connection.set("job", "remembered")
    pid = pid_of(first)
    os.kill(pid, signal.SIGSTOP)
    second.watch.limit = 3.0
    second.start()
    assert servers_of(home) == {pid_of(second)}
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    with client(second) as connection:
        assert connection.get("job") == "remembered"
    assert any(text.endswith(" s: ending it.") for text in said)


def test_the_supervisor_reports_silence_and_replaces_a_hung_server(
    first: EmbeddedRedis, said: list[str]
) -> None:
    """Given a short stop, then it only reports; given a long one, it restarts the server."""
    supervised = SupervisedRedis(first, say=said.append)

    def has_said(supervised: SupervisedRedis, text: str) -> bool:
        supervised.keep_running()
        return text in "".join(said[-1:])

    pid = pid_of(first)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: has_said(supervised, "has not answered for"), "a message")
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: has_said(supervised, "answers again"), "the good news")
    assert pid_of(first) == pid
    os.kill(pid, signal.SIGSTOP)
    first.watch.limit = 3.0
    wait_for(lambda: has_said(supervised, "runs again"), "another server")
    assert any("ending it" in text for text in said)
    assert pid_of(first) != pid


def test_the_supervisor_tries_again_until_a_server_starts(
    first: EmbeddedRedis, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a server that cannot be restarted for a while, then this is said once."""
    supervised = SupervisedRedis(first, say=said.append)
    os.kill(pid_of(first), signal.SIGKILL)
    wait_for(lambda: first.state().pid is None)
    with monkeypatch.context() as patch:
        broken = ServerBinary(path=str(tmp_path / "missing"), kind="Redis", version="7.0")
        patch.setattr(embedded_redis, "choose_server", lambda _folder: broken)
        supervised.keep_running()
        supervised.keep_running()
    # A slow start is reported, too, because messages come early in these tests.
    assert [text.partition(":")[0] for text in said if "has not answered" not in text] == [
        "The embedded server is gone; restarting it.",
        "The embedded server cannot be restarted",
    ]
    supervised.keep_running()
    assert first.state().reply is Reply.READY


def test_a_busy_server_is_there(
    first: EmbeddedRedis, second: EmbeddedRedis, said: list[str]
) -> None:
    with client(first) as connection, ThreadPoolExecutor(1) as pool:
        connection.config_set("lua-time-limit", 10)
        script = pool.submit(connection.eval, "while true do end", 0)
        wait_for(lambda: first.state().reply is Reply.BUSY)
        second.start()
        assert second.state().reply is Reply.BUSY
        with client(first) as other:
            other.script_kill()
        with pytest.raises(redis.ResponseError):
            script.result(60)
    assert pid_of(first) == pid_of(second)
    assert not any("ending it" in text for text in said)


def test_a_server_may_load_for_longer_than_one_may_hang(
    home: Path, first: EmbeddedRedis, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(first) as connection:
        for number in range(3000):
            connection.set(str(number), "x")
        # The delay per key is for snapshots.
        connection.bgrewriteaof()
        wait_for(lambda: not connection.info("persistence")["aof_rewrite_in_progress"])
    first.stop()
    real = find_server()
    slow = home / "slow-server"
    options = "--key-load-delay 1500 --loading-process-events-interval-bytes 1024"
    slow.write_text(f'#!/bin/sh\nexec "{real.path}" "$@" {options}\n')
    slow.chmod(0o755)
    server = ServerBinary(path=str(slow), kind=real.kind, version=real.version)
    monkeypatch.setattr(embedded_redis, "choose_server", lambda _folder: server)
    first.watch.limit = 2.0
    first.start()
    with client(first) as connection:
        assert connection.dbsize() == 3000
    assert any("has been loading its data for" in text for text in said), said


def test_a_child_that_rewrites_the_file_does_not_hold_the_lock(
    home: Path, first: EmbeddedRedis, second: EmbeddedRedis
) -> None:
    """Given a server killed while a slow child rewrites its file, then the next one starts."""
    pid = pid_of(first)
    with client(first) as connection:
        for number in range(100):
            connection.set(str(number), "x")
        connection.config_set("rdb-key-save-delay", 1_000_000)
        connection.bgrewriteaof()
        children = psutil.Process(pid).children()
    assert children
    try:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: first.state().pid is None)
        assert any(child.is_running() for child in children)
        second.start()
        with client(second) as connection:
            assert connection.dbsize() == 100
    finally:
        for child in children:
            child.kill()


def test_only_the_owner_of_the_lock_is_ended(home: Path, first: EmbeddedRedis) -> None:
    """A process id is used again by the kernel, and 0 would be our own process group."""
    lock = home / "redis/server.lock"
    with subprocess.Popen(["sleep", "60"]) as other:
        assert not end_owner(lock, other.pid)
        assert not end_owner(lock, 0)
        assert other.poll() is None
        other.kill()
    assert first.state().reply is Reply.READY


def test_users_in_many_processes_share_one_server(home: Path) -> None:
    """Given six processes that start at once, two of them killed, then all saw one server."""
    script = (
        "import sys; from pathlib import Path\n"
        "from mulligan.workers.local.embedded_redis import EmbeddedRedis\n"
        "user = EmbeddedRedis(Path(sys.argv[1])); user.start()\n"
        "print(user.state().pid, flush=True); sys.stdin.read(); user.stop()\n"
    )
    argv = [sys.executable, "-c", script, str(home)]
    pipe = subprocess.PIPE
    users = [subprocess.Popen(argv, text=True, stdin=pipe, stdout=pipe) for _ in range(6)]
    pids = [user.stdout.readline() for user in users if user.stdout]
    assert len(set(pids)) == 1
    for user in users[:2]:
        user.kill()
    for user in users:
        user.communicate()
    wait_for(lambda: servers_of(home) == set())
