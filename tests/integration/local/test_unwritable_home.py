"""A home directory that cannot be written to: one clear message, and no server left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.local.home import lock_home


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB. Only root can mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def start_error(home: Path) -> str:
    with pytest.raises(BadInput) as caught:
        EmbeddedRedis(home).start()
    return str(caught.value)


def test_a_home_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"
    assert "Not a directory; set MULLIGAN_HOME to a directory you can write to" in start_error(home)
    with pytest.raises(BadInput, match="Not a directory; set MULLIGAN_HOME"), lock_home(home):
        pass


def test_a_full_disk_is_named(small_disk: Path) -> None:
    (small_disk / "home" / "redis").mkdir(parents=True)
    _fill(small_disk / "large")
    message = start_error(small_disk / "home")
    assert "its disk is full" in message or "No space left on device; free some space" in message
    assert EmbeddedRedis(small_disk / "home").state().pid is None


def test_a_read_only_home_is_named(small_disk: Path) -> None:
    home = small_disk / "home"
    home.mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    expected = "Read-only file system; set MULLIGAN_HOME to a directory you can write to"
    assert expected in start_error(home)
    with pytest.raises(BadInput, match=expected), lock_home(home):
        pass


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(os.urandom(4096))
        except OSError:
            pass
