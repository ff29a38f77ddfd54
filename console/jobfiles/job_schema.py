"""The JSON Schema of job files: one job, a list, or `jobs:` with `defaults:`."""

from __future__ import annotations

from mulligan.console.jobfiles.model_schema import DRAFT, Schema, or_null, part_of, schema_of
from mulligan.console.jobfiles.option_schemas import add_runners, verifier
from mulligan.policies.jobs.job import Job

#: Mappings of a job that merge with those of the defaults key by key.
_MERGED = ("policy", "budget", "workspace", "delayed_verification", "labels")
_PROMPTS = ("prompt", "messages", "prompt_file")
_DEFS = "#/$defs/"


def job_schema() -> Schema:
    """Return the schema. Only `mulligan jobs lint` checks files, profiles and limits."""
    job, defs = schema_of(Job)
    for replaced in ("VerifierSpec", "RunnerSpec"):
        del defs[replaced]
    defs["verifier"] = verifier(defs)
    add_runners(defs)
    fields = {**job["properties"], **_only_in_files()}
    fields["runner"] = {"$ref": f"{_DEFS}runner"}
    fields["verifiers"] = {**fields["verifiers"], "items": {"$ref": f"{_DEFS}verifier"}}
    defs["job"] = {**job, "properties": fields, **_one_prompt()}
    defs["part"] = _part(defs["job"], defs)
    return {
        "$schema": DRAFT,
        "title": "mulligan job file",
        "if": {"type": "array"},
        "then": {"minItems": 1, "items": {"$ref": f"{_DEFS}job"}},
        "else": {
            "if": {"type": "object", "required": ["jobs"]},
            "then": _jobs_and_defaults(job["required"]),
            "else": {"$ref": f"{_DEFS}job"},
        },
        "$defs": dict(sorted(defs.items())),
    }


def _only_in_files() -> Schema:
    return {
        "prompt_file": {
            "type": "string",
            "minLength": 1,
            "title": "Prompt File",
            "description": "The path of a text file that is the prompt, relative to this file.",
        },
        "vars": {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean"]},
            "title": "Vars",
            "description": "Values for the {{name}} placeholders of prompt_file.",
        },
    }


def _one_prompt() -> Schema:
    """``prompt``, or ``messages``, or ``prompt_file`` with ``vars``."""
    none, empty = {"type": "null"}, {"maxItems": 0}
    text, some = {"type": "string"}, {"minItems": 1}
    return {
        "anyOf": [
            {"required": ["prompt"],
             "properties": {"prompt": text, "messages": empty, "prompt_file": False}},
            {"required": ["messages"],
             "properties": {"prompt": none, "messages": some, "prompt_file": False}},
            {"required": ["prompt_file"],
             "properties": {"prompt": False, "messages": False}},
        ],
        "dependentRequired": {"vars": ["prompt_file"]},
    }  # fmt: skip


def _part(job: Schema, defs: Schema) -> Schema:
    """Return the schema of the defaults and of a job that has defaults."""
    part = part_of(job)
    del part["dependentRequired"]
    for name in _MERGED:
        field = dict(job["properties"][name])
        # An optional field is a choice between its model and null.
        choices = field.pop("anyOf", [field])
        model = choices[0].get("$ref", "").removeprefix(_DEFS)
        if model:
            defs[f"{model}.part"] = part_of(defs[model])
            part["properties"][name] = or_null({"$ref": f"{_DEFS}{model}.part"})
    labels = part["properties"]["labels"]["anyOf"][0]
    part["properties"]["labels"] = or_null({**labels, "additionalProperties": {
        "type": ["string", "null"]}})  # fmt: skip
    part["properties"]["runner"] = or_null({"$ref": f"{_DEFS}runner.part"})
    pairs = [(a, b) for i, a in enumerate(_PROMPTS) for b in _PROMPTS[i + 1 :]]
    return {**part, "not": {"anyOf": [{"required": list(pair)} for pair in pairs]}}


def _jobs_and_defaults(required: list[str]) -> Schema:
    some = {"type": "array", "minItems": 1}
    return {
        "properties": {"defaults": or_null({"$ref": f"{_DEFS}part"}), "jobs": some},
        "additionalProperties": False,
        "if": {"required": ["defaults"], "properties": {"defaults": {"type": "object"}}},
        "then": {
            "properties": {"jobs": {"items": {"$ref": f"{_DEFS}part"}}},
            "allOf": [*(_needed([name]) for name in required), _needed(list(_PROMPTS))],
        },
        "else": {"properties": {"jobs": {"items": {"$ref": f"{_DEFS}job"}}}},
    }


def _needed(names: list[str]) -> Schema:
    """Require one of the names in each job unless the defaults have one."""
    one = {"anyOf": [{"required": [name]} for name in names]}
    return {
        "if": {"properties": {"defaults": {"not": one}}},
        "then": {"properties": {"jobs": {"items": one}}},
    }
