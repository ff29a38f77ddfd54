"""What the commands of `mulligan loops` share: arguments, the backend, who changes a loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from mulligan.console.cli.backend import open_ledger_backend
from mulligan.console.cli.end_escalations import who
from mulligan.policies.problem import Problem
from mulligan.tasks.loops.context import LoopContext
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.ledger import Requester

Name = Annotated[str, typer.Argument(metavar="LOOP", help="Name of the loop.")]
Item = Annotated[str, typer.Argument(metavar="ITEM", help="Id of the item.")]
Path = Annotated[str, typer.Argument(metavar="PATH", help="loop.yaml, or its folder; - is stdin.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="A parameter of a template."),
]


@contextmanager
def open_loops() -> Iterator[LoopContext]:
    """Open the existing ledger, or raise NoBroker."""
    with open_ledger_backend() as backend:
        yield backend.services.loops


def requester(by: str | None) -> Requester:
    return Requester(by=by or who())


def read_pairs(pairs: Sequence[str] | None, option: str) -> dict[str, str]:
    """Read ``NAME=VALUE`` of an option that may be given several times."""
    found: dict[str, str] = {}
    problems = []
    for pair in pairs or ():
        name, separator, value = pair.partition("=")
        if separator and name:
            found[name] = value
        else:
            problems.append(Problem(f"{option} {pair!r}: use NAME=VALUE"))
    if problems:
        raise BadInput(*problems)
    return found


def budget_values(pairs: Sequence[str] | None) -> dict[str, Any]:
    """Read ``SCOPE.RESOURCE=LIMIT``; ``none`` removes a limit."""
    budget: dict[str, Any] = {}
    for name, value in read_pairs(pairs, "--budget").items():
        scope, separator, resource = name.partition(".")
        if not separator:
            raise BadInput(f"--budget {name}={value}: use SCOPE.RESOURCE=LIMIT, loop.tokens=5M")
        limit = None if value == "none" else value
        budget.setdefault(scope, {})[resource] = limit
    return budget
