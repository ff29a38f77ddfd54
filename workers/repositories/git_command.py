"""Run git without surprises: no hook, filter, prompt, pager or configuration that we do not want.

There are two profiles. The *operator's* is for fetching and pushing: it has the operator's own
configuration, with credential helpers, proxies and ssh commands. The *isolated* one is for
everything else, above all for files that an agent wrote. It has no configuration but that of the
git directory, which is always named: git never looks for one in the current directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Literal

from mulligan.tasks.ports.errors import RepositoryUnavailable
from mulligan.workers.repositories.file_locks import write_atomically

TIMEOUT_SECONDS = 120.0
#: Author and committer of all that mulligan commits.
IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "mulligan"), ("EMAIL", "mulligan@localhost"))
}
_NOTHING = os.devnull
#: The command line overrides every file.
_CONFIG = (
    f"core.hooksPath={_NOTHING}", "core.fsmonitor=false", "core.untrackedCache=false",
    "core.pager=cat", "core.fsync=committed", "core.fsyncMethod=batch",
    "core.filesRefLockTimeout=5000", "core.packedRefsTimeout=5000",
    "gc.auto=0", "maintenance.auto=false", "commit.gpgsign=false", "push.gpgSign=false",
    # A pack appears at once. With single objects, a killed fetch leaves commits without files.
    "fetch.unpackLimit=1",
    "push.followTags=false", "push.recurseSubmodules=no", "fetch.recurseSubmodules=false",
    "fetch.prune=false", "submodule.recurse=false", "credential.interactive=false",
    "http.lowSpeedLimit=1000", "http.lowSpeedTime=60",
    "protocol.ext.allow=never", "protocol.file.allow=always",
)  # fmt: skip
_ISOLATED_CONFIG = (f"core.attributesFile={_NOTHING}", f"core.excludesFile={_NOTHING}")
_ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",  # empty: neither this one, nor core.askPass, nor SSH_ASKPASS
    "GIT_PAGER": "cat",
    "GIT_EDITOR": ":",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    **IDENTITY,
}
_ISOLATED_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": _NOTHING,
    "GIT_ATTR_NOSYSTEM": "1",
}
#: The user's name and password in an address, and also where git would take them for something
#: else: a password with a slash, or one in ssh's short form.
_CREDENTIALS = re.compile(
    r"(?<=://)[^/\s'\"]*@|(?<=://)[^/@:\s]*:(?!\d+/)\S*@"
    r"|(?<![^\s'\"])[^/@:\s'\"]+:[^/\s]+@(?=[\w.-]+:)"
)
_SECRET_VALUE = re.compile(
    r"([?&;][\w.-]*(?:token|passw|secret|key|auth|sig|credential)[\w.-]*=)[^&;#\s'\"]+", re.I
)
_LONGEST_REASON = 500

Profile = Literal["operator", "isolated"]


class GitTimedOut(RepositoryUnavailable):
    """Git did not end in time, and was killed."""


@dataclass(frozen=True)
class GitUser:
    """The user that git runs as, if it is not the worker's. Only root can do that."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @classmethod
    def owner_of(cls, directory: Path) -> GitUser | None:
        """Return the owner of a directory; None if git can run as this process does."""
        status = directory.stat()
        if os.geteuid() != 0 or status.st_uid == 0:
            return None
        try:
            entry = pwd.getpwuid(status.st_uid)
        except KeyError:
            return cls(status.st_uid, status.st_gid)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        return cls(status.st_uid, entry.pw_gid, tuple(groups))


