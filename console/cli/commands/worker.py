"""`mulligan worker`: one pool, as `mulligan up` runs it, for other supervisors."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.celery.broker.queues import POOLS, pools
from mulligan.workers.settings.model import load_settings


def worker(
    pool: Annotated[
        str,
        typer.Argument(metavar="POOL", help=f"One of {', '.join(pool.name for pool in POOLS)}."),
    ],
) -> None:
    """Run the workers of one pool until SIGTERM.

    Its size is that of the settings. The process becomes Celery's, which gets all signals.
    """
    argv = worker_command(pool)
    os.execv(argv[0], argv)  # noqa: S606 - its own interpreter, without a shell


def worker_command(name: str) -> list[str]:
    """Return the command of a pool with the configured size."""
    found = {pool.name: pool for pool in pools(load_settings())}
    if name not in found:
        raise BadInput.at("pool", f"use {', '.join(found)}, not {name!r}")
    return found[name].argv()
