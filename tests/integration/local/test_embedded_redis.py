"""The embedded Redis: all users of a directory share it, and the last one stops it."""

from __future__ import annotations

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

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.local import embedded_redis as embedded
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.server_binary import ServerBinary


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def users(home: Path) -> Iterator[list[EmbeddedRedis]]:
    """Two users of one home, stopped after the test."""
    both = [EmbeddedRedis(home), EmbeddedRedis(home)]
    yield both
    for user in both:
        user.stop()


def client(user: EmbeddedRedis) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(user.socket), decode_responses=True)


def server_pid(user: EmbeddedRedis) -> int:
    with client(user) as connection:
        return int(connection.info("server")["process_id"])


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_two_users_share_one_server_and_the_last_one_stops_it(
    users: list[EmbeddedRedis],
) -> None:
    first, second = users
    first.start()
    second.start()
    pid = server_pid(first)
    assert server_pid(second) == pid
    first.stop()
    assert server_pid(second) == pid
    first.start()
    second.stop()
    assert server_pid(first) == pid
    first.stop()
    wait_for(lambda: not is_running(pid))


def test_stopping_twice_or_without_a_start_is_harmless(users: list[EmbeddedRedis]) -> None:
    first, second = users
    second.stop()
    first.start()
    pid = server_pid(first)
    second.stop()
    assert is_running(pid)
    first.stop()
    first.stop()
    assert not is_running(pid)


def test_a_killed_user_leaves_no_server_behind(home: Path) -> None:
    script = (
        "import sys, signal; from pathlib import Path\n"
        "from mulligan.workers.local.embedded_redis import EmbeddedRedis\n"
        "user = EmbeddedRedis(Path(sys.argv[1])); user.start()\n"
        "print('up', flush=True); signal.pause()\n"
    )
    user = subprocess.Popen([sys.executable, "-c", script, str(home)], stdout=subprocess.PIPE)
    assert user.stdout is not None
    assert user.stdout.readline() == b"up\n"
    pid = server_pid(EmbeddedRedis(home))
    watchdog = psutil.Process(pid).parent()
    assert watchdog is not None
    user.send_signal(signal.SIGKILL)
    user.wait()
    user.stdout.close()
    wait_for(lambda: not is_running(pid) and not is_running(watchdog.pid))


def test_the_server_ends_with_a_killed_watchdog(users: list[EmbeddedRedis]) -> None:
    first, second = users
    first.start()
    pid = server_pid(first)
    watchdog = psutil.Process(pid).parent()
    assert watchdog is not None
    watchdog.kill()
    wait_for(lambda: not is_running(pid))
    second.start()  # the next user gets a new server and watchdog
    assert server_pid(second) != pid


def test_data_survives_a_restart(users: list[EmbeddedRedis]) -> None:
    first, second = users
    first.start()
    with client(first) as connection:
        connection.set("job", "remembered")
    first.stop()
    second.start()
    with client(second) as connection:
        assert connection.get("job") == "remembered"


def test_starting_while_the_last_user_stops_always_gives_a_server(
    users: list[EmbeddedRedis],
) -> None:
    """Given one user who stops and one who starts at the same moment, then the second has a server,
    the old one or a new one."""
    leaving, joining = users
    leaving.start()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            calls = [pool.submit(leaving.stop), pool.submit(joining.start)]
            for call in calls:
                call.result(60)
            assert server_pid(joining) > 0
            leaving, joining = joining, leaving


def test_a_home_with_a_long_path_gets_a_short_socket_path(tmp_path: Path) -> None:
    """The kernel limits the path of a socket to 108 bytes."""
    deep = tmp_path / ("a" * 80) / ("b" * 80)
    user = EmbeddedRedis(deep)
    assert len(str(user.socket)) < 100
    assert user.socket != EmbeddedRedis(deep.with_name("c" * 80)).socket
    user.start()
    try:
        assert user.url == f"redis+socket://{user.socket}"
        assert server_pid(user) > 0
        assert user.socket.parent.stat().st_mode & 0o777 == 0o700
        assert (deep / "redis").is_dir()
    finally:
        user.stop()
        user.socket.parent.rmdir()


def test_another_tmpdir_gives_the_same_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = EmbeddedRedis(tmp_path / ("a" * 80) / ("b" * 80))
    before = deep.socket
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert deep.socket == before


def test_a_server_that_does_not_start_says_why(
    tmp_path: Path, users: list[EmbeddedRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho 'cannot open the log' >&2\nexit 1\n")
    broken.chmod(0o755)
    server = ServerBinary(path=str(broken), kind="Redis", version="7.0.0")
    monkeypatch.setattr(embedded, "choose_server", lambda _folder: server)
    with pytest.raises(BadInput, match=r"did not start: .*redis.log ends with:\ncannot open"):
        users[0].start()
