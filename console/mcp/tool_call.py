"""A call of a tool: its arguments, and the one request to the console that it makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple
from urllib.parse import quote, urlencode
from uuid import uuid4

from pydantic import BeforeValidator, Field, WithJsonSchema

from mulligan.console.jobfiles.model_schema import Schema, inline_schema
from mulligan.policies.loops.numbers import Whole
from mulligan.policies.loops.spec import ItemId, ItemSpec, LoopConfig, LoopName
from mulligan.policies.value import Json, Value
from mulligan.tasks.loops.change import CHANGEABLE

#: ``destroys``: it ends work or forgets something.
Effect = Literal["reads", "changes", "destroys"]
#: Characters of one text in an answer.
TEXT_LENGTH = 1500


class ConsoleRequest(NamedTuple):
    method: str
    path: str
    body: Mapping[str, Json] | None = None
    #: The idempotency key of a change.
    key: str | None = None


class ToolCall(Value):
    """The arguments of a tool. A tool's docstring is all that an agent reads about it."""

    effect: ClassVar[Effect] = "reads"

    @property
    def text_length(self) -> int:
        """The characters of each text that the answer may have."""
        return TEXT_LENGTH

    def request(self) -> ConsoleRequest:
        raise NotImplementedError


class ChangeCall(ToolCall):
    """The arguments of a tool that changes something."""

    effect: ClassVar[Effect] = "changes"

    idempotency_key: Annotated[
        str | None,
        Field(
            pattern=r"^[\x21-\x7e]+$",
            max_length=200,
            description="Leave it out. Only to repeat a call that may have been made already:"
            " the key of that call, so that the change is made once.",
        ),
    ] = None

    def change(
        self, method: str, path: str, body: Mapping[str, Json] | None = None
    ) -> ConsoleRequest:
        """Return the request. Its key makes it safe to send it again after a broken connection."""
        return ConsoleRequest(method, path, body, self.idempotency_key or f"mcp-{uuid4().hex}")


def read(path: str, **query: Json) -> ConsoleRequest:
    given = urlencode({name: value for name, value in query.items() if value is not None})
    return ConsoleRequest("GET", f"{path}?{given}" if given else path)


def loop_path(*steps: str) -> str:
    return "/".join(["/api/loops", *(quote(step, safe="") for step in steps)])


def input_schema(call: type[ToolCall]) -> Schema:
    """Return the schema of a tool's arguments."""
    schema: Schema = _compact(inline_schema(call))
    del schema["description"]
    return schema


def _compact(schema: Any) -> Any:
    """Drop titles, which repeat the names, and nulls, which mean an absent argument.

    An agent pays for every word of a schema, and is best told to leave an argument out.
    """
    if isinstance(schema, list):
        return [_compact(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: _compact(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and (key, value) != ("default", None)
    }
    choices = [each for each in made.pop("anyOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        return choices[0] | made
    return {**made, "anyOf": choices} if choices else made


def _from_text(value: Any) -> Any:
    """Read an object that is written as text, as some agents send it."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value  # and say that it is not an object


_CONFIG = inline_schema(LoopConfig)
_CHANGES = {
    "type": "object",
    "minProperties": 1,
    "properties": {k: v for k, v in _CONFIG["properties"].items() if k in CHANGEABLE},
    "additionalProperties": False,
}
#: Instead of all its fields: the console checks them, and an agent pays for every word.
_WORKSPACE = {
    "type": "object",
    "description": 'The files that answers are checked with: {"profile": NAME}, {"path": DIRECTORY}'
    ' or {"git": REPOSITORY, "ref": BRANCH}.',
}


def _without(schema: Schema, *names: str) -> Schema:
    """Leave out fields of a loop or an item, and shorten its workspace."""
    kept = {k: v for k, v in schema["properties"].items() if k not in names}
    return {**schema, "properties": {**kept, "workspace": _WORKSPACE}}


_CONFIG = _without(_CONFIG, "specs")
_ITEMS = {"type": "array", "minItems": 1, "items": _without(inline_schema(ItemSpec))}

# The console checks these, and reports every problem of them.
Config = Annotated[dict[str, Any], BeforeValidator(_from_text), WithJsonSchema(_CONFIG)]
ConfigChanges = Annotated[dict[str, Any], BeforeValidator(_from_text), WithJsonSchema(_CHANGES)]
Items = Annotated[list[Any], BeforeValidator(_from_text), WithJsonSchema(_ITEMS)]
Parameters = Annotated[
    dict[str, Any], BeforeValidator(_from_text), WithJsonSchema({"type": "object"})
]

Loop = Annotated[LoopName, Field(description="The loop's name, the id in list_loops.")]
Item = Annotated[ItemId, Field(description="The item's id, as in list_items.")]
Cursor = Annotated[
    str | None,
    Field(
        pattern=r"^[0-9]{1,9}$",
        description="For the next page: the cursor of the last answer. Leave it out for the first.",
    ),
]
Length = Annotated[
    Whole,
    Field(
        ge=100,
        le=20_000,
        description="Characters of each prompt and answer; longer ones are cut, with a note.",
    ),
]
