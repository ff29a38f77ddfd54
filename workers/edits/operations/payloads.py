"""Payloads of edits: read as an operation's model, with every mistake told at once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeVar

from pydantic import ValidationError

from mulligan.policies.edits.edit import Edit
from mulligan.policies.problem import Problem
from mulligan.policies.value import Value
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.ports.appliers import ApplyContext, EditRefused, Validation
from mulligan.workers.edits.tree import confined_paths as confine

_Payload = TypeVar("_Payload", bound=Value)


def payload_of(model: type[_Payload], edit: Edit) -> _Payload:
    """An edit's payload as an operation takes it. Raises EditRefused with every problem."""
    try:
        return model.model_validate(edit.payload)
    except ValidationError as error:
        found = problems_of(error, model, list_known=True)
        raise EditRefused(*(problem.below("payload") for problem in found)) from None


def validated(model: type[Value], edit: Edit, ctx: ApplyContext, *problems: Problem) -> Validation:
    """Whether the payload has the right form and size; ``problems`` are what was found besides."""
    found: list[Problem] = list(problems)
    try:
        payload_of(model, edit)
    except EditRefused as error:
        found += error.problems
    found += _unwritable(edit, ctx)
    return Validation(ok=not found, reason="\n".join(map(str, found)))


def _unwritable(edit: Edit, ctx: ApplyContext) -> Iterable[Problem]:
    for name, value in edit.payload.items():
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
            text.encode("utf-8")
            confine.refuse_large(f"payload.{name}", len(text), ctx.max_bytes)
        except EditRefused as error:
            yield from error.problems
        except (TypeError, ValueError, RecursionError):
            message = "holds what no file can (not JSON, not finite, not Unicode)"
            yield Problem(message, ("payload", name))
