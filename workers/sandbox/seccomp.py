"""The system calls that code under test may not make, as a program for the kernel's filter.

In namespaces of its own, a program reaches nobody else by sockets or signals. Without them (the
floor), it gets no socket at all, and no call that changes other processes or the attributes of
files, which Landlock does not cover.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache

_LOAD, _EQUAL, _GREATER, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
#: Architecture → its number for the kernel, and which column of the tables is its own.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
#: Calls of the x32 variant of x86_64 have this bit.
_X32 = 0x40000000
#: Newer calls are unknown to this table: programs use the older ones instead.
_NEWEST = 469

#: What nobody needs who is tested: other roots, namespaces, kernels, processes and clocks.
_NEVER = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "setns": (308, 268),
    "unshare": (272, 97), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "syslog": (103, 116), "sethostname": (170, 161), "setdomainname": (171, 162),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "vhangup": (153, 58), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None),
}  # fmt: skip
#: Shared memory, semaphores, queues and priorities of the user's other programs.
_SHARED = {
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip
#: Landlock does not confine watching a path: names and times of others' files would be told.
_WATCHING = {
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
}  # fmt: skip
#: Landlock cannot confine these to a directory, nor to files that may be written. They succeed
#: and do nothing: tools that copy files call them, and would fail otherwise.
_IGNORED = {
    "chmod": (90, None), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "fchmod": (91, 52), "fchown": (93, 55),
}  # fmt: skip
_ATTRIBUTES = {
    "setxattr": (188, 5), "lsetxattr": (189, 6), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "setxattrat": (463, 463), "removexattrat": (466, 466),
    "file_setattr": (469, 469), "fsetxattr": (190, 7), "fremovexattr": (199, 16),
}  # fmt: skip
#: Calls about a process, and which argument names it: only the caller itself (0) is allowed.
_ABOUT_A_PROCESS = {
    "prlimit64": ((302, 261), 0), "sched_setaffinity": ((203, 122), 0),
    "sched_setscheduler": ((144, 119), 0), "sched_setparam": ((142, 118), 0),
    "sched_setattr": ((314, 274), 0), "migrate_pages": ((256, 238), 0),
    "move_pages": ((279, 239), 0),
}  # fmt: skip
_CLONE, _CLONE3, _IOCTL, _FCNTL = (56, 220), (435, 435), (16, 29), (72, 25)
_SOCKET, _SOCKETPAIR, _SETSOCKOPT = (41, 198), (53, 199), (54, 208)
_TRUNCATE = (76, 45)
_NAMESPACES = 0x7E020000
#: A thread, and that it has the files of its process.
_THREAD, _SAME_FILES = 0x10000, 0x400
#: Typing into a terminal (TIOCSTI, TIOCLINUX).
_TYPING = (0x5412, 0x541C)
#: Setting the flags of a file (FS_IOC_SETFLAGS and its 32-bit variant, FS_IOC_FSSETXATTR).
_FLAGS = (0x40086602, 0x40046602, 0x401C5820)
#: A lease holds up everyone else who opens the file (F_SETLEASE).
_LEASE = (1024,)
_UNIX, _INET, _INET6 = 1, 2, 10
_STREAM, _SEQUENCED = 1, 5
#: SOL_SOCKET, and SO_SNDBUF and SO_RCVBUF of it.
_OF_SOCKETS, _BUFFERS = 1, (7, 8)

Instruction = tuple[int, int, int, int]


def is_supported() -> bool:
    """Whether the tables have this machine's architecture."""
    return platform.machine() in _ARCHITECTURES


@lru_cache(maxsize=4)
def build_filter(*, floor: bool, truncate: bool = True, attributes: bool = False) -> bytes:
    """Return the filter. ``floor``: without namespaces.

    There, ``truncate`` says whether a file may be shortened by its path, and ``attributes`` whether
    the mode, owner and times of a file may be changed.
    """
    audit, column = _ARCHITECTURES[platform.machine()]
    blocks = list(_blocks(column, floor=floor, truncate=truncate, attributes=attributes))
    start: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, audit),
        _returns(_KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        _returns(_ERRNO | errno.ENOSYS),
        (_GREATER, 0, 1, _NEWEST),
        _returns(_ERRNO | errno.ENOSYS),
    ]
    program = [*start, *(each for block in blocks for each in block), _returns(_ALLOW)]
    return b"".join(struct.pack("HBBI", *each) for each in program)


