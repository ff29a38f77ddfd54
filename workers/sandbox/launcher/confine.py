"""Give up what a program under test must not have, one way at a time, before it is started."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys

_libc = ctypes.CDLL(None, use_errno=True)

# From linux/prctl.h, linux/sched.h, sys/mount.h, linux/landlock.h and linux/capability.h.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_PR_SET_SECCOMP, _FILTER = 22, 2
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWNS = 0x20000
_CLONE3, _CLONE_INTO_CGROUP, _SIGCHLD = 435, 1 << 33, 17
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ABI_OF_NETWORK, _ABI_OF_SCOPES = 4, 6
_PATH_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIRECTORY = 1 << 0, 1 << 2, 1 << 3
#: The rights that a file can have; the others are those of directories.
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
#: How many rights the versions of Landlock know, from the first on.
_RIGHTS = (13, 14, 15, 15, 16)
_BIND_AND_CONNECT_TCP, _ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = 64


class suppress:
    """Ignore these exceptions, as contextlib.suppress does."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._kinds)


def prctl(option: int, *values: int) -> None:
    """Call prctl; raise OSError if it fails."""
    _check(_libc.prctl(option, *(ctypes.c_ulong(each) for each in (*values, 0, 0, 0, 0)[:4])))


def clone_into(group: str) -> int:
    """Fork a process into a control group of the second version, as os.fork does otherwise.

    The child must not do much but to become another program: Python does not know of it.
    """
    folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        arguments = struct.pack("11Q", _CLONE_INTO_CGROUP, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, folder)
        return _check(_libc.syscall(_CLONE3, arguments, ctypes.c_size_t(len(arguments))))
    finally:
        os.close(folder)


def forbid_new_rights() -> None:
    """Let no program that is started from now on gain rights, such as by a set-user-ID file."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def change_user(uid: int, paths: list[str]) -> None:
    """Become another user, for whom these paths are made reachable. Only root can."""
    _reveal(paths, uid)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def require_readable(paths: list[str]) -> None:
    """Raise OSError if this process may not read one of the paths."""
    for path in paths:
        if os.path.isdir(path):
            readable = os.access(path, os.R_OK | os.X_OK)
        else:  # a program need not be readable
            readable = os.access(path, os.R_OK) or os.access(path, os.X_OK)
        if not readable:
            raise OSError(_only_root(path))


def _only_root(path: str) -> str:
    return (
        f"{path} can be read by root only, and programs run as another user; make it readable for"
        " everyone, or run the worker as the user that owns it"
    )


def give(uid: int, directories: list[str]) -> None:
    """Make the user the owner of the directories and all that is in them."""
    for top in directories:
        os.chown(top, uid, uid)
        for folder, folders, files in os.walk(top):
            for name in (*folders, *files):
                os.chown(os.path.join(folder, name), uid, uid, follow_symlinks=False)


def _reveal(paths: list[str], uid: int) -> None:
    """Make paths reachable that are in a directory of root's own, such as its home.

    In a mount namespace of this process, that directory is replaced by an empty one in which only
    these paths are.
    """
    hidden: dict[str, list[str]] = {}
    for path in dict.fromkeys((*paths, *map(os.path.realpath, paths))):
        above = _unreachable(path, uid)
        if above is not None:
            hidden.setdefault(above, []).append(path)
    if not hidden:
        return
    try:
        _check(_libc.unshare(_CLONE_NEWNS))
    except PermissionError:  # in most containers
        raise OSError(_only_root(next(iter(hidden.values()))[0])) from None
    _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    for above, wanted in hidden.items():
        opened = [(path, os.open(path, os.O_PATH)) for path in wanted]
        _mount("tmpfs", above, kind="tmpfs", data="mode=0755,size=64k")
        for path, descriptor in opened:
            _mount_point(path, is_folder=stat.S_ISDIR(os.fstat(descriptor).st_mode))
            _mount(f"/proc/self/fd/{descriptor}", path, flags=_MS_BIND | _MS_REC)
            os.close(descriptor)


def _unreachable(path: str, uid: int) -> str | None:
    """Return the first directory above the path that the user cannot pass, or None."""
    parts = path.split("/")[1:-1]
    for depth in range(1, len(parts) + 1):
        folder = "/" + "/".join(parts[:depth])
        found = os.stat(folder)
        allowed = stat.S_IXUSR if found.st_uid == uid else stat.S_IXOTH
        if not found.st_mode & allowed:
            return folder
    return None


def _mount_point(path: str, *, is_folder: bool) -> None:
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


def _mount(source: str, target: str, *, kind: str = "none", flags: int = 0, data: str = "") -> None:
    _check(
        _libc.mount(
            os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags),
            data.encode() or None,
        )
    )  # fmt: skip


def drop_capabilities() -> None:
    """Give up all of root's powers over what does not belong to it."""
    for capability in range(_CAPABILITIES):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    _check(_libc.capset(header, struct.pack("6I", 0, 0, 0, 0, 0, 0)))


def landlock_version() -> int:
    """Return the version of Landlock that the kernel has; 0 if none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def landlock(read: list[str], write: list[str]) -> None:
    """Let this process and its children reach only these files, and no network.

    They also cannot signal or trace the other processes, if the kernel's version covers that.
    """
    version = landlock_version()
    if version == 0:
        raise OSError("the kernel has no Landlock")
    rights = (1 << _RIGHTS[min(version, len(_RIGHTS)) - 1]) - 1
    attributes = struct.pack("QQQ", rights, _BIND_AND_CONNECT_TCP, _ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 24 if version >= _ABI_OF_SCOPES else 16 if version >= _ABI_OF_NETWORK else 8
    rules = _check(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0))
    reading = _EXECUTE | _READ_FILE | _READ_DIRECTORY
    for paths, allowed in ((read, reading), (write, rights)):
        for path in paths:
            _allow(rules, path, allowed & rights)
    for device in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"):
        _allow(rules, device, rights)
    forbid_new_rights()
    _check(_libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_FILES
    rule = struct.pack("=Qi", rights, descriptor)
    _check(_libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, rule, 0))
    os.close(descriptor)


def filter_calls(code: bytes) -> None:
    """Install a filter of system calls."""
    instructions = ctypes.create_string_buffer(code, len(code))
    what = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    forbid_new_rights()
    _check(_libc.prctl(_PR_SET_SECCOMP, _FILTER, what, 0, 0))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
