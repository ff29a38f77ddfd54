"""The kinds of files that commands read, to say which command reads a file of another kind."""

from __future__ import annotations

from typing import Literal

from mulligan.console.jobfiles.source_document import STDIN, FileProblem, SourceDocument
from mulligan.tasks.ports.errors import BadInput

FileKind = Literal["job", "loop", "spec"]
#: Fields that only files of one kind have. The first kind that fits counts: a template of a loop
#: has its items in the same file.
_FIELDS: dict[FileKind, frozenset[str]] = {
    "loop": frozenset({"loop", "specs", "specs_dir", "test_state_file"}),
    "spec": frozenset({"items"}),
    "job": frozenset({"jobs", "task_type", "prompt", "messages", "prompt_file"}),
}
_COMMANDS: dict[FileKind, str] = {
    "job": "run it with `mulligan run {name}`",
    "loop": "create the loop with `mulligan loops create {name}`",
    "spec": "name it under `specs:` of a loop.yaml, or add its items with"
    " `mulligan loops add LOOP {name}`",
}


def refuse_other_kinds(document: SourceDocument, kind: FileKind) -> SourceDocument:
    """Return the document. Raises BadInput if it is clearly a file of another kind."""
    names = document.data.keys() if isinstance(document.data, dict) else set()
    found = next((each for each, fields in _FIELDS.items() if fields & names), kind)
    if found == kind:
        return document
    advice = _COMMANDS[found].format(name=document.name.replace("<stdin>", STDIN))
    raise BadInput(FileProblem(f"this is a {found} file: {advice}", file=document.name))
