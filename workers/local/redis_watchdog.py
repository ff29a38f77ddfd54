"""Run a server while it has users: `python -I redis_watchdog.py LOCK argv…`. Stdlib only.

Every user holds a shared lock on LOCK, which the kernel releases however the user dies. When the
watchdog can take the lock exclusively, no users are left, and it stops the server and itself. If
the watchdog dies, the server dies, too.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time


def main() -> None:
    lock, argv = sys.argv[1], sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wrapper = os.path.join(os.path.dirname(__file__), "die_with_parent.py")  # noqa: PTH118, PTH120 - as below
    server = subprocess.Popen([sys.executable, "-I", wrapper, *argv], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    with open(lock) as file:  # noqa: PTH123 - this script imports as little as possible
        while server.poll() is None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
                continue
            server.terminate()
            break
        sys.exit(server.wait())


if __name__ == "__main__":
    main()
