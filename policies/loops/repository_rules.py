"""What every prompt of an item in a repository says besides the item's own text."""

from __future__ import annotations

from mulligan.policies.jobs.job import Workspace

_IN_DIRECTORY = (
    "Do the task by changing files in the working directory. Only the files count, not what you"
    " say about them."
)
_WITH_EDITS = """\
Answer with a plan of edits as JSON, and nothing else. For example, a new file and a changed one:
```json
{"edits": [
  {"id": "e1", "op": "write_file", "target": "src/new.py", "payload": {"content": "all of it"}},
  {"id": "e2", "op": "search_replace", "target": "src/old.py",
   "payload": {"search": "a text that occurs once in the file", "replace": "the new text"}}
]}
```"""
_PROTECTED = (
    "Do not change or delete files that match one of these patterns: {patterns}. You may add test"
    " files, but no conftest.py and no settings of pytest."
)
#: Patterns that a prompt names.
_MOST_NAMED = 30


def repository_rules(space: Workspace) -> str:
    """Say how the work is handed in, and which files are protected."""
    patterns = [f"`{each}`" for each in space.protect[:_MOST_NAMED]]
    if more := len(space.protect) - len(patterns):
        patterns.append(f"and {more} more")
    how = _WITH_EDITS if space.edits else _IN_DIRECTORY
    protected = _PROTECTED.format(patterns=", ".join(patterns)) if patterns else ""
    return "\n\n".join(filter(None, (how, protected)))
