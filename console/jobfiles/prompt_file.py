"""`prompt_file` and `vars`: a prompt in a separate file, with {{name}} placeholders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mulligan.console.jobfiles.source_document import read_text
from mulligan.policies.problem import Problem
from mulligan.tasks.ports.errors import BadInput

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")


def expand_prompt_file(
    raw: dict[str, Any], folder: Path, *, own_vars: Any
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the job with its prompt filled in, and every problem.

    ``own_vars`` are the job's own: each must be used. Those of the defaults need not be.
    """
    rest = {name: value for name, value in raw.items() if name not in ("prompt_file", "vars")}
    if "prompt_file" not in raw:
        unused = Problem.at("vars", "has no effect without prompt_file")
        return rest, [unused] if "vars" in raw else []
    if "prompt" in raw or "messages" in raw:
        # The rest of the job is still checked, as if it had only its prompt.
        return rest, [Problem.at("prompt_file", "give either a prompt or a prompt_file")]
    text, problems = _fill(raw["prompt_file"], raw.get("vars", {}), own_vars, folder)
    return {**rest, "prompt": text or "-"}, problems


def _fill(name: Any, variables: Any, own: Any, folder: Path) -> tuple[str, list[Problem]]:
    if not isinstance(name, str) or not name:
        message = "must be the path of a text file"
        return "", [Problem.at("prompt_file", message, "wrong_type")]
    if not isinstance(variables, dict):
        return "", [Problem.at("vars", "must be a mapping of names to values", "wrong_type")]
    try:
        text = read_text(str(folder / name), name)
    except BadInput as error:
        return "", [Problem.at("prompt_file", str(problem)) for problem in error.problems]
    if not text.strip():
        return "", [Problem.at("prompt_file", f"{name}: is empty")]
    names = dict.fromkeys(_PLACEHOLDER.findall(text))
    problems = [
        Problem.at("vars", f"{name} asks for {{{{{missing}}}}}, which is not given", "missing")
        for missing in names
        if missing not in variables
    ]
    problems += [
        Problem(f"{name} has no {{{{{extra}}}}}", ("vars", extra), "unknown_field")
        for extra in (own if isinstance(own, dict) else ())
        if extra not in names
    ]
    problems += [
        Problem("must be text or a number", ("vars", key), "wrong_type")
        for key in names
        if key in variables and not isinstance(variables[key], str | int | float)
    ]
    if problems:
        return "", problems
    return _PLACEHOLDER.sub(lambda match: _as_text(variables[match[1]]), text), []


def _as_text(value: str | float) -> str:
    """Write a value as in the file: YAML's true is not Python's True."""
    return str(value).lower() if isinstance(value, bool) else str(value)
