"""Let a process die with its parent, however that died. Stdlib only.

As a program, `python -I die_with_parent.py [--kill] argv…`: run argv, and end it with SIGTERM, or
with SIGKILL after `--kill`, when the process that started it dies. As a function,
`kill_with_parent`: the same for the calling process.

On Linux the kernel does it. It watches the *thread* that started the process: call this only where
that thread lives as long as the process should. Elsewhere the parent is looked for twice a second.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.5


def main() -> None:
    kill = sys.argv[1] == "--kill"
    argv = sys.argv[2:] if kill else sys.argv[1:]
    number = signal.SIGKILL if kill else signal.SIGTERM
    parent = os.getppid()
    if not ask_kernel(number):
        sys.exit(run_watched(argv, parent, number))
    # The parent may have died before the call.
    if os.getppid() != parent:
        sys.exit(0)
    os.execvp(argv[0], argv)  # noqa: S606 - no shell, on purpose


def kill_with_parent(parent: int) -> None:
    """Kill the calling process when ``parent``, which has started it, dies."""
    if not ask_kernel(signal.SIGKILL):
        threading.Thread(target=_kill_without, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def ask_kernel(number: int) -> bool:
    """Ask for a signal when the parent dies; False where the kernel has no such call."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number) == 0)


def run_watched(argv: list[str], parent: int, number: int) -> int:
    """Run argv as a child and pass signals on; end it when the parent is gone.

    If this process is killed with -9, the child lives on: there is nobody left to watch it.
    """
    child = subprocess.Popen(argv)
    for passed_on in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT):
        signal.signal(passed_on, lambda received, _: child.send_signal(received))
    while child.poll() is None:
        if os.getppid() != parent:
            child.send_signal(number)
        time.sleep(_POLL_SECONDS)
    code = child.returncode
    return code if code >= 0 else 128 - code


def _kill_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
