"""JSON Schemas of pydantic models, as people write their values in files.

What a validator accepts or refuses in Python is said here once more in JSON Schema. The promise,
kept by tests: a schema gives no false alarm. It refuses what the loader accepts only where that is
hardly meant (a number in quotes, a mistake in a default that no job takes), and leaves alone what
only Python can know (files, profiles, patterns).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_DURATION = r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*$"
_NO_ZERO = r"^\s*(?=[\d.]*[1-9])\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*$"
#: pydantic's ``\w`` knows every alphabet, that of JSON Schema only ASCII.
_WORD = r"\p{L}\p{M}\p{Nd}\p{Pc}"
#: pydantic has no JSON Schema for a bound that comes after a function, and leaves its own word.
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

_TEXT: Schema = {"type": "string"}
#: Functions that turn a bare text into what the field holds.
_TAKE_TEXT = frozenset(
    {"_as_tuple", "OpenAIOptions._one_stop", "ScriptedAnswer._from_text",
     "VerifierSpec._from_id", "RunnerSpec._from_profile"}
)  # fmt: skip
#: Functions that change nothing about what may be written.
_TAKE_THE_SAME = frozenset(
    {"OpenAIOptions._usual_key", "OpenAIOptions._models_by_name",
     "ContractSchema.Options._something"}
)  # fmt: skip


def _given(name: str) -> Schema:
    return {"required": [name], "properties": {name: {"type": "string"}}}


#: What validators of whole models check.
_MODEL_RULES: dict[str, Schema] = {
    "Workspace": {"anyOf": [_given("path"), _given("profile"), _given("snapshot")]},
    "ContractSchema.Options": {"anyOf": [{"required": ["schema"]}, {"required": ["model"]}]},
    "TextMatch.Options": {
        "anyOf": [
            {"required": [name]}
            for name in ("contains", "not_contains", "regex", "not_regex", "equals",
                         "min_length", "max_length")
        ]
    },
}  # fmt: skip
_OWN_FIELDS = {
    "propertyNames": {"not": {"enum": ["model", "messages", "stream", "max_tokens",
                                       "response_format"]}}
}  # fmt: skip
#: What validators of single fields check.
_FIELD_RULES: dict[str, Schema] = {
    "OpenAIOptions.base_url": {"pattern": r"^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\s]+([/?#]|$)"},
    "OpenAIOptions.api_key_env": {"pattern": rf"^[\p{{L}}_][{_WORD}]*$"},
    "OpenAIOptions.extra": _OWN_FIELDS,
    "LocalOptions.extra": _OWN_FIELDS,
    "Workspace.output_file": {"pattern": r"^(?![/\\])(?!\.?$)(?!(.*[/\\])?\.\.([/\\]|$))"},
}


def schema_of(model: type[BaseModel], *, prefix: str = "") -> tuple[Schema, Schema]:
    """The schema of a model, and the definitions it refers to, named after the prefix."""
    made = model.model_json_schema(
        schema_generator=_AsWritten, ref_template=f"#/$defs/{prefix}{{model}}"
    )
    defs = {f"{prefix}{name}": tidy(each) for name, each in made.pop("$defs", {}).items()}
    return tidy(made), defs


def inline_schema(model: type[BaseModel]) -> Schema:
    """The schema of a model for another document: it refers to nothing outside itself.

    Patterns are left out: readers of OpenAPI documents differ in the dialect that they know.
    """
    made, defs = schema_of(model)
    found: Schema = _inlined(made, defs)
    return found


def _inlined(schema: Any, defs: Schema) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, defs) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {
        key: _inlined(value, defs)
        for key, value in schema.items()
        if key != "$ref" and not (key == "pattern" and isinstance(value, str))
    }
    if "$ref" not in schema:
        return rest
    return {**_inlined(defs[schema["$ref"].removeprefix("#/$defs/")], defs), **rest}


def part_of(schema: Schema) -> Schema:
    """The same mapping as one layer of two: nothing is required, and null takes a value back."""
    kept = {key: value for key, value in schema.items() if key not in ("required", "anyOf")}
    return {**kept, "properties": {k: or_null(v) for k, v in schema.get("properties", {}).items()}}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


class _AsWritten(GenerateJsonSchema):
    """Knows the project's functions that run before a field is validated."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> Schema:
        inner: Schema = self.generate_inner(schema["schema"])
        name = getattr(schema["function"]["function"], "__qualname__", "")
        if name == "parse_duration":
            return {**inner, "type": ["number", "string"], "pattern": _DURATION}
        if name in _TAKE_TEXT:
            return {"anyOf": [dict(_TEXT), inner]}
        # A plug-in's own function may take anything.
        return inner if name in _TAKE_THE_SAME else {}

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        made: Schema = super().model_schema(schema)
        cls: type[BaseModel] = schema["cls"]
        for name, text in _comments(cls):
            if name in made.get("properties", {}):
                made["properties"][name]["description"] = text
        for name, field in made.get("properties", {}).items():
            field.update(_FIELD_RULES.get(f"{cls.__qualname__}.{name}", {}))
        return {**made, **_MODEL_RULES.get(cls.__qualname__, {})}


def _comments(cls: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Each field's ``#:`` comment."""
    try:
        lines = inspect.getsource(cls).splitlines()
    except (OSError, TypeError):
        return
    said: list[str] = []
    for line in map(str.strip, lines):
        if line.startswith("#:"):
            said.append(line[2:].strip())
            continue
        field = re.match(r"(\w+): ", line)
        if said and field:
            yield field[1], " ".join(said).replace("``", "`")
        said = []


def tidy(schema: Any) -> Any:
    """Bounds, patterns and lists of values as every validator reads them."""
    if isinstance(schema, list):
        return [tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {_key(key, value): _value(key, value) for key, value in schema.items()}
    if "additionalProperties" in made and made.get("anyOf", [{}])[0] == _TEXT:
        # Of a model that may also be a text: strangers are refused where its fields are known.
        made["anyOf"][1]["additionalProperties"] = made.pop("additionalProperties")
    if made.get("pattern") == _DURATION and made.get("exclusiveMinimum") == 0:
        made["pattern"] = _NO_ZERO
    if made.get("format") == "path":
        del made["format"]
    return made


def _key(key: str, value: Any) -> str:
    return _BOUNDS.get(key, key) if isinstance(value, int | float) else key


def _value(key: str, value: Any) -> Any:
    if key == "pattern" and isinstance(value, str):
        return value.replace(r"[\w", f"[{_WORD}").replace(r"\w", f"[{_WORD}]")
    if key == "enum" and isinstance(value, list):
        return list(dict.fromkeys(value))
    return value if key in ("default", "const") else tidy(value)
