"""What one program gets to see, and how the launcher arranges that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mulligan.workers.sandbox import control_groups, seccomp
from mulligan.workers.sandbox.isolation import Isolation, NotConfined
from mulligan.workers.sandbox.launcher.confine import landlock_version
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import user_of
from mulligan.workers.sandbox.visible_files import (
    FOR_LANDLOCK,
    hidden_links,
    is_below,
    system_files,
    system_links,
)

#: The name of a program's user, whatever its number.
PROGRAM_USER = "sandbox"
#: The size of /tmp and of /dev/shm. TMPDIR is elsewhere, and has the limit of all files.
_TEMPORARY_BYTES = 256 << 20
#: The first port that needs no capability.
_FIRST_FREE_PORT = 1024
#: The version of Landlock that covers shortening a file.
_COVERS_TRUNCATE = 3
#: The files of the launcher, of which one part runs inside.
LAUNCHER = Path(__file__).resolve().parent / "launcher"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What one program gets to see."""

    cwd: Path
    #: Its environment; HOME and TMPDIR name directories that it may write.
    env: Mapping[str, str]
    limits: Limits
    #: Files for this program only.
    read: Sequence[Path] = ()
    #: The names of its network: host → address. None: it has no network.
    hosts: Mapping[str, str] | None = None

    @cached_property
    def writable(self) -> Mapping[str, str]:
        """The directories that it may write, and where their links lead."""
        named = (self.env[name] for name in ("HOME", "TMPDIR") if name in self.env)
        return {path: os.path.realpath(path) for path in (str(self.cwd), *named)}

    @cached_property
    def readable(self) -> Mapping[str, str]:
        """The paths that it may only read, and where their links lead."""
        found = dict(system_files())
        ours = (LAUNCHER,) if self.hosts is not None else ()
        for path in (*self.read, *ours):
            for each in hidden_links(path, _places(found, self.writable)):
                if os.path.exists(each):
                    found[each] = os.path.realpath(each)
        return {path: real for path, real in found.items() if path not in self.writable}

    @cached_property
    def places(self) -> Set[str]:
        """All that it sees."""
        return _places(self.readable, self.writable)

    @property
    def covered(self) -> list[str]:
        """The places at which visible directories contain what may never be seen."""
        return [place for _, place in self.contained()]

    def contained(self) -> Iterator[tuple[str, str]]:
        """Yield visible directories, and where in them is what may never be seen."""
        for path, real in self.readable.items():
            for secret in self.limits.confinement.never_read:
                if is_below(str(secret), {real}) and os.path.lexists(secret):
                    yield path, os.path.normpath(os.path.join(path, os.path.relpath(secret, real)))  # noqa: PTH118


def _places(*visible: Mapping[str, str]) -> set[str]:
    return {path for each in visible for path in (*each, *each.values())}


def require_hidden(isolation: Isolation, around: Surroundings) -> None:
    """Raise NotConfined if the program would see what it may never see."""
    never = {str(each) for each in around.limits.confinement.never_read}
    for path in around.read:
        own = hidden_links(path, _places(system_files(), around.writable))
        if own and is_below(os.path.realpath(path), never):
            raise NotConfined(
                f"{path} cannot be shown to programs: files or sockets of mulligan, its broker or"
                " its ledger are there; move what programs need elsewhere, and correct `read` of"
                " the profile, sandbox_read or the argument"
            )
    for folder, place in around.contained() if isolation.kind == "landlock" else ():
        raise NotConfined(
            f"name smaller directories than {folder} in `read` of the profile or in sandbox_read:"
            f" {place} is in it, which programs may never see, and Landlock cannot leave it out;"
            " or install bubblewrap, which can"
        )


