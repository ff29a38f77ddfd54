"""The JSON Schemas of loop files, templates and spec files."""

from __future__ import annotations

from typing import Any

from mulligan.console.jobfiles.model_schema import DRAFT, Schema, or_null, schema_of
from mulligan.console.jobfiles.option_schemas import add_runners, verifier
from mulligan.console.loopfiles.references import Parameter
from mulligan.policies.loops.spec import ItemVerifier, LoopConfig, SpecDocument

_DEFS = "#/$defs/"
_REFERENCE: Schema = {"$ref": f"{_DEFS}reference"}
#: Keywords with one schema, with a list of schemas, and with schemas by name. Conditions (`if`,
#: `not`) are left out: they ask what is written.
_ONE = ("items", "additionalProperties", "then", "else")
_MANY = ("anyOf", "oneOf", "allOf")
_NAMED = ("properties", "$defs")
_SCALARS = frozenset({"string", "number", "integer", "boolean"})
#: What restricts a text, so that a reference would not be one.
_RESTRICTING = frozenset({"enum", "const", "pattern"})
_ABOUT = ("title", "description", "default")


def loop_schema() -> Schema:
    """Return the schema of loop.yaml: a loop, or a template with `loop:` and `items:`."""
    config, defs = schema_of(LoopConfig)
    spec = _spec(defs)
    defs["loop"] = _with_runner(config)
    scalar = {"type": ["string", "number", "boolean", "null"]}
    parameter, _ = schema_of(Parameter)
    parameter["properties"]["default"]["type"] = scalar["type"]
    parameters = {
        "title": "Parameters",
        "description": "Values that the files refer to: a default, or a description.",
        "type": "object",
        "additionalProperties": {"anyOf": [scalar, parameter]},
    }
    template = {
        "type": "object",
        "required": ["loop"],
        "properties": {**spec["properties"], "loop": {"$ref": f"{_DEFS}loop"},
                       "parameters": or_null(parameters)},
        "additionalProperties": False,
    }  # fmt: skip
    own = {**defs["loop"]["properties"], "parameters": or_null(parameters)}
    either = [{"required": ["loop"]}, {"required": ["items"]}]
    return _document(
        "mulligan loop",
        {
            "type": "object",
            "if": {"anyOf": either},
            "then": template,
            "else": {**defs["loop"], "properties": own},
        },
        defs,
    )


def spec_schema() -> Schema:
    """Return the schema of spec files."""
    defs: Schema = {}
    return _document("mulligan spec file", _spec(defs), defs)


def _spec(defs: Schema) -> Schema:
    """Return the schema of a document with items; add what it refers to."""
    spec, more = schema_of(SpecDocument)
    defs.update(more)
    for replaced in ("ItemVerifier", "RunnerSpec"):
        defs.pop(replaced)
    defs["verifier"] = verifier(defs, ItemVerifier)
    add_runners(defs)
    item = defs["ItemSpec"] = _with_runner(defs["ItemSpec"])
    item["properties"]["verifiers"]["items"] = {"$ref": f"{_DEFS}verifier"}
    return spec


def _with_runner(schema: Schema) -> Schema:
    runner = or_null({"$ref": f"{_DEFS}runner"})
    properties = {**schema["properties"], "runner": runner}
    if "escalate_to" in properties:
        several = {**properties["escalate_to"], "items": {"$ref": f"{_DEFS}runner"}}
        properties["escalate_to"] = several
    return {**schema, "properties": properties}


def _document(title: str, schema: Schema, defs: Schema) -> Schema:
    reference = {
        "title": "Reference",
        "description": "${NAME} is a parameter, ${env:NAME} or ${env:NAME:-default} a variable.",
        "type": "string",
        "pattern": r"\$\{[^}]+\}",
    }
    allowed: Schema = _with_references({**schema, "$defs": dict(sorted(defs.items()))})
    allowed["$defs"]["reference"] = reference
    return {"$schema": DRAFT, **allowed, "title": title}


def _with_references(schema: Any) -> Any:
    """Allow a reference wherever not every text is allowed."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key in _ONE:
        if key in made:
            made[key] = _with_references(made[key])
    for key in _MANY:
        if key in made:
            made[key] = [_with_references(each) for each in made[key]]
    for key in _NAMED:
        if key in made:
            made[key] = {name: _with_references(each) for name, each in made[key].items()}
    return _or_reference(made) if _is_restricted_scalar(schema) else made


def _is_restricted_scalar(schema: Schema) -> bool:
    types = schema.get("type", [])
    types = {types} if isinstance(types, str) else set(types)
    if types - _SCALARS or not (types or schema.keys() & {"enum", "const"}):
        return False
    return "string" not in types or bool(schema.keys() & _RESTRICTING)


def _or_reference(schema: Schema) -> Schema:
    about = {key: value for key, value in schema.items() if key in _ABOUT}
    rest = {key: value for key, value in schema.items() if key not in _ABOUT}
    return {**about, "anyOf": [rest, _REFERENCE]}
