"""Prepare checkouts: run the commands of a setup, or copy what they made the last time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mulligan.policies.failures.command_output import first_error
from mulligan.policies.jobs.job import escapes
from mulligan.tasks.ports.errors import BadInput, SetupFailed
from mulligan.workers.repositories.disk_usage import SETUPS, prune
from mulligan.workers.repositories.file_locks import exclusive_lock, shared_lock
from mulligan.workers.sandbox.copied_directories import copy_directory
from mulligan.workers.sandbox.file_tree import read_file
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.programs import ProgramMissing
from mulligan.workers.sandbox.subprocesses import Completed, clean_environment, run, signal_name
from mulligan.workers.sandbox.worker_paths import WorkerPaths

MOST_BYTES = 10_000_000_000
_VERSION = b"2"
_LAST_LINES = 20
_TAIL_CHARACTERS = 2_000
_LARGEST_KEY_FILE = 64 << 20
_WAIT_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class SetupCommands:
    """How a checkout is prepared."""

    #: Each with its arguments.
    commands: tuple[tuple[str, ...], ...]
    #: Directories of the checkout that the commands make.
    cache: tuple[str, ...] = ()
    #: Patterns of the files that these directories depend on.
    key: tuple[str, ...] = ()
    #: Seconds, of each command.
    timeout: float = 600.0


class SetupCache:
    """What setups made, below a directory."""

    def __init__(self, cache: Path, *, max_bytes: int = MOST_BYTES) -> None:
        self._cache, self._max_bytes = cache, max_bytes

    def prepare(
        self,
        work: Path,
        setup: SetupCommands,
        *,
        owner: str,
        limits: Limits,
        read: Sequence[Path] = (),
        keep: bool = True,
    ) -> bool:
        """Prepare the checkout in ``work``; return whether that was done by copying.

        ``work`` is in a private directory. ``owner``: whose it is. What is prepared for one owner
        is never used for another, because the key need not name the scripts that commands run.
        ``read``: more that the commands may read. ``keep``: whether what they make is kept for
        others. It must be False in a checkout that an agent changed: what it did to a script would
        be in every later checkout. Raise SetupFailed if a command fails, and BadInput for
        directories outside of the checkout.
        """
        for name in setup.cache:
            if escapes(name) or ".git" in PurePosixPath(name).parts:
                raise BadInput.at("setup.cache", f"{name!r} is not a directory of the checkout")
        place = self._cache / SETUPS / _key(work, setup, owner)
        if setup.cache:
            with shared_lock(_lock(place), wait=_WAIT_SECONDS):
                if place.is_dir():
                    for name in setup.cache:
                        copy_directory(name, place, work, aside=work.parent)
                    return True
        _run_all(work, setup, limits, read)
        if setup.cache and keep:
            self._store(work, setup.cache, place)
        return False

    def _store(self, work: Path, names: Sequence[str], place: Path) -> None:
        new = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        # A full disk must not fail an attempt that is prepared.
        with contextlib.suppress(OSError):
            new.mkdir(parents=True)
            for name in names:
                copy_directory(name, work, new, aside=new)
            with exclusive_lock(_lock(place), wait=_WAIT_SECONDS):
                if not place.exists():
                    new.rename(place)
        shutil.rmtree(new, ignore_errors=True)
        prune(self._cache, self._max_bytes, kinds=("setup",), idle=0)


def _lock(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


def _run_all(work: Path, setup: SetupCommands, limits: Limits, read: Sequence[Path]) -> None:
    # Not the home of agents and verifiers: they would run what an agent's script left there, and
    # the worker writes files of the operator into it.
    private = work.parent / "setup"
    for argv in setup.commands:
        try:
            done = run(
                argv,
                cwd=work,
                timeout=setup.timeout,
                env=clean_environment(private),
                limits=limits,
                read=read,
            )
        except ProgramMissing as error:
            message = f"the setup command `{shlex.join(argv)}` cannot be started: {error}"
            raise SetupFailed(message, {"argv": list(argv)}) from error
        if done.exit_code != 0:
            raise _failure(argv, done, setup.timeout, WorkerPaths(work))


def _failure(
    argv: Sequence[str], done: Completed, timeout: float, paths: WorkerPaths
) -> SetupFailed:
    out, err = paths.clean(done.stdout), paths.clean(done.stderr)
    if done.timed_out:
        how = f"took longer than {timeout:g} s"
    elif done.signal is not None:
        how = f"was ended by {signal_name(done.signal)}"
    else:
        how = f"failed with exit code {done.exit_code}"
    error = first_error(err, out)
    said = f"the setup command `{shlex.join(argv)}` {how}" + (f": {error}" if error else "")
    evidence = {
        "argv": list(argv),
        "exit_code": done.exit_code,
        "signal": done.signal,
        "timed_out": done.timed_out,
        "stderr_tail": err[-_TAIL_CHARACTERS:],
        "stdout_tail": out[-_TAIL_CHARACTERS:],
    }
    lines = [*out.splitlines(), *err.splitlines()][-_LAST_LINES:]
    return SetupFailed("\n".join([said, *lines]), evidence)


def _key(work: Path, setup: SetupCommands, owner: str) -> str:
    """Return a hash of the owner, the commands and the files that the result depends on."""
    digest = hashlib.sha256(_VERSION)
    for text in (owner, repr(setup.commands), repr(setup.cache)):
        digest.update(text.encode("utf-8", "surrogateescape") + b"\0")
    for path in _matching(work, setup.key):
        name = os.fsencode(path.relative_to(work))
        try:
            data = read_file(path, max_bytes=_LARGEST_KEY_FILE)
        except OSError as error:
            name += b" " + str(error.errno).encode()
            data = b""
        digest.update(b"%d %d " % (len(name), len(data)) + name + data)
    return digest.hexdigest()[:32]


def _matching(work: Path, patterns: Sequence[str]) -> list[Path]:
    found: set[Path] = set()
    for pattern in patterns:
        if escapes(pattern):
            raise BadInput.at("setup.key", f"{pattern!r} is not a pattern of files in the checkout")
        found.update(path for path in work.glob(pattern) if ".git" not in path.parts)
    return sorted(found)
