"""`prompt_file` and `vars`: a prompt kept in a file of its own, with {{name}} placeholders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mulligan.console.jobfiles.source_document import read_text
from mulligan.tasks.ports.errors import BadInput

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")


def expand_prompt_file(
    raw: dict[str, Any], folder: Path, *, own_vars: Any
) -> tuple[dict[str, Any], list[str]]:
    """The job with its prompt in place, and every problem as ``field: problem``.

    ``own_vars`` are the job's own: only those must be used; a default may be for other jobs.
    """
    rest = {name: value for name, value in raw.items() if name not in ("prompt_file", "vars")}
    if "prompt_file" not in raw:
        problems = ["vars: is only of use with prompt_file"] if "vars" in raw else []
        return rest, problems
    if "prompt" in raw or "messages" in raw:
        # The rest of the job is still checked, as if it had only its prompt.
        return rest, ["prompt_file: give either a prompt or a prompt_file"]
    text, problems = _filled(raw["prompt_file"], raw.get("vars", {}), own_vars, folder)
    return {**rest, "prompt": text or "-"}, problems


def _filled(name: Any, variables: Any, own: Any, folder: Path) -> tuple[str, list[str]]:
    if not isinstance(name, str) or not name:
        return "", ["prompt_file: must be the path of a text file"]
    if not isinstance(variables, dict):
        return "", ["vars: must be a mapping of names to values"]
    try:
        text = read_text(str(folder / name), name)
    except BadInput as error:
        return "", [f"prompt_file: {problem}" for problem in error.problems]
    if not text.strip():
        return "", [f"prompt_file: {name}: is empty"]
    wanted = dict.fromkeys(_PLACEHOLDER.findall(text))
    problems = [
        f"vars: {name} asks for {{{{{missing}}}}}, which is not given"
        for missing in wanted
        if missing not in variables
    ]
    problems += [
        f"vars.{extra}: {name} has no {{{{{extra}}}}}"
        for extra in (own if isinstance(own, dict) else ())
        if extra not in wanted
    ]
    problems += [
        f"vars.{key}: must be text or a number"
        for key in wanted
        if key in variables and not isinstance(variables[key], str | int | float)
    ]
    if problems:
        return "", problems
    return _PLACEHOLDER.sub(lambda match: _spelled(variables[match[1]]), text), []


def _spelled(value: str | float) -> str:
    """As it stands in the file: YAML's true is not Python's True."""
    return str(value).lower() if isinstance(value, bool) else str(value)
