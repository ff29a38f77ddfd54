"""Set resource limits, then become the program: ``python -I -S launcher.py LIMITS -- ARGV…``.

It is a separate program because ``preexec_fn`` is unsafe in a process with threads; it uses only
the standard library. LIMITS is a JSON object: ``cpu_seconds``, ``memory_bytes``, ``file_bytes``,
``processes`` (each a number or null), ``error_fd`` (where a failed exec is reported) and
``parent`` (the pid that started us: when it dies, so do we).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys

_LIMITS = {
    "cpu_seconds": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_AS,
    "file_bytes": resource.RLIMIT_FSIZE,
    "processes": resource.RLIMIT_NPROC,
}
_PR_SET_PDEATHSIG = 1


def _limit(kind: int, value: int) -> None:
    """Lower the soft and the hard limit; a hard limit that is already lower stays."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when the parent dies, even from SIGKILL."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def main() -> None:
    config = json.loads(sys.argv[1])
    argv = sys.argv[3:]
    os.set_inheritable(config["error_fd"], False)
    _die_with(config["parent"])
    # Python ignores these signals, and exec would pass that on to the program.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for name, kind in _LIMITS.items():
            if config.get(name) is not None:
                _limit(kind, config[name])
        os.execvp(argv[0], argv)  # noqa: S606 - becoming the given program is the purpose
    except (OSError, ValueError) as error:
        os.write(config["error_fd"], str(error).encode()[:500])
        sys.exit(126)


if __name__ == "__main__":
    main()
