"""The process that serves the bundled model: ``python -m mulligan.workers.runners.local_server``.

Only ``ensure_local_server`` starts it; ``local_state`` describes when it exits.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from mulligan.workers.runners.local_state import (
    ServerState,
    forget_state,
    locked,
    model_path,
    read_state,
)

MODEL = "smollm2-135m-instruct"
#: One answer at a time. For two callers, two slots made 67 tokens/s and one made 66 (2 cores, one
#: run each), but two answers in one batch change the rounding, so a seed no longer repeats.
SLOTS = 1
#: Tokens of prompt and answer together: the most that the model was trained for.
CONTEXT = 8192
_POLL_SECONDS = 0.5
_REQUESTS = re.compile(r"^llamacpp:(requests_processing|requests_deferred) (\d+)", re.M)
_DECODED = re.compile(r"^llamacpp:n_decode_total (\d+)", re.M)


def main() -> None:
    parser = argparse.ArgumentParser(prog="mulligan.workers.runners.local_server")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--idle-exit", type=float, required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    arguments = parser.parse_args()
    server = serve(model_path())
    with os.fdopen(arguments.ready_fd, "w") as ready:
        ready.write(json.dumps(f"{server.listening_address}/v1") + "\n")
    watch(server, arguments.directory, arguments.idle_exit)
    # The C++ threads have nothing to save, and stopping them in order can take seconds.
    os._exit(0)


def serve(model: Path) -> Any:
    """Start a server on a free loopback port."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {MODEL}
    params.n_parallel = SLOTS
    params.n_ctx = CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads()
    # Starting from a cached prefix changes the rounding too, and the cache may grow to 8 GB.
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.endpoint_metrics = True
    params.ui = False
    params.verbosity = 1
    return xllamacpp.Server(params)


def threads() -> int:
    """Return the number of processors less one, at most 4.

    The server's threads spin while they wait for each other. With 2 threads on 2 processors, two
    busy loops beside it turned 98 tokens/s into 12; with 1 thread, 64 into 39 (one run each).
    """
    return max(1, min(4, len(os.sched_getaffinity(0)) - 1))


def watch(server: Any, directory: Path, idle_exit: float) -> None:
    """Return when the server is no longer needed, and remove its state file."""
    decoded, active_at = "", time.monotonic()
    while True:
        time.sleep(_POLL_SECONDS)
        metrics = str(server.handle_metrics())
        if (latest := _decoded(metrics)) != decoded or _busy(metrics):
            decoded, active_at = latest, time.monotonic()
        idle = time.monotonic() - active_at >= idle_exit
        # While another process holds the lock to start, find or stop a server, decide nothing.
        with locked(directory, wait=False) as acquired:
            state = read_state(directory) if acquired else None
            if acquired and not needed(state, os.getpid(), idle=idle):
                if state is not None and state.server.pid == os.getpid():
                    forget_state(directory)
                return


def needed(state: ServerState | None, pid: int, *, idle: bool) -> bool:
    """Whether the state names this server, and an owner, or a user of a busy server, is alive."""
    if state is None or state.server.pid != pid:
        return False
    if any(owner.alive for owner in state.owners):
        return True
    return not idle and any(user.alive for user in state.users)


def _busy(metrics: str) -> bool:
    return any(int(count) for _, count in _REQUESTS.findall(metrics))


def _decoded(metrics: str) -> str:
    found = _DECODED.search(metrics)
    return found.group(1) if found else ""


if __name__ == "__main__":
    main()
