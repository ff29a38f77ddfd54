"""The bodies of requests about loops: what they describe, or every problem of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from mulligan.console.http.context import ConsoleContext
from mulligan.console.http.errors import NOT_JSON, invalid
from mulligan.console.http.models.loop_models import MAX_ITEMS
from mulligan.console.loopfiles.inspect_loop import loop_rules
from mulligan.console.loopfiles.loop_file import read_template, without_references
from mulligan.policies.jobs.job import HALF_A_PAIR, Budget, Name, RunnerSpec, Text
from mulligan.policies.loops.numbers import Whole
from mulligan.policies.loops.spec import ItemSpec, LoopConfig, LoopDocument
from mulligan.policies.problem import MOST_FOUND, first_problems
from mulligan.policies.value import Value
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.ports.errors import BadInput

_Model = TypeVar("_Model", bound=BaseModel)


class LoopOptions(Value):
    """What a request says about a new loop beside the loop itself."""

    #: Check everything, create nothing, and return the plan.
    dry_run: bool = False
    #: Start it at once.
    start: bool = False
    #: Whose loop it is. A token that is bound to a tenant creates only its own.
    tenant: Name | None = None


class DraftBody(Value):
    """What a request for a draft says."""

    #: What the loop is for.
    goal: Annotated[str, Field(min_length=1, max_length=20_000)]
    #: The loop without its items; `repo` is required.
    loop: LoopConfig
    #: Who writes the draft; by default `loop_drafter` of mulligan.toml, or else the loop's runner.
    runner: RunnerSpec | None = None
    #: Programs that the verifiers of the draft may run, where jobs may define commands.
    programs: Annotated[tuple[Text, ...], Field(max_length=50)] = ()
    max_attempts: Whole = Field(default=4, ge=2, le=100)
    budget: Budget = Budget()
    #: Create and start the loop when a draft has passed.
    auto_start: bool = False
    #: Whose draft and loop it is. A token that is bound to a tenant asks only for its own.
    tenant: Name | None = None


class AddedItems(Value):
    """Items to add to a loop."""

    items: tuple[ItemSpec, ...] = Field(min_length=1, max_length=MAX_ITEMS)


class LoopBody(NamedTuple):
    document: LoopDocument
    options: LoopOptions


def read_loop_body(context: ConsoleContext, body: Any) -> LoopBody:
    """Return the loop that a body describes. Raises BadInput with its problems.

    The body is a document with the loop and its items, or a template's name and its parameters. It
    may have the fields of LoopOptions beside it.
    """
    fields = storable_object(body)
    known = LoopOptions.model_fields
    options = _read(LoopOptions, {name: fields[name] for name in known if name in fields})
    rest = {name: value for name, value in fields.items() if name not in known}
    services = context.services
    rules = loop_rules(
        context.settings, services.intake.problems, config=services.loops.check_config
    )
    templates = context.settings.loop_templates
    return LoopBody(read_template(rest, templates=templates, rules=rules), options)


def read_draft_body(body: Any) -> DraftBody:
    """Return what a request for a draft says. Raises BadInput with its problems."""
    return _read(DraftBody, without_references(dict(storable_object(body))))


def read_items_body(body: Any) -> tuple[ItemSpec, ...]:
    """Return the items of a body: one item, or ``{"items": […]}``."""
    fields = without_references(dict(storable_object(body)))
    if "items" in fields:
        return _read(AddedItems, fields).items
    return (_read(ItemSpec, fields),)


def storable_object(body: Any) -> Mapping[str, Any]:
    """Return a JSON object that can be stored, or raise 422."""
    if isinstance(body, bytes):
        raise invalid(NOT_JSON)
    if not isinstance(body, dict):
        raise invalid("body: must be a JSON object")
    try:
        json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise invalid(f"body: {HALF_A_PAIR}") from None
    except (ValueError, RecursionError):  # not a number, extreme nesting
        raise invalid("body: has a value that cannot be stored as JSON") from None
    return body


def _read(model: type[_Model], fields: Mapping[str, Any]) -> _Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        found = problems_of(error, model, most=MOST_FOUND)
        raise BadInput(*first_problems(found)) from None
