"""The program of a killable child: ``python -I child.py``, with a socket as its standard input.

The first frame names the parent and its ``sys.path``. Every further frame is a call, answered by
one frame when it begins, so that imports do not count, and by one with its result. A frame is its
length in 8 bytes and a pickle; the parent reads the answers with ``value_pickle``. Stdlib only,
apart from what the calls import.
"""

from __future__ import annotations

import ctypes
import io
import math
import os
import pickle
import resource
import socket
import struct
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_PR_SET_NO_NEW_PRIVS = 38
#: Parsers that recurse in C need a deeper stack than the usual 8 MB. An unlimited one would let
#: endless recursion fill the memory before it ends.
_STACK_BYTES = 64 << 20
#: A child that still uses more memory than this after a call is replaced.
_KEPT_BYTES = 512 << 20
#: Seconds of processor time above the time limit: a parent that is stopped cannot kill anybody.
_SPARE_SECONDS = 2
_MESSAGE_CHARACTERS = 500


def main() -> None:
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    # Nobody reads what is written here before this process has ended.
    os.set_blocking(2, False)
    stream = connection.makefile("rwb")
    first = _read(stream)
    sys.path[:] = first["path"]
    _confine(first["parent"])
    while (request := _read(stream)) is not None:
        _write(stream, _answer(stream, request))


def _confine(parent: int) -> None:
    from mulligan.workers.local.die_with_parent import kill_with_parent

    kill_with_parent(parent)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _soft_limit(resource.RLIMIT_STACK, _STACK_BYTES)


def _soft_limit(kind: int, value: int) -> None:
    """Set the soft limit, which the next call can change again."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, hard))


def _answer(stream: io.BufferedRWPair, request: dict[str, Any]) -> bytes:
    """Run a call and return the frame of its result."""
    try:
        function = _find(request["module"], request["name"])
        arguments = pickle.loads(request["arguments"])  # noqa: S301 - the parent wrote it
        _write(stream, _frame("begun", None))
        _soft_limit(resource.RLIMIT_CPU, _cpu_limit(request["seconds"]))
        _soft_limit(resource.RLIMIT_AS, _mapped_bytes() + request["memory_bytes"])
        return _frame("result", function(*arguments))
    except MemoryError:
        _soft_limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        return _frame("memory", None)
    except RecursionError:
        return _frame("depth", None)
    except Exception as error:  # the caller gets it, whatever it is
        return _error_frame(error)
    finally:
        _soft_limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)


def _find(module: str, name: str) -> Callable[..., Any]:
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _cpu_limit(seconds: float) -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return math.ceil(used.ru_utime + used.ru_stime + seconds) + _SPARE_SECONDS


def _mapped_bytes() -> int:
    """Return the address space in use, so that a limit is about the call alone."""
    return _statm(0, 1 << 30)


def _resident_bytes() -> int:
    """Return the memory in use. ``ru_maxrss`` is not: it begins with that of the parent."""
    return _statm(1, 0)


def _statm(field: int, otherwise: int) -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[field])
    except OSError:  # not Linux
        return otherwise
    return pages * resource.getpagesize()


def _error_frame(error: Exception) -> bytes:
    """Return our own errors as they are, and the others by name and message."""
    if type(error).__module__.startswith("mulligan."):
        try:
            return _frame("error", error)
        except Exception:  # an error that cannot be sent is described, too
            error.__traceback__ = None
    text = f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
    return _frame("other_error", text[:_MESSAGE_CHARACTERS])


def _frame(kind: str, value: Any) -> bytes:
    return pickle.dumps((kind, value, _resident_bytes() < _KEPT_BYTES), protocol=5)


def _read(stream: io.BufferedRWPair) -> Any:
    header = stream.read(8)
    if len(header) < 8:
        return None
    return pickle.loads(stream.read(struct.unpack(">Q", header)[0]))  # noqa: S301 - see above


def _write(stream: io.BufferedRWPair, body: bytes) -> None:
    stream.write(struct.pack(">Q", len(body)))
    stream.write(body)
    stream.flush()


if __name__ == "__main__":
    main()
