"""Real git repositories of users, and what must not change in them."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mulligan.workers.repositories.git_repository import GitRepository
from mulligan.workers.repositories.repositories import GitRepositories

_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "user",
    "GIT_AUTHOR_EMAIL": "user@localhost",
    "GIT_COMMITTER_NAME": "user",
    "GIT_COMMITTER_EMAIL": "user@localhost",
}
FILES = {"a.txt": "one\ntwo\nthree\n", "src/b.py": "b = 1\n"}


def git(directory: Path, *arguments: str, stdin: bytes = b"") -> str:
    """Run git as a user does in a directory."""
    env = {"PATH": os.environ["PATH"], "HOME": str(directory), **_ENVIRONMENT}
    done = subprocess.run(
        ["git", *arguments], cwd=directory, env=env, input=stdin, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


@cache
def _template() -> Path:
    """Return a repository with FILES that is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return UserRepository.make(folder / "user", dict(FILES)).path


@dataclass(frozen=True)
class UserRepository:
    """The repository of a user, with a working tree."""

    path: Path

    @classmethod
    def make(
        cls, path: Path, files: Mapping[str, str | bytes] = FILES, *options: str
    ) -> UserRepository:
        if files is FILES and not options:  # most tests: a copy is quicker
            shutil.copytree(_template(), path)
            return cls(path)
        path.mkdir(parents=True)
        git(path, "init", "-q", "-b", "main", "--template=", *options)
        repository = cls(path)
        if files:
            repository.commit(files)
        return repository

    def git(self, *arguments: str, stdin: bytes = b"") -> str:
        return git(self.path, *arguments, stdin=stdin)

    def commit(self, files: Mapping[str, str | bytes | None], message: str = "change") -> str:
        """Write and delete files, and commit that on the current branch."""
        write(self.path, files)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def bare(self, path: Path) -> Path:
        """Make a bare copy."""
        shutil.copytree(self.path / ".git", path)
        git(path, "config", "core.bare", "true")
        return path

    def state(self) -> dict[str, bytes | str]:
        """Return what mulligan must never change."""
        inside = self.path / ".git"
        files = {name: (inside / name).read_bytes() for name in ("HEAD", "config", "index")}
        names = sorted(p for p in self.path.rglob("*") if inside not in p.parents and p.is_file())
        return {
            **files,
            **{str(path): path.read_bytes() for path in names},
            "hooks": " ".join(sorted(p.name for p in inside.glob("hooks/*"))),
            "status": self.git("--no-optional-locks", "status", "--porcelain"),
            "branches": self.git("for-each-ref", "refs/heads/main", "refs/tags"),
        }


def commit_on(repository: Path, parent: str, files: Mapping[str, str]) -> str:
    """Make a commit with more files on top of another, without a branch."""
    stream = "commit refs/tests/new\nmark :1\ncommitter u <u@localhost> 1700000000 +0000\n"
    stream += f"data 4\nwork\nfrom {parent}\n"
    for name, content in files.items():
        stream += f"M 100644 inline {name}\ndata {len(content)}\n{content}\n"
    stream += "\nget-mark :1\ndone\n"
    options = ["--quiet", "--done", "--force"]
    return git(repository, "fast-import", *options, stdin=stream.encode())


def write(directory: Path, files: Mapping[str, str | bytes | None]) -> None:
    """Write files below a directory. None: delete it."""
    for name, content in files.items():
        path = directory / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def open_repository(cache: Path, name: Path | str) -> GitRepository:
    return GitRepositories(cache, {}).open(str(name))


def files_of(repository: Path, commit: str) -> dict[str, tuple[str, bytes]]:
    """Return the modes and contents of a commit, by path."""
    entries = git(repository, "ls-tree", "-r", "-z", commit).split("\0")
    parsed = [
        (line.partition("\t")[2], line.partition("\t")[0].split()) for line in entries if line
    ]
    wanted = "".join(f"{oid}\n" for _, (_, kind, oid) in parsed if kind == "blob")
    argv = ["git", "cat-file", "--batch"]
    out = subprocess.run(argv, cwd=repository, input=wanted.encode(), capture_output=True).stdout
    found, at = {}, 0
    for path, (mode, kind, _) in parsed:
        content = b""
        if kind == "blob":
            end = out.index(b"\n", at)
            size = int(out[at:end].split()[2])
            content, at = out[end + 1 : end + 1 + size], end + size + 2
        found[path] = (mode, content)
    return found


def add_hook(directory: Path, name: str, script: str) -> None:
    """Add a hook to a git directory."""
    path = directory / "hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
