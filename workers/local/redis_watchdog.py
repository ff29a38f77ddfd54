"""Keep a server alive while anybody uses it: `python -I keeper.py LOCK argv…`. Stdlib only.

Every user holds a shared lock on LOCK. The kernel drops a user's lock however it dies; when the
keeper can take the lock for itself, nobody is left, and it stops the server and itself. However
the keeper dies, the server goes with it.
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
    leash = os.path.join(os.path.dirname(__file__), "die_with_parent.py")  # noqa: PTH118, PTH120 - as below
    server = subprocess.Popen([sys.executable, "-I", leash, *argv], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    with open(lock) as file:  # noqa: PTH123 - this script imports nothing it can do without
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
