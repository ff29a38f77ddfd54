"""How programs under test are confined on this computer.

Bubblewrap gives it namespaces of its own, in which nothing exists but what it needs. Where
namespaces are blocked, as in most containers, or bubblewrap is missing, Landlock and a filter of
system calls confine it (the floor). Nothing is run unconfined unless the operator says so
(``unsafe_sandbox``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox import control_groups, seccomp
from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.launcher.confine import landlock_version

#: Older ones cannot limit the size of their file systems or forbid further namespaces.
_OLDEST_BUBBLEWRAP = (0, 8)
#: The version of Landlock that covers signals.
_COVERS_SIGNALS = 6

Kind = Literal["bubblewrap", "landlock", "none"]


class NotConfined(VerifierError):
    """A program was not started because it could not be confined."""


@dataclass(frozen=True)
class Isolation:
    """How programs are confined on this computer, and why not better."""

    kind: Kind
    #: As root: whether programs run as another user.
    other_user: bool = False
    #: What does not work here, and why: bubblewrap → not installed.
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[str, ...]:
        """What is in force, for records and people."""
        if self.kind == "none":
            return ("no_new_privs", "rlimits")
        named = "bubblewrap" if self.kind == "bubblewrap" else f"landlock {landlock_version()}"
        optional = {
            "seccomp": seccomp.is_supported(),
            "user": self.other_user,
            "cgroup": bool(control_groups.writable_groups()),
        }
        found = (name for name, present in optional.items() if present)
        return (named, *found, "no_new_privs", "rlimits")

    @property
    def gaps(self) -> tuple[str, ...]:
        """What a confined program can still do to its surroundings, if anything."""
        if self.kind != "landlock" or self.other_user or landlock_version() >= _COVERS_SIGNALS:
            return ()
        return ("it can send signals to other processes of this user (Linux 6.12 prevents it)",)


_found: dict[str, Isolation] = {}
_finding = threading.Lock()


def find_isolation(confinement: Confinement, works: Callable[[Isolation], str]) -> Isolation:
    """Return the best isolation that works here; each process tries until one works.

    ``works`` tries one and returns what is wrong. Raise NotConfined if none works, unless the
    operator allows that.
    """
    with _finding:
        found = _found.get(confinement.kind) or _best(confinement.kind, works)
        if found.kind == "none" and confinement.unsafe and confinement.kind != "auto":
            # What the operator allows is a program without any confinement, where there is none.
            found = _found.get("auto") or _best("auto", works)
        # A moment without memory or processes must not last as long as this process.
        elif found.kind != "none":
            _found[confinement.kind] = found
    if found.kind == "none" and not confinement.unsafe:
        reasons = "; ".join(f"{name}: {why}" for name, why in found.missing.items())
        auto = "" if confinement.kind == "auto" else 'set sandbox = "auto", or '
        raise NotConfined(
            f"{auto}install bubblewrap, or use Linux 5.13 or later with Landlock: programs cannot"
            f" be confined here, so none is run ({reasons}). If every answer may do what this user"
            " may do, set unsafe_sandbox = true in mulligan.toml"
        )
    return found


def _best(kind: str, works: Callable[[Isolation], str]) -> Isolation:
    missing: dict[str, str] = {}
    wanted: dict[Kind, Callable[[], str]] = {
        "bubblewrap": _why_no_bubblewrap,
        "landlock": _why_no_landlock,
    }
    for name, why_not in wanted.items():
        if kind not in ("auto", name):
            continue
        missing[name] = why_not()
        if missing[name]:
            continue
        for other_user in _other_user(name):
            tried = Isolation(name, other_user)
            problem = works(tried)
            if not problem:
                del missing[name]
                return replace(tried, missing=missing)
            missing[name] = missing[name] or problem
    return Isolation("none", missing=missing)


def _other_user(kind: Kind) -> tuple[bool, ...]:
    """Return whether to run programs as another user, which only root can, the best way first.

    Bubblewrap shows a /proc with files that belong to root, so that root needs no powers to change
    the kernel's settings there.
    """
    if os.getuid() != 0:
        return (False,)
    return (True,) if kind == "bubblewrap" else (True, False)


def _why_no_bubblewrap() -> str:
    program = shutil.which("bwrap")
    if sys.platform != "linux" or program is None:
        return "not installed"
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    version = re.search(r"(\d+)\.(\d+)", done.stdout)
    if version is None or tuple(map(int, version.groups())) < _OLDEST_BUBBLEWRAP:
        return f"{done.stdout.strip() or 'unknown version'} is too old; 0.8 is needed"
    return ""


def _why_no_landlock() -> str:
    if landlock_version() == 0:
        return "not in this kernel"
    return "" if seccomp.is_supported() else "no filter of system calls for this processor"
