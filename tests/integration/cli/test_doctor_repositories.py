"""`mulligan doctor` on git, the repositories of mulligan.toml, and the space that they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.git_repositories import UserRepository

from mulligan.console.cli.doctor_checks import Check
from mulligan.console.cli.repository_checks import check_kept_work, check_repositories
from mulligan.workers.settings.model import Settings


def examine(folder: Path, **settings: Any) -> list[Check]:
    return list(check_repositories(Settings(repository_cache=folder / "cache", **settings)))


def put_git(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another program be git."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "git"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))


def test_every_repository_is_asked(tmp_path: Path) -> None:
    user = UserRepository.make(tmp_path / "user")
    url = "https://ada:secret@127.0.0.1:1/shop.git"
    places = {"here": str(user.path), "gone": "/nowhere", "away": url}
    git, here, gone, away, _ = examine(tmp_path, repositories=places)
    assert (git.name, git.status) == ("git", "ok")
    assert (here.status, here.said) == ("ok", f"here: {user.path}")
    assert gone.status == "fail"
    assert "/nowhere does not exist" in gone.said
    assert (away.status, "secret" in f"{away.said}{away.fix}") == ("fail", False)
    assert away.said.startswith("away cannot be reached: https://127.0.0.1:1/shop.git: git ls-remo")
    assert "git ls-remote https://127.0.0.1:1/shop.git" in away.fix


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo git version 2.37.9", "2.37.9 is too old"),
        ("echo hello", "says 'hello'"),
        ("echo git version 3.0.1.windows.1", None),
    ],
)
def test_git_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str | None
) -> None:
    put_git(tmp_path, script, monkeypatch)
    git, _ = examine(tmp_path)
    if said is None:
        assert (git.status, git.said) == ("ok", "3.0.1.windows.1")
    else:
        assert (git.status, git.said) == ("warn", said)
        assert "git 2.38 or later" in git.fix


def test_git_is_needed_by_those_who_name_repositories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert examine(tmp_path)[0].status == "warn"
    git, cache = examine(tmp_path, repositories={"here": str(tmp_path)})
    assert (git.status, git.said) == ("fail", "cannot be started")
    assert cache.name == "repo cache"


def test_the_size_of_the_cache_is_shown(tmp_path: Path) -> None:
    for kind in ("mirrors/a", "mirrors/b", "setups/c"):
        (tmp_path / "cache" / kind).mkdir(parents=True)
        (tmp_path / "cache" / kind / "data").write_bytes(b"x" * 1_000_000)
    cache = examine(tmp_path, repository_cache_cap=2**30)[-1]
    assert cache.status == "ok"
    assert cache.said.endswith(f"GB in {tmp_path / 'cache'}: 2 mirrors, 1 prepared setup")
    full = examine(tmp_path, repository_cache_cap=2**20)[-1]
    assert (full.status, full.fix) == ("warn", "raise repository_cache_cap: all of it is in use")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_kept_work_is_counted(tmp_path: Path, form: str) -> None:
    user = UserRepository.make(tmp_path / "user")
    for name in ("attempts/a/i/1-t", "transcripts/a/i/1-t", "transcripts/a/i/2-t"):
        user.git("update-ref", f"refs/mulligan/{name}", "main")
    name, settings = form.format(user.path), Settings(repository_cache=tmp_path / "cache")
    (kept,) = check_kept_work(settings, [name])
    (gone,) = check_kept_work(settings, ["/gone"])
    assert (gone.name, gone.status) == ("kept work", "warn")
    assert kept.status == "ok"
    assert kept.said.startswith(f"{name}: 2 attempts")
    assert ("MB of objects" in kept.said) == (form == "{}")
