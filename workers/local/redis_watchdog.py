"""Run a server while it has users: `python -I redis_watchdog.py USERS LOCK argv…`. Stdlib only.

Every user holds a shared lock on USERS, which the kernel releases however the user dies. When the
watchdog can take that lock exclusively, no users are left, and it stops the server and itself. If
the watchdog dies, the server dies, too.

The server itself holds LOCK, so that there is never a second one on the same data.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time

#: The exit code if another server holds the lock.
LOCKED = 75
#: Seconds that a server has to stop. Killing it then loses nothing that it has written.
STOP_SECONDS = 10.0


def main() -> None:
    users, lock, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = start(lock, argv)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    with open(users) as file:  # noqa: PTH123 - this script imports as little as possible
        while server.poll() is None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
                continue
            stop(server)
            break
        sys.exit(server.wait())


def start(lock: str, argv: list[str]) -> subprocess.Popen[bytes]:
    """Start the server in a process that has taken the lock. Exits if another server has it."""
    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    wrapper = os.path.join(os.path.dirname(__file__), "die_with_parent.py")  # noqa: PTH118, PTH120 - as above
    try:
        # Between fork and exec: a record lock belongs to a process and survives its exec.
        return subprocess.Popen(
            [sys.executable, "-I", wrapper, *argv],
            stdin=subprocess.DEVNULL,
            pass_fds=[file],
            preexec_fn=lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB),
        )
    except subprocess.SubprocessError:  # what Popen makes of any error of preexec_fn
        sys.exit(LOCKED)
    finally:
        os.close(file)


def stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    main()
