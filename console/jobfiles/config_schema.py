"""The JSON Schema of mulligan.toml."""

from __future__ import annotations

from mulligan.console.jobfiles.model_schema import DRAFT, Schema, schema_of
from mulligan.console.jobfiles.option_schemas import add_kinds, inline_runner
from mulligan.workers.settings.model import Settings
from mulligan.workers.verifiers.command_subprocess import CommandSubprocess


def config_schema() -> Schema:
    """Return the schema of every setting, with the tables of runners and commands."""
    schema, defs = schema_of(Settings)
    defs["runner"] = inline_runner(add_kinds(defs))
    defs["command"], more = schema_of(CommandSubprocess.Options, prefix="command.")
    defs.update(more)
    defs["command"]["title"] = "Command"
    for name, definition in (("runners", "runner"), ("commands", "command")):
        schema["properties"][name]["additionalProperties"] = {"$ref": f"#/$defs/{definition}"}
    return {
        "$schema": DRAFT,
        **schema,
        "title": "mulligan.toml",
        "$defs": dict(sorted(defs.items())),
    }