def launcher_config(isolation: Isolation, around: Surroundings) -> dict[str, Any]:
    """Return how the launcher confines a program."""
    uid = user_of(around.cwd) if isolation.other_user else None
    wrapped, floor = isolation.kind == "bubblewrap", isolation.kind == "landlock"
    calls = b""
    if isolation.kind != "none" and seccomp.is_supported():
        truncate = wrapped or landlock_version() >= _COVERS_TRUNCATE
        # A user that owns nothing else can change the attributes of nothing else.
        attributes = wrapped or isolation.other_user
        calls = seccomp.build_filter(floor=floor, truncate=truncate, attributes=attributes)
    groups = control_groups.writable_groups() if isolation.kind != "none" else ()
    return {
        "limits": around.limits.model_dump(
            exclude={"output_bytes", "confinement", "heartbeat_seconds"}
        ),
        "heartbeat": around.limits.heartbeat_seconds,
        "wrapper": _bubblewrap(around) if wrapped else None,
        "seccomp": calls or None,
        "landlock": floor,
        "uid": uid,
        "powerless": isolation.kind != "none" and os.getuid() == 0,
        "read": [*around.readable, *(FOR_LANDLOCK if floor else ())],
        "named": [str(path) for path in around.read if os.path.exists(path)],
        "write": list(around.writable),
        "data": _made_files(around, os.getuid() if uid is None else uid),
        "cgroups": control_groups.groups_for(around.limits, groups),
    }


def _bubblewrap(around: Surroundings) -> list[str]:
    links = system_links()
    size = str(_TEMPORARY_BYTES)
    found = [
        shutil.which("bwrap") or "bwrap", "--die-with-parent", "--unshare-user", "--unshare-pid",
        "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--cap-drop", "ALL", "--hostname", "sandbox",
        "--size", size, "--perms", "1777", "--tmpfs", "/tmp",  # noqa: S108 - its own
        "--proc", "/proc", *_devices(around),
        "--size", size, "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev",  # noqa: S108
    ]  # fmt: skip
    for link, target in links.items():
        found += ["--symlink", target, link]
    for path in around.readable:
        if path not in links:
            found += ["--ro-bind", path, path]
    covered = around.covered
    folders = [place for place in covered if Path(place).is_dir()]
    for place in covered:
        found += ["--tmpfs", place] if place in folders else ["--ro-bind", "/dev/null", place]
    for path in around.readable:
        if is_below(path, set(covered)) and path not in covered:
            found += ["--ro-bind", path, path]
    for path in around.writable:
        found += ["--bind", path, path]
    for place in folders:
        found += ["--remount-ro", place]
    return [*found, "--remount-ro", "/", "--chdir", str(around.cwd)]


def _devices(around: Surroundings) -> list[str]:
    """Return the options for /dev and for further namespaces.

    Ports below 1024 need a capability over the network. Bubblewrap would make a second user
    namespace, in which there is none, for --disable-userns and for the terminals of --dev. So there
    are no terminals then, and only the filter of system calls forbids namespaces.
    """
    ports = (int(each.rpartition(":")[2]) for each in around.limits.confinement.network)
    if around.hosts is None or min(ports) >= _FIRST_FREE_PORT or not seccomp.is_supported():
        return ["--disable-userns", "--dev", "/dev"]
    found = ["--cap-add", "CAP_NET_BIND_SERVICE", "--tmpfs", "/dev"]
    for name in ("null", "zero", "full", "random", "urandom"):
        found += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        found += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
    return [*found, "--symlink", "/proc/self/fd", "/dev/fd"]


def _made_files(around: Surroundings, uid: int) -> dict[str, str]:
    """Return the files that name its user and its hosts."""
    home = around.env.get("HOME", "/")
    hosts = {"localhost": "127.0.0.1", **(around.hosts or {})}
    return {
        "/etc/passwd": f"{PROGRAM_USER}:x:{uid}:{uid}:{PROGRAM_USER}:{home}:/bin/sh\n",
        "/etc/group": f"{PROGRAM_USER}:x:{uid}:\n",
        "/etc/hosts": "".join(f"{address} {name}\n" for name, address in hosts.items()),
    }
