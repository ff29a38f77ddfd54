"""The files that a program under test sees: an allow-list, never the whole computer.

There is no home directory and no directory of sockets in it. What else its tools need is named by
the operator in ``sandbox_read``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Set
from functools import lru_cache
from pathlib import Path

import mulligan

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
#: What dynamic linking, certificates, time zones and name look-ups need.
_CONFIGURATION = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
    "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted", "/etc/localtime", "/etc/timezone", "/etc/mime.types",
    "/etc/nsswitch.conf", "/etc/protocols", "/etc/services",
)  # fmt: skip
#: Under Landlock, a file that exists and may not be read is an error for the programs that look for
#: it. Bubblewrap makes its own, or shows none.
FOR_LANDLOCK = (
    "/etc/passwd", "/etc/group", "/etc/hosts", "/etc/host.conf", "/etc/gitconfig",
    "/etc/debian_version", "/etc/os-release", "/etc/lsb-release",
)  # fmt: skip


@lru_cache(maxsize=1)
def system_files() -> Mapping[str, str]:
    """Return the system's programs and libraries, and this Python with its packages.

    Among those is this one, which may be installed elsewhere: it is a plug-in of pytest. Each path
    comes with where its links lead.
    """
    python = (sys.prefix, sys.base_prefix, sys.exec_prefix, *_links(sys.executable))
    own = Path(mulligan.__file__).parent
    layers = (os.path.realpath(own / name) for name in ("policies", "tasks", "workers", "console"))
    wanted = (*_SYSTEM, *_CONFIGURATION, *python, str(own), *layers)
    found: dict[str, str] = {}
    for path in wanted:
        if os.path.exists(path) and not is_below(path, found.keys()):
            found[path] = os.path.realpath(path)
    return found


def home_directory() -> Path:
    """Return the home of this process's user, or a path that does not exist if it has none."""
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises for such a user


def system_links() -> Mapping[str, str]:
    """Return those of the system's directories that are links, such as /bin → usr/bin."""
    return {path: str(Path(path).readlink()) for path in _SYSTEM if Path(path).is_symlink()}


def hidden_links(path: Path, places: Set[str]) -> list[str]:
    """Return the path and those that its links lead to, except what is in the places."""
    return [each for each in _links(str(path)) if not is_below(each, places)]


def is_below(path: str, places: Set[str]) -> bool:
    """Return whether the path is one of the places, or in one."""
    while path not in places:
        above = os.path.dirname(path)  # noqa: PTH120 - called often
        if above == path:
            return False
        path = above
    return True


def _links(path: str) -> Iterator[str]:
    """Yield a path, and every path that its links lead to."""
    for _ in range(40):
        yield path
        if not os.path.islink(path):
            return
        path = os.path.join(os.path.dirname(path), Path(path).readlink())  # noqa: PTH118, PTH120 - keeps ..
        path = os.path.normpath(path)