def _blocks(
    column: int, *, floor: bool, truncate: bool, attributes: bool
) -> Iterator[list[Instruction]]:
    def call(numbers: Sequence[int | None], *body: Instruction) -> Iterator[list[Instruction]]:
        if (number := numbers[column]) is not None:
            yield [(_EQUAL, 0, len(body), number), *body]

    denied = _returns(_ERRNO | errno.EPERM)
    for numbers in _NEVER.values():
        yield from call(numbers, denied)
    yield from call(_CLONE3, _returns(_ERRNO | errno.ENOSYS))
    yield from call(_CLONE, *_no_namespaces_and_hidden_files())
    yield from call(_FCNTL, *_unless(1, _LEASE))
    # The launcher counts each socket with the buffer that it has from the start.
    yield from call(_SETSOCKOPT, *_ignore_option(_OF_SOCKETS, _BUFFERS))
    owned = floor and not attributes
    yield from call(_IOCTL, *_unless(1, (*_TYPING, *_FLAGS) if owned else _TYPING))
    if not floor:
        yield from call(_SOCKET, *_only(0, (_UNIX, _INET, _INET6), errno.EAFNOSUPPORT))
        return
    yield from call(_SOCKET, _returns(_ERRNO | errno.EACCES))
    # A pair of datagram sockets could be connected to a path.
    kinds = [
        kind | flags for kind in (_STREAM, _SEQUENCED) for flags in (0, 0x800, 0x80000, 0x80800)
    ]
    yield from call(_SOCKETPAIR, *_only(1, kinds, errno.EACCES))
    for numbers in (*_SHARED.values(), *_WATCHING.values()):
        yield from call(numbers, denied)
    for numbers, argument in _ABOUT_A_PROCESS.values():
        yield from call(numbers, *_only(argument, (0,), errno.EPERM))
    if not truncate:
        yield from call(_TRUNCATE, denied)
    if not owned:
        return
    for numbers in _IGNORED.values():
        yield from call(numbers, _returns(_ERRNO))
    for numbers in _ATTRIBUTES.values():
        yield from call(numbers, _returns(_ERRNO | errno.EOPNOTSUPP))


def _returns(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)


def _only(argument: int, values: Sequence[int], error: int) -> list[Instruction]:
    """Allow the values of an argument."""
    body: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument)]
    for index, value in enumerate(values):
        body.append((_EQUAL, len(values) - index, 0, value))
    return [*body, _returns(_ERRNO | error), _returns(_ALLOW)]


def _unless(argument: int, values: Sequence[int]) -> list[Instruction]:
    """Refuse the values of an argument."""
    body: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument)]
    for index, value in enumerate(values):
        body.append((_EQUAL, len(values) - index, 0, value))
    return [*body, _returns(_ALLOW), _returns(_ERRNO | errno.EPERM)]


def _ignore_option(level: int, options: Sequence[int]) -> list[Instruction]:
    """Let the options of a socket be set without an effect."""
    body: list[Instruction] = [
        (_LOAD, 0, 0, _ARGUMENTS + 8),
        (_EQUAL, 0, len(options) + 1, level),
        (_LOAD, 0, 0, _ARGUMENTS + 16),
    ]
    for index, option in enumerate(options):
        body.append((_EQUAL, len(options) - index, 0, option))
    return [*body, _returns(_ALLOW), _returns(_ERRNO)]


def _no_namespaces_and_hidden_files() -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _ARGUMENTS),
        (_ANY_BIT, 2, 0, _NAMESPACES),
        (_ANY_BIT, 0, 2, _THREAD),
        (_ANY_BIT, 1, 0, _SAME_FILES),
        _returns(_ERRNO | errno.EPERM),
        _returns(_ALLOW),
    ]
