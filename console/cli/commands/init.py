"""`mulligan init`: starter files, and schemas for editors."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from mulligan.console.cli.commands.schema import Kind, schema_for
from mulligan.console.cli.output import screen
from mulligan.console.jobfiles.starter_files import config_file, job_file
from mulligan.tasks.ports.errors import BadInput, MulliganError
from mulligan.workers.runners.local_state import model_path

_CONFIG, _JOBS = "mulligan.toml", "jobs.yaml"
#: The headers of the two files name this folder.
_SCHEMAS = ".mulligan"


def init(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="Target directory; created if missing.")
    ] = ".",
    force: Annotated[
        bool, typer.Option("--force", help="Replace mulligan.toml and jobs.yaml.")
    ] = False,
) -> None:
    """Write a starter mulligan.toml and jobs.yaml.

    Schemas for editors go into .mulligan.
    """
    target = Path(folder)
    local = _local_model()
    texts = {_CONFIG: config_file(local=local), _JOBS: job_file()}
    if not force:
        _refuse_existing(target)
    target.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")
    _write_schemas(target / _SCHEMAS)
    answered = "answered by the local model" if local else "scripted answers; see mulligan.toml"
    screen.say(f"wrote {target / _CONFIG}, {target / _JOBS} ({answered}) and schemas for editors")
    there = "" if target.resolve() == Path.cwd().resolve() else f"cd {shlex.quote(folder)} && "
    program = screen.program_name(target)
    screen.say(f"next: {there}{program} run {_JOBS}")
    screen.say(f"      {program} jobs show extract_person --diff")


def _refuse_existing(target: Path) -> None:
    """Raise BadInput if one of the files exists: they belong together."""
    if target.exists() and not target.is_dir():
        raise BadInput(f"{target}: is a file, not a directory")
    there = [target / name for name in (_CONFIG, _JOBS) if (target / name).exists()]
    if there:
        raise BadInput(
            *(f"{path}: already exists" for path in there),
            "nothing was written; choose another directory, or pass --force",
        )


def _local_model() -> bool:
    try:
        model_path()
    except MulliganError:
        return False
    return True


def _write_schemas(folder: Path) -> None:
    """Write the schemas each time, because they belong to the installed version."""
    folder.mkdir(exist_ok=True)
    kinds: tuple[Kind, ...] = ("job", "config")
    for kind in kinds:
        text = json.dumps(schema_for(kind), indent=2, ensure_ascii=False)
        (folder / f"{kind}.schema.json").write_text(f"{text}\n", encoding="utf-8")
