"""JSON Schemas of the options of each verifier and each kind of runner."""

from __future__ import annotations

from pydantic import BaseModel

from mulligan.console.jobfiles.model_schema import Schema, or_null, part_of, schema_of
from mulligan.policies.jobs.job import RunnerSpec, VerifierSpec, Workspace
from mulligan.policies.jobs.provider_limits import ProviderLimits
from mulligan.workers.runners.runner_registry import SAFE_OVERRIDES, RunnerRegistry
from mulligan.workers.settings.profile_pools import HARD_LIMIT, POOL
from mulligan.workers.verifiers.command_subprocess import CommandSubprocess
from mulligan.workers.verifiers.contract_schema import ContractSchema
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry

_TYPES = ["array", "boolean", "integer", "null", "number", "object", "string"]
_ANY_OPTIONS: Schema = {"type": "object"}
#: Options of verifiers that their models do not describe.
_MORE_OPTIONS: dict[str, Schema] = {
    ContractSchema.id: {"schema": {"$ref": "#/$defs/contract"}},
    CommandSubprocess.id: {
        "command": {
            "type": "string",
            "title": "Command",
            "description": "A name from [commands.NAME] of mulligan.toml, instead of argv.",
        }
    },
}


def contract() -> Schema:
    """Return a schema of the common JSON Schema keywords; workers check all of them."""
    this = {"$ref": "#/$defs/contract"}
    several = {"type": "array", "items": this}
    named = {"type": "object", "additionalProperties": this}
    types = {"enum": _TYPES}
    words: Schema = {
        "type": {"anyOf": [types, {"type": "array", "items": types, "minItems": 1}]},
        "properties": named,
        "$defs": named,
        "required": {"type": "array", "items": {"type": "string"}},
        "additionalProperties": this,
        "items": {"anyOf": [this, several]},
        "enum": {"type": "array"},
        "minimum": {"type": "number"},
        "maximum": {"type": "number"},
        "pattern": {"type": "string"},
        "format": {"type": "string"},
        "description": {"type": "string"},
        "not": this,
    }
    for name in ("minLength", "maxLength", "minItems", "maxItems"):
        words[name] = {"type": "number", "minimum": 0}
    for name in ("anyOf", "oneOf", "allOf"):
        words[name] = {**several, "minItems": 1}
    return {"title": "JSON Schema of the answer", "type": ["object", "boolean"],
            "properties": words}  # fmt: skip


# -- verifiers -------------------------------------------------------------------------------------


def verifier(defs: Schema, model: type[VerifierSpec] = VerifierSpec) -> Schema:
    """Return the schema of an item of ``verifiers``: an id, or a mapping with its options."""
    registry = VerifierRegistry()
    models = registry.option_models()
    common, _ = schema_of(model)
    shared = common["anyOf"][1]["properties"]
    defs["contract"] = contract()
    for name, options in models.items():
        defs[f"verifier.{name}"] = _beside(shared, _verifier_options(name, options, defs))
    return {
        "title": "Verifier",
        "description": model.__doc__,
        "anyOf": [
            {"enum": [name for name in models if _needs_no_options(registry, name)]},
            {
                "type": "object",
                "properties": {**shared, "id": {"enum": list(models), "title": "Which verifier"}},
                "required": ["id"],
                "allOf": [_when("id", name, f"verifier.{name}") for name in models],
            },
        ],
    }


def _needs_no_options(registry: VerifierRegistry, name: str) -> bool:
    return not registry.check([VerifierSpec(id=name)], Workspace(snapshot="sha256:-"))


def _verifier_options(name: str, model: type[BaseModel] | None, defs: Schema) -> Schema:
    if model is None:
        return _ANY_OPTIONS
    options = _options(name, model, defs)
    return {**options, "properties": options.get("properties", {}) | _MORE_OPTIONS.get(name, {})}


# -- runners ---------------------------------------------------------------------------------------


