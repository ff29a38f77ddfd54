"""The servers that the tests name: where they come from, and what happens without them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support import debian_packages
from support.backends import BACKENDS
from support.servers import SERVERS, NamedServer, find, missing, require


@pytest.mark.parametrize(
    ("value", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_a_missing_server_skips_a_test_and_fails_it_in_ci(
    monkeypatch: pytest.MonkeyPatch, value: str, outcome: type[Exception]
) -> None:
    monkeypatch.setenv("CI", value)
    with pytest.raises(outcome, match="rabbitmq-server is missing: make servers"):
        missing("rabbitmq-server", "make servers extracts Debian's")


def test_a_server_of_another_version_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Debian with a later Redis than the one that we name is not used instead."""
    newer = tmp_path / "redis-server"
    newer.write_text("#!/bin/sh\necho 'Redis server v=8.0.2 sha=0:0'\n")
    newer.chmod(0o755)
    wanted = NamedServer(kind="Redis", version="7.0", places=lambda: iter([str(newer)]), get="x")
    monkeypatch.setitem(SERVERS, "redis-7.0", wanted)
    find.cache_clear()
    try:
        assert find("redis-7.0") is None
        with pytest.raises((pytest.skip.Exception, pytest.fail.Exception), match=r"redis-7\.0"):
            require("redis-7.0")
    finally:
        find.cache_clear()


def test_without_network_the_packages_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given an apt-get that finds nothing, then the tests can run, and the reason is printed."""
    program = tmp_path / "apt-get"
    program.write_text("#!/bin/sh\necho 'E: Unable to locate package redis-server' >&2\nexit 100\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(debian_packages, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(debian_packages, "FOLDER", tmp_path / "debian")
    monkeypatch.setattr(debian_packages, "rabbitmq_program", lambda: None)
    assert debian_packages.main() == 0
    printed = capsys.readouterr().out
    assert "E: Unable to locate package redis-server" in printed
    assert "skipped, and fail in CI" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["apt-get"]


def test_make_test_gets_the_servers(pytestconfig: pytest.Config) -> None:
    argv = ["make", "--dry-run", "--always-make", "test"]
    done = subprocess.run(argv, cwd=pytestconfig.rootpath, capture_output=True, text=True)
    assert "-m support.debian_packages" in done.stdout


def test_the_documentation_lists_every_server_and_backend(pytestconfig: pytest.Config) -> None:
    text = (pytestconfig.rootpath / "docs" / "reliability.md").read_text("utf-8")
    (_, _, section) = text.partition("## Servers and what is tested on each")
    listed = re.findall(r"^\| `([^`]+)`", section.partition("\n## ")[0], re.M)
    assert listed == [*SERVERS, *map(str, BACKENDS)]