@dataclass(frozen=True)
class GitResult:
    """How git ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode("utf-8", "replace").splitlines()

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "replace").strip()

    @property
    def reason(self) -> str:
        """What git says about a failure, in one line."""
        said = (line.strip() for line in self.err.splitlines())
        lines = [line for line in said if line and not line.startswith(("warning:", "hint:"))]
        marked = [line for line in lines if line.startswith(("fatal:", "error:"))]
        # What ssh says comes before what git makes of it.
        both = dict.fromkeys([*lines[:1], *marked[:1]]) or [f"exit code {self.code}"]
        return redact("; ".join(both))[:_LONGEST_REASON]


@dataclass(frozen=True, kw_only=True)
class Git:
    """Git in one git directory."""

    #: What messages call the repository.
    name: str
    directory: Path
    profile: Profile = "isolated"
    timeout: float = TIMEOUT_SECONDS
    user: GitUser | None = None
    #: The directory of objects, if it is not the one of the git directory.
    objects: Path | None = None
    #: The configuration for the profile of the operator.
    config: Path | None = None
    #: More variables.
    env: Mapping[str, str] = field(default_factory=dict)

    def having(self, **variables: str | Path) -> Git:
        """Return the same with more variables."""
        added = {name: str(value) for name, value in variables.items()}
        return replace(self, env={**self.env, **added})

    def run(
        self,
        *arguments: str,
        stdin: bytes | IO[bytes] = b"",
        stdout: IO[bytes] | None = None,
        work_tree: Path | None = None,
        holding: int | None = None,
    ) -> GitResult:
        """Run git, whatever it answers. Raise RepositoryUnavailable if it does not end in time.

        ``stdout``: a file that gets the output. ``holding``: the descriptor of a lock that git
        holds, too, in case that this process is killed.
        """
        given = stdin if isinstance(stdin, bytes) else None
        process = self._start(
            arguments,
            stdin=subprocess.PIPE if isinstance(stdin, bytes) else stdin,
            stdout=stdout or subprocess.PIPE,
            work_tree=work_tree,
            holding=holding,
        )
        try:
            out, err = process.communicate(given, timeout=self.timeout)
        except subprocess.TimeoutExpired:
            raise self._timed_out(arguments[0]) from None
        finally:
            _end(process)
        return GitResult(process.returncode, out or b"", err.decode("utf-8", "replace"))

    def read(
        self,
        *arguments: str,
        stdin: bytes | IO[bytes] = b"",
        stdout: IO[bytes] | None = None,
        work_tree: Path | None = None,
    ) -> GitResult:
        """Run git. Raise RepositoryUnavailable if it fails."""
        result = self.run(*arguments, stdin=stdin, stdout=stdout, work_tree=work_tree)
        if result.code:
            raise self.failed(arguments[0], result)
        return result

    def read_start(self, *arguments: str, max_bytes: int) -> tuple[bytes, bool]:
        """Return the start of what git prints, and whether that is all."""
        process = self._start(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        timer = threading.Timer(self.timeout, _kill, [process])
        timer.start()
        try:
            assert process.stdout is not None  # noqa: S101 - tells mypy what PIPE means
            assert process.stderr is not None  # noqa: S101
            start = process.stdout.read(max_bytes + 1)
            if len(start) > max_bytes:
                return start[:max_bytes], False
            err = process.stderr.read().decode("utf-8", "replace")
            process.wait()
        finally:
            timer.cancel()
            _end(process)
        if process.returncode == -signal.SIGKILL:
            raise self._timed_out(arguments[0])
        if process.returncode:
            raise self.failed(arguments[0], GitResult(process.returncode, start, err))
        return start, True

    def failed(self, command: str, result: GitResult) -> RepositoryUnavailable:
        """Return the error for a result."""
        return RepositoryUnavailable(f"{self.name}: git {command} failed: {result.reason}")

    def _timed_out(self, command: str) -> GitTimedOut:
        return GitTimedOut(f"{self.name}: git {command} took longer than {self.timeout:g} s")

    def _start(
        self,
        arguments: Sequence[str],
        *,
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
        work_tree: Path | None = None,
        holding: int | None = None,
    ) -> subprocess.Popen[bytes]:
        tree = () if work_tree is None else (f"--work-tree={work_tree}",)
        config = _CONFIG + (_ISOLATED_CONFIG if self.profile == "isolated" else ())
        options = [part for each in config for part in ("-c", each)]
        argv = ["git", *options, f"--git-dir={self.directory}", *tree, *arguments]
        user = self.user
        try:
            return subprocess.Popen(
                argv,
                cwd="/",
                env=self._environment(),
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.PIPE,
                # No terminal to ask on, and one group that can be killed.
                start_new_session=True,
                pass_fds=() if holding is None else (holding,),
                user=None if user is None else user.uid,
                group=None if user is None else user.gid,
                extra_groups=None if user is None else user.groups,
            )
        except FileNotFoundError:
            raise RepositoryUnavailable(
                f"{self.name}: there is no program `git` on this worker's PATH; install git"
            ) from None
        except OSError as error:
            raise RepositoryUnavailable(
                f"{self.name}: git cannot be started: {error.strerror}"
            ) from None

    def _environment(self) -> dict[str, str]:
        if self.profile == "isolated":
            env = {"PATH": os.environ.get("PATH", os.defpath), **_ISOLATED_ENVIRONMENT}
        else:
            env = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
            if self.config is not None:
                env["GIT_CONFIG_GLOBAL"] = str(self.config)
        if self.objects is not None:
            env["GIT_OBJECT_DIRECTORY"] = str(self.objects)
        return {**env, **_ENVIRONMENT, **self.env}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of a process: also not the ssh that it started."""
    if process.poll() is None:
        _kill(process)
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def redact(text: str) -> str:
    """Return a text without the names, passwords and tokens of its addresses."""
    return without_tokens(_CREDENTIALS.sub("", text))


def without_tokens(text: str) -> str:
    """Return a text without the secrets in the queries of its addresses."""
    return _SECRET_VALUE.sub(r"\1…", text)


def operator_config(folder: Path) -> Path:
    """Write the configuration for the profile of the operator, and return its path.

    It includes the operator's own. ``safe.directory`` must be in a file: a local transport does not
    hand ``-c`` on to the git on the other side.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises for such a user
    named = os.environ.get("GIT_CONFIG_GLOBAL")
    places = [
        Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "git" / "config",
        home / ".gitconfig",
    ]
    if named is not None:
        places = [Path(named)]
    included = "".join(f"[include]\n\tpath = {_quote(str(place))}\n" for place in places)
    text = f"{included}[safe]\n\tdirectory = *\n"
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    path = folder / f"operator-{digest}.gitconfig"
    if not path.exists():
        write_atomically(path, text.encode("utf-8", "surrogateescape"))
    return path


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