def add_kinds(defs: Schema, *, in_job: bool = False) -> list[str]:
    """Define ``runner.KIND`` for each kind and return the kinds."""
    shared: Schema = {"kind": {"title": "Kind", "type": ["string", "null"]}}
    if in_job:
        shared["profile"] = {"type": "null"}
    else:
        for name, about in ProviderLimits.model_fields.items():
            shared[name] = {"title": about.title, "type": "integer", "minimum": 1}
        shared[POOL] = {"title": "Pool", "enum": ["", "agent"]}
        shared[HARD_LIMIT] = {"title": "Hard limit", "type": ["number", "string"]}
    models = RunnerRegistry().option_models()
    for name, model in models.items():
        if model is None:
            defs[f"runner.{name}"] = _ANY_OPTIONS
            continue
        options = _options(name, model, defs)
        if "fallbacks" in options["properties"]:
            rest = {k: v for k, v in options["properties"].items() if k != "fallbacks"}
            options["properties"]["fallbacks"]["items"] = {
                "type": ["string", "object"],
                "minLength": 1,
                "properties": rest,
                "additionalProperties": False,
            }
        defs[f"runner.{name}"] = _beside(shared, options)
    return list(models)


def inline_runner(kinds: list[str]) -> Schema:
    """Return the schema of ``[runners.NAME]`` in mulligan.toml: a kind and its options."""
    return {
        "title": "Runner",
        "type": "object",
        "properties": {"kind": {"enum": kinds, "title": "Who answers"}},
        "required": ["kind"],
        "allOf": [_when("kind", name, f"runner.{name}") for name in kinds],
    }


def add_runners(defs: Schema) -> None:
    """Define ``runner`` for a job, and ``runner.part`` for a job with defaults."""
    kinds = add_kinds(defs, in_job=True)
    profile = _profile()
    name = {key: value for key, value in profile.items() if key not in ("title", "default")}
    overrides = {k: defs["runner.openai"]["properties"][k] for k in sorted(SAFE_OVERRIDES)}
    named: Schema = {
        "type": "object",
        "properties": {"profile": profile, "kind": {"type": "null"}, **overrides},
        "additionalProperties": False,
    }
    defs["runner.profile"], defs["runner.profile.part"] = named, part_of(named)
    for kind in kinds:
        defs[f"runner.{kind}.part"] = part_of(defs[f"runner.{kind}"])
    about: Schema = {"title": "Runner", "description": RunnerSpec.__doc__}
    defs["runner"] = {**about, "anyOf": [name, _chosen(kinds, profile, "")]}
    unnamed = {"anyOf": [{"$ref": f"#/$defs/runner.{kind}.part"} for kind in kinds]}
    part = {**_chosen(kinds, profile, ".part"), "else": unnamed}
    defs["runner.part"] = {**about, "anyOf": [name, part]}


def _profile() -> Schema:
    spec, _ = schema_of(RunnerSpec)
    found: Schema = spec["anyOf"][1]["properties"]["profile"]["anyOf"][0]
    return {**found, "title": "Profile", "description": "A name from [runners.NAME]."}


def _chosen(kinds: list[str], profile: Schema, suffix: str) -> Schema:
    """Require exactly one of kind and profile."""
    by_kind = {"required": ["kind"], "properties": {"kind": {"type": "string"}}}
    by_profile = {"required": ["profile"], "properties": {"profile": {"type": "string"}}}
    return {
        "type": "object",
        "properties": {"kind": or_null({"enum": kinds}), "profile": or_null(profile)},
        "if": {"anyOf": [by_kind, by_profile]},
        "then": {
            "allOf": [
                *(_when("kind", kind, f"runner.{kind}{suffix}") for kind in kinds),
                {"if": by_profile, "then": {"$ref": f"#/$defs/runner.profile{suffix}"}},
            ]
        },
        "else": False,
    }


# -- both ------------------------------------------------------------------------------------------


def _options(name: str, model: type[BaseModel], defs: Schema) -> Schema:
    made, more = schema_of(model, prefix=f"{name}.")
    defs.update(more)
    # They describe the model, not the verifier or the runner.
    made.pop("title", None)
    made.pop("description", None)
    return made


def _beside(shared: Schema, options: Schema) -> Schema:
    """Return the options together with the fields that all kinds share."""
    return {**options, "properties": {**shared, **options.get("properties", {})}}


def _when(field: str, value: str, definition: str) -> Schema:
    return {
        "if": {"required": [field], "properties": {field: {"const": value}}},
        "then": {"$ref": f"#/$defs/{definition}"},
    }
