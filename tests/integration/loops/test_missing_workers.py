"""A loop that nobody plans or works on says which workers are missing; starting them helps."""

from __future__ import annotations

import shlex
from functools import partial

from support.cli_process import Shell, new_shell
from support.loops import document, item
from support.waiting import wait_for


def test_the_suggested_workers_run_the_loop(redis_url: str) -> None:
    """Given a loop and no workers, when each suggested worker is started, then the loop ends."""
    environment = {"MULLIGAN_BROKER_URL": redis_url, "MULLIGAN_ALLOW_INLINE": "true"}
    with new_shell(**environment) as shell:
        made = document(item("one"))
        shell.write("loop.json", made.model_dump(mode="json", exclude_defaults=True))
        shell.invoke("loops", "create", "loop.json", "--start")
        for command in ("mulligan worker control", "mulligan worker agent"):
            wait_for(partial(suggests, shell, command), command, seconds=60)
            shell.start(*shlex.split(command)[1:])
        wait_for(lambda: why(shell)["cause"] == "done", "the end of the loop", seconds=60)


def why(shell: Shell) -> dict[str, str]:
    found: dict[str, str] = shell.invoke_json("loops", "why", "alpha")
    return found


def suggests(shell: Shell, command: str) -> bool:
    return why(shell)["command"] == command
