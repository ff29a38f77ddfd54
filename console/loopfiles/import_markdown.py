"""Import a Markdown checklist: write it as loop.yaml and a spec file for each of its groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mulligan.console.jobfiles.source_document import STDIN, FileProblem, read_text
from mulligan.console.loopfiles.loop_file import LOOP_FILE
from mulligan.console.loopfiles.migrations import Raw, escaped
from mulligan.console.loopfiles.read_markdown import read_markdown
from mulligan.console.loopfiles.yaml_files import SPECS, write_files, yaml_text
from mulligan.policies.loops.draft import slug
from mulligan.tasks.ports.errors import BadInput

SUFFIXES = frozenset({".md", ".markdown"})


def import_markdown(file: str, to: Path) -> tuple[list[Path], list[str]]:
    """Write a checklist as a loop. Return the new files, and what was derived or left out.

    Raises BadInput; nothing is overwritten.
    """
    name = "<stdin>" if file == STDIN else file
    try:
        found = read_markdown(read_text(file, name))
    except BadInput as error:
        problems = (FileProblem(each.message, file=name) for each in error.problems)
        raise BadInput(*problems) from None
    called = slug(found.name or Path(file).stem, "checklist")
    loop: Raw = {"version": 1, "name": called, "specs": [f"{SPECS}/*.yaml"]}
    texts = {to / LOOP_FILE: yaml_text(loop, _about(Path(name).name))}
    specs = [*found.specs()]
    for number, (title, spec) in enumerate(specs):
        # Spec files are read in the order of their names.
        stem = f"{number:04}-{slug(title or called)}" if len(specs) > 1 else called
        texts[to / SPECS / f"{stem}.yaml"] = yaml_text(escaped(spec), [title] if title else [])
    return write_files(texts), [f"{name}: {each}" for each in found.notes]


def _about(name: str) -> Iterator[str]:
    yield f"Imported from {name}. Add the runner, and the repository or the workspace."
    yield "`mulligan loops lint` names what is missing."
