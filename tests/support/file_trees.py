"""Folders of files: snapshots, changes, and child processes that are killed at a given step."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from mulligan.tasks.ports.appliers import FileChange

#: A file is (content, mode), a folder its mode, a link its target.
Snapshot = dict[str, tuple[bytes, int] | int | str]

_GIT_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "user",
    "GIT_AUTHOR_EMAIL": "user@localhost",
    "GIT_COMMITTER_NAME": "user",
    "GIT_COMMITTER_EMAIL": "user@localhost",
}


def snapshot(root: Path, *, without: Path | None = None) -> Snapshot:
    """Return all contents of a folder byte for byte, its .git included."""
    found: Snapshot = {}
    for place in sorted(root.rglob("*")):
        if without is not None and place.is_relative_to(without):
            continue
        status = place.lstat()
        name = str(place.relative_to(root))
        if stat.S_ISLNK(status.st_mode):
            found[name] = str(place.readlink())
        elif stat.S_ISDIR(status.st_mode):
            found[name] = stat.S_IMODE(status.st_mode)
        else:
            found[name] = (place.read_bytes(), stat.S_IMODE(status.st_mode))
    return found


def write_files(root: Path, files: Mapping[str, str | bytes | tuple[bytes, int]]) -> Path:
    """Write files by their path: text, bytes, or bytes with a mode."""
    for name, content in files.items():
        data, mode = content if isinstance(content, tuple) else (content, 0o644)
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data.encode() if isinstance(data, str) else data)
        place.chmod(mode)
    return root


def change(root: Path, path: str, after: bytes | None, mode: int | None = None) -> FileChange:
    """Return a change that starts from a file's present content."""
    place = root / path
    before = place.read_bytes() if place.is_file() else None
    return FileChange(path=path, before=before, after=after, mode=mode)


def git(*arguments: str, cwd: Path) -> str:
    """Run git as the user and return its output."""
    environment = {**_GIT_ENVIRONMENT, "HOME": str(cwd)}
    done = subprocess.run(
        ["git", *arguments], cwd=cwd, env=environment, capture_output=True, check=True
    )
    return done.stdout.decode()


def in_child(action: Callable[[], object]) -> int:
    """Run an action in a forked child. Return 0, 1 for an exception, or -9 if it was killed.

    Not with multiprocessing: what kombu lets it do after a fork may wait for a server for ever.
    """
    child = os.fork()
    if not child:
        try:
            action()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


#: The interpreter's audit events that change a file system or start a program.
_EFFECTS = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}
    | {"subprocess.Popen", "fcntl.flock"}
)


def killed_before(effect: int, action: Callable[[], object]) -> Callable[[], None]:
    """Wrap an action so that its process is killed right before its n-th effect."""

    def run() -> None:
        done = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal done
            flags = arguments[2] if event == "open" else 0
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if event in _EFFECTS or writes:
                done += 1
                if done == effect:
                    die()

        sys.addaudithook(hook)
        action()

    return run
