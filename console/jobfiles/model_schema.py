"""JSON Schemas of pydantic models, as people write their values in files.

This repeats in JSON Schema what validators check in Python. Tests show that a schema gives no false
alarm: it refuses what the loader accepts only if that is hardly intended (a number in quotes, a
mistake in a default that no job uses), and it ignores what only Python can check (files, profiles,
patterns).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from mulligan.workers.runners.openai import RESERVED_FIELDS

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_DURATION = r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*$"
_AMOUNT = r"^\s*(?=[\d.]*[1-9])\d+(\.\d+)?\s*[kKM]?\s*$"
_NO_ZERO = r"^\s*(?=[\d.]*[1-9])\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*$"
#: pydantic's ``\w`` matches every alphabet, that of JSON Schema only ASCII.
_WORD = r"\p{L}\p{M}\p{Nd}\p{Pc}"
#: For a bound that comes after a function, pydantic writes its own keyword.
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

_TEXT: Schema = {"type": "string"}
#: Validators that also accept a bare text.
ACCEPT_TEXT = frozenset(
    {"as_tuple", "OpenAIOptions._stop_as_tuple", "ScriptedAnswer._from_text",
     "VerifierSpec._from_id", "RunnerSpec._from_profile"}
)  # fmt: skip
#: Validators that also accept one word.
ACCEPT_WORD = {"Deliver._from_word": "branch"}
#: Validators that do not change what may be written.
ACCEPT_THE_SAME = frozenset(
    {
        "OpenAIOptions._default_key",
        "OpenAIOptions._fallbacks_by_model",
        "LoopConfig._check_auto_heal",
        "refuse_boolean",
    }
)


def _requires_text(name: str) -> Schema:
    return {"required": [name], "properties": {name: {"type": "string"}}}


#: What validators of whole models check.
MODEL_RULES: dict[str, Schema] = {
    "Workspace": {
        "anyOf": [_requires_text(name) for name in ("path", "profile", "snapshot", "git")]
    },
    "ContractSchema.Options": {"anyOf": [{"required": ["schema"]}, {"required": ["model"]}]},
    "TextMatch.Options": {
        "anyOf": [
            {"required": [name]}
            for name in ("contains", "not_contains", "regex", "not_regex", "equals", "choice",
                         "min_length", "max_length")
        ]
    },
}  # fmt: skip
_NO_RESERVED_FIELDS = {"propertyNames": {"not": {"enum": sorted(RESERVED_FIELDS)}}}
#: What validators of single fields check.
FIELD_RULES: dict[str, Schema] = {
    "OpenAIOptions.base_url": {"pattern": r"^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\s]+([/?#]|$)"},
    "OpenAIOptions.api_key_env": {"pattern": rf"^[\p{{L}}_][{_WORD}]*$"},
    "OpenAIOptions.extra": _NO_RESERVED_FIELDS,
    "LocalOptions.extra": _NO_RESERVED_FIELDS,
    "Workspace.output_file": {"pattern": r"^(?![/\\])(?!\.?$)(?!(.*[/\\])?\.\.([/\\]|$))"},
}


def schema_of(model: type[BaseModel], *, prefix: str = "") -> tuple[Schema, Schema]:
    """Return a model's schema and the definitions it refers to, named with the prefix."""
    made = model.model_json_schema(
        schema_generator=_AsWritten, ref_template=f"#/$defs/{prefix}{{model}}"
    )
    defs = {f"{prefix}{name}": tidy(each) for name, each in made.pop("$defs", {}).items()}
    return tidy(made), defs


def inline_schema(model: type[BaseModel]) -> Schema:
    """Return a model's schema without references, for another document.

    Patterns are left out: readers of OpenAPI documents support different dialects.
    """
    schema, defs = schema_of(model)
    inlined: Schema = _inline(schema, defs)
    return inlined


def _inline(schema: Any, defs: Schema) -> Any:
    if isinstance(schema, list):
        return [_inline(item, defs) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {
        key: _inline(value, defs)
        for key, value in schema.items()
        if key != "$ref" and not (key == "pattern" and isinstance(value, str))
    }
    if "$ref" not in schema:
        return rest
    return {**_inline(defs[schema["$ref"].removeprefix("#/$defs/")], defs), **rest}


def part_of(schema: Schema) -> Schema:
    """Return the schema of a part: nothing is required, and null removes a default."""
    kept = {key: value for key, value in schema.items() if key not in ("required", "anyOf")}
    return {**kept, "properties": {k: or_null(v) for k, v in schema.get("properties", {}).items()}}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


class _AsWritten(GenerateJsonSchema):
    """Handles the project's validators that run before a field's own, and ``#:`` comments."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> Schema:
        inner: Schema = self.generate_inner(schema["schema"])
        name = getattr(schema["function"]["function"], "__qualname__", "")
        if name == "parse_duration":
            return {**inner, "type": ["number", "string"], "pattern": _DURATION}
        if name == "parse_amount":
            return {**inner, "type": ["integer", "string"], "pattern": _AMOUNT}
        if name in ACCEPT_TEXT:
            return {"anyOf": [dict(_TEXT), inner]}
        if name in ACCEPT_WORD:
            return {"anyOf": [{**_TEXT, "const": ACCEPT_WORD[name]}, inner]}
        # A plug-in's function may accept anything.
        return inner if name in ACCEPT_THE_SAME else {}

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        made: Schema = super().model_schema(schema)
        cls: type[BaseModel] = schema["cls"]
        # A model that may also be a text has its fields in the second choice.
        fields: Schema = made.get("anyOf", [made])[-1].get("properties", {})
        for name, text in _comments(cls):
            if name in fields:
                fields[name]["description"] = text
        for name, field in fields.items():
            field.update(FIELD_RULES.get(f"{cls.__qualname__}.{name}", {}))
        return {**made, **MODEL_RULES.get(cls.__qualname__, {})}


def _comments(cls: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield each field's ``#:`` comment."""
    try:
        lines = inspect.getsource(cls).splitlines()
    except (OSError, TypeError):
        return
    comment: list[str] = []
    for line in map(str.strip, lines):
        if line.startswith("#:"):
            comment.append(line[2:].strip())
            continue
        field = re.match(r"(\w+): ", line)
        if comment and field:
            yield field[1], " ".join(comment).replace("``", "`")
        comment = []


def tidy(schema: Any) -> Any:
    """Write bounds, patterns and enums as every validator reads them."""
    if isinstance(schema, list):
        return [tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {_key(key, value): _value(key, value) for key, value in schema.items()}
    if "additionalProperties" in made and made.get("anyOf", [{}])[0].get("type") == "string":
        # A model that may also be a text: refuse unknown fields where its fields are listed.
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
