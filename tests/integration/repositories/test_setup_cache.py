"""Prepared checkouts: commands run once, their directories are copied afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.git_repositories import write

from mulligan.tasks.ports.errors import BadInput, SetupFailed
from mulligan.workers.repositories.disk_usage import cache_entries
from mulligan.workers.repositories.setup_cache import SetupCache, SetupCommands
from mulligan.workers.sandbox.copied_directories import copy_directory
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.subprocesses import clean_environment

SCRIPT = """
mkdir -p modules/bin .cache/deep
date +%s%N > modules/made
printf 'x' > modules/bin/tool && chmod 755 modules/bin/tool
ln -s tool modules/bin/link
ln -s /etc/hostname modules/outside
mkfifo modules/pipe
printf 'd' > .cache/deep/file
touch -d 2001-01-01 modules/bin/tool
"""
SETUP = SetupCommands(
    commands=(("sh", "-c", SCRIPT),), cache=("modules", ".cache/deep"), key=("*.lock", "**/x.lock")
)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    with private_directory(tmp_path / "private") as directory:
        yield directory


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Path]:
    with private_directory(tmp_path / "private") as directory:
        yield directory


@pytest.fixture
def cache(tmp_path: Path) -> SetupCache:
    return SetupCache(tmp_path / "cache")


def prepare(cache: SetupCache, work: Path, setup: SetupCommands = SETUP, **options: Any) -> bool:
    return cache.prepare(work, setup, limits=Limits(), **{"owner": "/repo main", **options})


def test_a_setup_runs_once(cache: SetupCache, work: Path, second: Path) -> None:
    for each in (work, second):
        write(each, {"a.lock": "1\n", "sub/x.lock": "2\n"})
    assert not prepare(cache, work)
    assert prepare(cache, second)
    made = [(each / "modules/made").read_text() for each in (work, second)]
    assert made[0] == made[1]
    tool = second / "modules/bin/tool"
    assert tool.stat().st_mode & 0o777 == 0o755
    assert int(tool.stat().st_mtime) == int((work / "modules/bin/tool").stat().st_mtime)
    assert (second / "modules/bin/link").readlink() == Path("tool")
    assert (second / "modules/outside").readlink() == Path("/etc/hostname")
    assert not (second / "modules/pipe").exists()
    assert (second / ".cache/deep/file").read_text() == "d"


def test_another_lock_file_or_command_is_another_setup(
    cache: SetupCache, work: Path, second: Path
) -> None:
    quick = SetupCommands(commands=(("mkdir", "-p", "out"),), cache=("out",), key=("*.lock",))
    write(work, {"a.lock": "1\n"})
    write(second, {"a.lock": "2\n"})
    assert not prepare(cache, work, quick)
    assert not prepare(cache, second, quick)
    assert prepare(cache, second, quick)
    other = SetupCommands(commands=(("mkdir", "out2"),), cache=("out",), key=("*.lock",))
    assert not prepare(cache, second, other)


def test_what_one_repository_prepares_is_not_used_for_another(
    cache: SetupCache, work: Path, second: Path
) -> None:
    setup = SetupCommands(commands=(("sh", "setup.sh"),), cache=("out",), key=("*.lock",))
    for each in (work, second):
        write(each, {"a.lock": "1\n", "setup.sh": f"mkdir -p out; echo {each.parent.name} > out/x"})
        assert not prepare(cache, each, setup, owner=str(each))
        assert (each / "out/x").read_text().strip() == each.parent.name
        assert prepare(cache, each, setup, owner=str(each))


def test_what_an_agent_changed_is_not_kept_for_others(
    cache: SetupCache, work: Path, second: Path, tmp_path: Path
) -> None:
    quick = SetupCommands(commands=(("mkdir", "-p", "out"),), cache=("out",))
    assert not prepare(cache, work, quick, keep=False)
    assert cache_entries(tmp_path / "cache") == []
    assert not prepare(cache, work, quick)
    assert prepare(cache, second, quick, keep=False)


def test_a_command_that_fails_is_reported_with_its_last_lines(
    cache: SetupCache, work: Path, tmp_path: Path
) -> None:
    script = "seq 100; echo no such package >&2; exit 3"
    setup = SetupCommands(commands=(("sh", "-c", script),), cache=("modules",))
    with pytest.raises(SetupFailed) as raised:
        prepare(cache, work, setup)
    first, *lines = str(raised.value).splitlines()
    assert first.startswith("the setup command `sh -c 'seq 100")
    assert first.endswith("failed with exit code 3: no such package")
    assert len(lines) == 20
    assert lines[-1] == "no such package"
    assert cache_entries(tmp_path / "cache") == []
    slow = SetupCommands(commands=(("sleep", "60"),), timeout=0.2)
    with pytest.raises(SetupFailed, match=r"took longer than 0\.2 s"):
        prepare(cache, work, slow)


def test_directories_outside_of_the_checkout_are_refused(cache: SetupCache, work: Path) -> None:
    for name in ("../x", "/etc", ".git", "a/../../b", "", ".git/hooks", "a/.git"):
        setup = SetupCommands(commands=(("true",),), cache=(name,))
        with pytest.raises(BadInput, match="is not a directory of the checkout"):
            prepare(cache, work, setup)
    for pattern in ("../*", "/etc/*"):
        setup = SetupCommands(commands=(("true",),), key=(pattern,))
        with pytest.raises(BadInput, match="is not a pattern"):
            prepare(cache, work, setup)


def test_links_in_place_of_directories_are_not_followed(
    cache: SetupCache, work: Path, second: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    write(secret, {"sub/file": "secret"})
    script = f"ln -s {secret} out; ln -s {secret} parent"
    setup = SetupCommands(commands=(("sh", "-c", script),), cache=("out", "parent/sub"))
    assert not prepare(cache, work, setup)
    (entry,) = cache_entries(tmp_path / "cache")
    assert list(entry.path.iterdir()) == []
    # Neither does copying into a checkout whose directory is a link.
    fine = SetupCommands(commands=(("mkdir", "-p", "in/sub"),), cache=("in/sub",))
    assert not prepare(cache, work, fine)
    (second / "in").symlink_to(secret)
    assert prepare(cache, second, fine)
    assert (secret / "sub/file").read_text() == "secret"
    # A key that is a link to elsewhere is not read.
    (second / "a.lock").symlink_to(secret / "sub/file")
    prepare(cache, second, SetupCommands(commands=(("true",),), cache=("z",), key=("*.lock",)))


def test_agents_and_verifiers_do_not_get_the_home_of_a_setup(cache: SetupCache, work: Path) -> None:
    script = 'echo x > "$HOME/.profile"; echo x > "$TMPDIR/junit.xml"; ln -s / "$HOME/.config"'
    prepare(cache, work, SetupCommands(commands=(("sh", "-c", script),)))
    env = clean_environment(work.parent)
    assert [*Path(env["HOME"]).iterdir(), *Path(env["TMPDIR"]).iterdir()] == []


def test_a_link_in_place_of_a_cached_directory_is_replaced(
    cache: SetupCache, work: Path, second: Path, tmp_path: Path
) -> None:
    # The agent's commit has a link to a directory of the worker where the setup makes one.
    outside = tmp_path / "outside"
    write(outside, {"made": "mine"})
    setup = SetupCommands(
        commands=(("sh", "-c", "mkdir -p out/sub; echo theirs > out/made; date > out/sub/x"),),
        cache=("out", "out/sub"),
    )
    assert not prepare(cache, work, setup)
    (second / "out").symlink_to(outside)
    assert prepare(cache, second, setup, keep=False)
    assert (outside / "made").read_text() == "mine"
    assert [each.name for each in outside.iterdir()] == ["made"]
    assert not (second / "out").is_symlink()
    assert (second / "out/made").read_text() == "theirs\n"
    # A file in its place is replaced, too.
    write(tmp_path, {"third/out": "a file"})
    assert prepare(cache, tmp_path / "third", setup, keep=False)
    assert (tmp_path / "third/out/sub/x").is_file()


@pytest.mark.parametrize("swap", ["out", "sub"])
def test_a_link_that_appears_while_directories_are_copied_is_not_followed(
    swap: str, work: Path, second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    write(work, {"out/sub/file": "x"})

    def swapped(name: str, *rest: Any, dir_fd: int) -> None:
        mkdir(name, *rest, dir_fd=dir_fd)
        if name == swap:
            os.rename(name, f"{name}.old", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            os.symlink(outside, name, dir_fd=dir_fd)

    mkdir = os.mkdir
    monkeypatch.setattr(os, "mkdir", swapped)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        copy_directory("out", work, second, aside=second.parent)
    assert list(outside.iterdir()) == []


def test_directories_without_end_are_not_copied(work: Path, second: Path) -> None:
    deep = work / "out" / "/".join("d" * 200)
    deep.mkdir(parents=True)
    with pytest.raises(OSError, match="more than 100 levels"):
        copy_directory("out", work, second, aside=second.parent)


def test_the_cache_has_a_limit(work: Path, tmp_path: Path) -> None:
    cache = SetupCache(tmp_path / "cache", max_bytes=600_000)
    for number in range(3):
        script = f"mkdir -p out; head -c 250000 /dev/zero > out/{number}"
        prepare(cache, work, SetupCommands(commands=(("sh", "-c", script),), cache=("out",)))
        (work / "out" / str(number)).unlink()
    entries = cache_entries(tmp_path / "cache")
    assert {p.name for each in entries for p in (each.path / "out").iterdir()} == {"1", "2"}
    folder = tmp_path / "cache" / "setups"
    assert len(list(folder.iterdir())) == 4
