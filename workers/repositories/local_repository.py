"""A repository on this host, used directly in its git directory.

Of the user's, only objects and the references that mulligan is asked to move are written. Objects
are read and written through a git directory of our own that names the user's directory of objects.
So the repository's configuration, attributes and hooks have no effect on what git does.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import IO, cast

from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.workers.repositories.git_command import TIMEOUT_SECONDS, Git, GitUser
from mulligan.workers.repositories.git_directory import (
    ObjectFormat,
    find_git_directory,
    make_git_directory,
    make_once,
)
from mulligan.workers.repositories.git_repository import (
    GitRepository,
    RefMove,
    is_abbreviated,
    is_id,
)
from mulligan.workers.repositories.ref_names import branch_ref, is_ref
from mulligan.workers.sandbox.private import private_directory

#: More objects than this become a pack instead of a file each.
_MOST_LOOSE = 500
#: Where the number of objects is in a pack.
_COUNT_IN_PACK = 8
#: No git holds the lock of a reference for so long: it was killed.
_DEAD_LOCK_SECONDS = 900.0


class LocalRepository(GitRepository):
    """A repository on this host: bare or not, or one of its worktrees."""

    def __init__(self, path: Path, *, cache: Path, timeout: float = TIMEOUT_SECONDS) -> None:
        """Raise BadInput if there is no git repository at the path."""
        self.name = str(path)
        try:
            directory = find_git_directory(path)
            if directory is None:
                raise _not_a_repository(path)
            self._user = GitUser.owner_of(directory)
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}") from error
        self._cache, self._timeout = cache, timeout
        #: The git directory of the named worktree, for its HEAD.
        self._worktree = self._git(directory)
        self._common, self.object_format = self._examine(path)
        self._refs = self._git(self._common)

    def _git(self, directory: Path) -> Git:
        return Git(name=self.name, directory=directory, timeout=self._timeout, user=self._user)

    def _examine(self, path: Path) -> tuple[Path, ObjectFormat]:
        result = self._worktree.run(
            "rev-parse", "--path-format=absolute", "--git-common-dir", "--show-object-format"
        )
        lines = os.fsdecode(result.out).splitlines()
        if (result.code or len(lines) != 2) and self._user is not None:
            raise BadInput(
                f"{path} belongs to user {self._user.uid}, as whom git cannot use it"
                f" ({result.reason}): let that user reach it, or run the worker as that user"
            )
        if result.code or len(lines) != 2:
            raise _not_a_repository(path, result.reason)
        common = Path(lines[0])
        if any((common / "objects" / "pack").glob("*.promisor")):
            raise BadInput(
                f"{path} is a partial clone, which has not all of its objects: name the URL of its"
                " origin, or fetch all of them (`git fetch --refetch --no-filter`)"
            )
        return common, cast(ObjectFormat, lines[1])

    @property
    def identity(self) -> str:
        return str(self._common.resolve())

    @property
    def objects(self) -> Git:
        git = Git(
            name=self.name,
            directory=self._neutral_directory(),
            timeout=self._timeout,
            user=self._user,
            objects=self.object_directory,
        )
        shallow = self.shallow_file
        return git.having(GIT_SHALLOW_FILE=shallow) if shallow.exists() else git

    @property
    def shallow_file(self) -> Path:
        return self._common / "shallow"

    @property
    def object_directory(self) -> Path:
        return self._common / "objects"

    def _neutral_directory(self) -> Path:
        """Return an empty git directory of our own that the repository's owner can read."""
        if self._user is None:
            return make_once(
                self._cache / f"neutral-{self.object_format}", object_format=self.object_format
            )
        return self._shown_directory

    @cached_property
    def _shown_directory(self) -> Path:
        held = ExitStack()
        work = held.enter_context(private_directory())
        work.parent.chmod(0o711)
        make_git_directory(work, object_format=self.object_format)
        for folder, _, files in os.walk(work):
            Path(folder).chmod(0o755)
            for name in files:
                Path(folder, name).chmod(0o644)
        weakref.finalize(self, _close, held)
        return work

    def using(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    # -- references --------------------------------------------------------------------------------

    def resolve(self, ref: str) -> str | None:
        if is_id(ref) or ref == "HEAD":
            names = [ref]
        else:
            names = [
                f"{start}{ref}" for start in ("", "refs/heads/", "refs/tags/", "refs/remotes/")
            ]
            names = [name for name in names if name.startswith("refs/") and is_ref(name)]
            names += [ref] if is_abbreviated(ref) else []
        for name in names:
            result = self._worktree.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
            if result.code == 0:
                return result.text
            if result.code != 1:  # also if the repository is gone
                self._worktree.read("rev-parse", "--git-dir")
        return None

    def checked_out(self, branch: str) -> str | None:
        ref = branch_ref(branch)
        out = self._refs.read("worktree", "list", "--porcelain", "-z").out
        folder = ""
        for line in out.split(b"\0"):
            key, _, value = line.partition(b" ")
            if key == b"worktree":
                folder = os.fsdecode(value)
            elif key == b"branch" and os.fsdecode(value) == ref:
                return folder
        return self._in_progress(ref)

    def _in_progress(self, ref: str) -> str | None:
        """Return the worktree in which a branch is being rebased or bisected."""
        for directory in (self._common, *(self._common / "worktrees").glob("*")):
            if ref in _unfinished(directory):
                linked = directory / "gitdir"
                if directory != self._common and linked.is_file():
                    return str(Path(os.fsdecode(linked.read_bytes().strip())).parent)
                return str(directory.parent if directory.name == ".git" else directory)
        return None

    def tips(self, refs: Sequence[str]) -> dict[str, str]:
        return self.read_refs(refs)

    def read_refs(self, refs: Sequence[str]) -> dict[str, str]:
        wanted = set(refs)
        found: dict[str, str] = {}
        # Each is asked for by its name. Many are listed instead: a command line has an end.
        names = sorted(wanted) if len(wanted) <= 100 else ["refs/mulligan/"]
        options = ["--format=%(objectname) %(refname)", *names]
        for line in self._refs.read("for-each-ref", *options).lines:
            oid, _, ref = line.partition(" ")
            if ref in wanted:
                found[ref] = oid
        return found

    def _below(self, start: str) -> dict[str, str]:
        options = ["--format=%(objectname) %(refname)", start]
        lines = self._refs.read("for-each-ref", *options).lines
        return {ref: oid for oid, _, ref in (line.partition(" ") for line in lines)}

    def size(self) -> int:
        """Return the bytes of its objects."""
        lines = self._refs.read("count-objects", "-v").lines
        found = dict(line.split(": ", 1) for line in lines if ": " in line)
        return 1024 * (int(found["size"]) + int(found["size-pack"]))

    def _names_below(self, start: str) -> Collection[str]:
        return self._below(start)

    def _write(self, moves: Sequence[RefMove], source: Git | None, known: Sequence[str]) -> None:
        if source is not None:
            self._receive(source, [each.new for each in moves if each.new is not None], known)
        none = "0" * (40 if self.object_format == "sha1" else 64)
        lines = ["start"]
        for each in moves:
            if each.new is None:
                lines.append(f"delete {each.ref} {each.old or none}")
            else:
                lines.append(f"update {each.ref} {each.new} {each.old or none}")
        text = "\n".join([*lines, "prepare", "commit", ""]).encode()
        command = ("update-ref", "-m", "mulligan", "--stdin")
        result = self._refs.run(*command, stdin=text)
        if result.code and "File exists" in result.err and self._remove_dead_locks(moves):
            result = self._refs.run(*command, stdin=text)
        if result.code:
            raise self._refs.failed("update-ref", result)

    def _remove_dead_locks(self, moves: Sequence[RefMove]) -> bool:
        """Remove the locks of these references that a killed git left; return whether any was."""
        removed = False
        for each in moves:
            lock = self._common / f"{each.ref}.lock"
            with contextlib.suppress(OSError):
                if time.time() - lock.stat().st_mtime > _DEAD_LOCK_SECONDS:
                    lock.unlink()
                    removed = True
        return removed

    def _receive(self, source: Git, commits: Sequence[str], known: Sequence[str]) -> None:
        """Copy objects from another repository into this one.

        It is a pack in a file: the owner of this repository may not be able to read the other one.
        """
        wanted = "".join([*(f"{each}\n" for each in commits), *(f"^{each}\n" for each in known)])
        with _temporary_file() as pack:
            source.read(
                "pack-objects", "--revs", "--stdout", "-q", stdin=wanted.encode(), stdout=pack
            )
            count = int.from_bytes(os.pread(pack.fileno(), 4, _COUNT_IN_PACK), "big")
            os.lseek(pack.fileno(), 0, os.SEEK_SET)
            if count > _MOST_LOOSE:
                self.objects.read("index-pack", "--stdin", stdin=pack)
            elif count:
                self.objects.read("unpack-objects", "-q", stdin=pack)


@contextlib.contextmanager
def _temporary_file() -> Iterator[IO[bytes]]:
    try:
        with tempfile.TemporaryFile() as file:
            yield file
    except OSError as error:
        raise RepositoryUnavailable(f"a temporary file: {error.strerror}") from error


def _not_a_repository(path: Path, reason: str = "") -> BadInput:
    why = f" ({reason})" if reason else ""
    return BadInput(f"{path} is not a git repository{why}: run `git init` there, or name another")


def _unfinished(directory: Path) -> set[str]:
    """Return the branches that a rebase or a bisection in a worktree will come back to."""
    found = set()
    for name in ("rebase-merge/head-name", "rebase-apply/head-name", "BISECT_START"):
        with contextlib.suppress(OSError):
            text = os.fsdecode((directory / name).read_bytes()).strip()
            found |= {text, f"refs/heads/{text}"}
    with contextlib.suppress(OSError):
        lines = os.fsdecode((directory / "rebase-merge/update-refs").read_bytes()).splitlines()
        found.update(line.strip() for line in lines if line.startswith("refs/"))
    return found


def _close(held: ExitStack) -> None:
    # At the end of Python no thread can be started. What is left is found as abandoned then.
    with contextlib.suppress(RuntimeError):
        held.close()
