"""A process of its own for an entry that was in too many workers when they ended.

The threads of a worker end together, so the end of one says little about each entry. In a process
that runs nothing else, it is clear which entry is at fault, and no other work ends with it.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from mulligan.tasks.jobs.attempt import run_attempt
from mulligan.tasks.jobs.recheck import run_recheck
from mulligan.tasks.jobs.verify import run_verification
from mulligan.tasks.ports.ledger import Entry
from mulligan.workers.local import die_with_parent
from mulligan.workers.settings.model import load_settings

log = logging.getLogger(__name__)

_STEPS = {"attempt": run_attempt, "verification": run_verification, "cycle": run_recheck}
#: Such processes of one worker at once. Other entries wait until the sweep publishes them again.
_free = threading.BoundedSemaphore(2)


def run_alone(entry: Entry) -> None:
    """Run an entry in a process of its own, which ends with this one, and wait for it."""
    if not _free.acquire(blocking=False):
        return
    try:
        log.warning("%s has lost its workers; it runs in a process of its own.", entry)
        argv = [sys.executable, "-I", str(die_with_parent.__file__)]
        argv += [sys.executable, "-m", __name__, str(entry)]
        ended = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False).returncode
        if ended != 0:
            log.error("The process of %s ended with %d.", entry, ended)
    finally:
        _free.release()


def main() -> None:
    """Run the entry of the command line. SIGTERM gives it back, uncounted."""
    from mulligan.workers.celery.factory import create_app  # it imports this module
    from mulligan.workers.celery.worker_process import WorkerProcess

    settings = load_settings()
    process = WorkerProcess(settings, create_app(settings))

    def give_back(*_: Any) -> None:
        process.release_leases()
        os._exit(0)

    signal.signal(signal.SIGTERM, give_back)
    entry = Entry.parse(sys.argv[1])
    _STEPS[entry.kind](process.services.context, entry)


if __name__ == "__main__":
    main()
