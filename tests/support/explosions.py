"""Functions that a killable child is asked to run: most of them end badly."""

from __future__ import annotations

import os
import subprocess
from typing import Any, NoReturn

from mulligan.policies.failures.failure import Finding
from mulligan.tasks.ports.errors import BadInput


def add(one: int, other: int) -> int:
    return one + other


def process_id() -> int:
    return os.getpid()


def environment() -> dict[str, str]:
    return dict(os.environ)


def run_for_ever() -> NoReturn:
    while True:
        pass


def fill_memory() -> NoReturn:
    kept = []
    while True:
        kept.append(bytearray(16 << 20))


def end_by(number: int) -> None:
    os.kill(os.getpid(), number)


def exit_with(code: int) -> NoReturn:
    os._exit(code)


def recurse() -> None:
    recurse()


def refuse_input() -> NoReturn:
    raise BadInput.at("schema.type", "is unknown")


def fail() -> NoReturn:
    raise KeyError("name")


def a_finding() -> Finding:
    return Finding(message="wrong", path="$.a")


def a_program() -> Any:
    return subprocess.Popen
