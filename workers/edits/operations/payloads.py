"""Check the payload of an edit against its operation's model, and report every problem at once."""

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
from mulligan.workers.edits.tree import confined_paths

_Payload = TypeVar("_Payload", bound=Value)


def payload_of(model: type[_Payload], edit: Edit) -> _Payload:
    """Return an edit's payload as its model. Raises EditRefused with every problem."""
    try:
        return model.model_validate(edit.payload)
    except ValidationError as error:
        found = problems_of(error, model, list_known=True)
        raise EditRefused(*(problem.below("payload") for problem in found)) from None


def path_problems(*paths: str) -> list[Problem]:
    """Return the problems of paths that do not name a file inside the root."""
    found: list[Problem] = []
    for path in paths:
        try:
            confined_paths.split_path(path)
        except EditRefused as error:
            found += error.problems
    return found


def validate_payload(
    model: type[Value], edit: Edit, ctx: ApplyContext, *problems: Problem
) -> Validation:
    """Check form and size of a payload. ``problems`` are those that the caller found."""
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
            size = len(value if isinstance(value, str) else text)
            confined_paths.check_size(f"payload.{name}", size, ctx.max_bytes)
        except EditRefused as error:
            yield from error.problems
        except (TypeError, ValueError, RecursionError):
            message = "cannot be written to a file (not JSON, not finite or not Unicode)"
            yield Problem(message, ("payload", name))
