"""The repository of the demonstration, and whether anything of its user was touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BRANCH = "mulligan/shop"
#: The mode of a directory that is a repository of its own.
_GITLINK = "160000 "


def git(folder: Path, *argv: str) -> str:
    """Run git without the configuration of whoever runs the demonstration."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", *argv], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def make_repository(folder: Path) -> None:
    """Make a repository of the project, whose user is in the middle of something."""
    caches = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    shutil.copytree(HERE / "project", folder, ignore=caches)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "config", "user.name", "Somebody")
    git(folder, "config", "user.email", "somebody@example.org")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Begin a shop")
    readme = folder / "README.md"
    readme.write_text(readme.read_text("utf-8") + "\nA staged sentence.\n", "utf-8")
    git(folder, "add", "README.md")
    readme.write_text(readme.read_text("utf-8") + "\nOne that is not staged.\n", "utf-8")
    (folder / "ideas.txt").write_text("sell coffee, too\n", "utf-8")
    for name in ("post-commit", "post-checkout", "post-merge", "reference-transaction"):
        hook = folder / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch '{folder}/ran-a-hook'\n", "utf-8")
        hook.chmod(0o755)


@dataclass(frozen=True)
class UserState:
    """All that belongs to the user: branch, index and files."""

    head: str
    main: str
    index: str
    files: dict[str, bytes]

    @classmethod
    def of(cls, folder: Path) -> UserState:
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        own = [path for path in paths if ".git" not in path.relative_to(folder).parts]
        return cls(
            head=git(folder, "symbolic-ref", "HEAD"),
            main=git(folder, "rev-parse", "main"),
            index=git(folder, "ls-files", "--stage"),
            files={str(path.relative_to(folder)): path.read_bytes() for path in own},
        )


def has_branch(folder: Path) -> bool:
    return bool(git(folder, "branch", "--list", BRANCH))


def history(folder: Path) -> list[str]:
    """Return the commits on the loop's branch, the newest first."""
    return git(folder, "log", "--oneline", "--first-parent", BRANCH).splitlines()


def has_gitlink(folder: Path) -> bool:
    """Whether the branch has a directory whose files are in no commit of this repository."""
    return any(
        line.startswith(_GITLINK) for line in git(folder, "ls-tree", "-r", BRANCH).splitlines()
    )


def run_all_tests(folder: Path, into: Path) -> tuple[bool, str]:
    """Run the whole suite in a clone of the loop's branch; return the last line, too."""
    git(folder, "clone", "--quiet", "--no-hardlinks", "--branch", BRANCH, str(folder), str(into))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=into,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode == 0, printed[-1] if printed else "nothing was printed"
