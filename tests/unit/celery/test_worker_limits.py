"""A worker that its computer or its Redis cannot serve says so before it starts."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import pytest

from mulligan.tasks.ports.errors import BadInput, LedgerUnavailable
from mulligan.workers.celery.worker_limits import CONNECTIONS, require_connections


def limit_after(slots: int, *, soft: int, hard: int) -> str:
    """Return what require_files leaves or says in a process with these limits."""
    script = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from mulligan.tasks.ports.errors import BadInput\n"
        "from mulligan.workers.celery.worker_limits import require_files\n"
        "try:\n"
        f"    require_files({slots})\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
        "except BadInput as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_limit_of_open_files_is_raised_as_far_as_needed() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert hard == resource.RLIM_INFINITY or hard >= 2160, "this computer allows too few files"
    assert limit_after(500, soft=1024, hard=2160) == "2160"
    assert limit_after(8, soft=1024, hard=2160) == "1024"


def test_too_few_files_are_an_error_that_names_the_setting() -> None:
    said = limit_after(500, soft=1024, hard=2159)
    assert "500 slots need 2,160 open files, and this process may have 2,159" in said
    assert "LimitNOFILE" in said


class Ledger:
    def __init__(self, **info: int) -> None:
        self._info = info

    def server_info(self) -> dict[str, int]:
        if not self._info:
            raise LedgerUnavailable("away")
        return self._info


@pytest.mark.parametrize(
    ("info", "processes", "refused"),
    [
        ({"maxclients": 10_000, "connected_clients": 500}, 1, False),
        ({"maxclients": 100, "connected_clients": 100 - CONNECTIONS}, 1, False),
        ({"maxclients": 100, "connected_clients": 101 - CONNECTIONS}, 1, True),
        ({"maxclients": 100, "connected_clients": 1}, 40, True),
        ({"connected_clients": 5}, 1, False),  # it does not say
        ({}, 1, False),  # a worker waits for its Redis
    ],
)
def test_connections_are_checked_against_redis(
    info: dict[str, int], processes: int, refused: bool
) -> None:
    ledger: Any = Ledger(**info)
    if not refused:
        require_connections(ledger, processes=processes)
        return
    with pytest.raises(BadInput, match=r"raise maxclients"):
        require_connections(ledger, processes=processes)
