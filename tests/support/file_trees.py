"""Folders of files: what is in them, changes to them, and a child that is killed meanwhile."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mulligan.tasks.ports.appliers import FileChange

#: A file as (content, mode); a folder as its mode; a link as where it leads.
Snapshot = dict[str, tuple[bytes, int] | int | str]

_CLEAN = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "user",
    "GIT_AUTHOR_EMAIL": "user@localhost",
    "GIT_COMMITTER_NAME": "user",
    "GIT_COMMITTER_EMAIL": "user@localhost",
}


def snapshot(root: Path, *, without: Path | None = None) -> Snapshot:
    """All that is in a folder, byte for byte, also what belongs to the user's git."""
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
    """Files by their path: text, bytes, or bytes with a mode."""
    for name, given in files.items():
        data, mode = given if isinstance(given, tuple) else (given, 0o644)
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data.encode() if isinstance(data, str) else data)
        place.chmod(mode)
    return root


def change(root: Path, path: str, after: bytes | None, mode: int | None = None) -> FileChange:
    """A change of a file as it is now."""
    place = root / path
    before = place.read_bytes() if place.is_file() else None
    return FileChange(path=path, before=before, after=after, mode=mode)


def git(*arguments: str, cwd: Path) -> str:
    """The user's own git."""
    environment = {**_CLEAN, "HOME": str(cwd)}
    ran = subprocess.run(
        ["git", *arguments], cwd=cwd, env=environment, capture_output=True, check=True
    )
    return ran.stdout.decode()


def in_child(action: Callable[[], object]) -> int:
    """Run something in a forked child. Its exit status: 0, 1 for an exception, -9 if killed."""
    child = os.fork()
    if not child:
        try:
            action()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


#: What changes a file system or starts a program, as the interpreter announces it.
_DEEDS = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}
    | {"subprocess.Popen", "fcntl.flock"}
)


def dying_before(deed: int, action: Callable[[], object]) -> Callable[[], None]:
    """The action, killed right before its n-th deed: the whole of it, moment by moment."""

    def run() -> None:
        done = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal done
            flags = arguments[2] if event == "open" else 0
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if event in _DEEDS or writes:
                done += 1
                if done == deed:
                    die()

        sys.addaudithook(hook)
        action()

    return run
