"""Import a `loop_config` and its `test-state.json`: write them as loop.yaml and a spec file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mulligan.console.jobfiles.job_file import JobSource
from mulligan.console.jobfiles.source_document import SourceDocument, read_document
from mulligan.console.loopfiles.loop_file import LOOP_FILE
from mulligan.console.loopfiles.migrations import MIGRATIONS, Raw, old_config
from mulligan.console.loopfiles.yaml_files import SPECS, write_files, yaml_text
from mulligan.tasks.ports.errors import BadInput

_OLDEST = MIGRATIONS[0]


def import_seed(file: str, to: Path) -> list[Path]:
    """Write what a configuration or a state file says, and return the new files.

    ``file`` is a `loop_config`, which names its state file, or a state file alone. What it does not
    say is left out: lint_loop names it. Raises BadInput; nothing is overwritten.
    """
    first = _read(file)
    if "tests" in first.data:
        loop: Raw = {"version": 1, "name": first.folder.name}
        tests: SourceDocument | None = first
    else:
        loop = _OLDEST.loop(first.data)
        tests = _state_file(first)
    written = {
        to / LOOP_FILE: yaml_text({**loop, "specs": [f"{SPECS}/*.yaml"]}, _about(first, loop))
    }
    if tests is not None:
        spec = _OLDEST.spec(tests.data)
        name = Path(tests.name).stem
        written[to / SPECS / f"{name}.yaml"] = yaml_text(spec, _about_tests(tests, spec))
    return write_files(written)


def check_seed(file: str) -> None:
    """Raise BadInput for a file that is no loop of any kind."""
    try:
        _read(file)
    except BadInput as error:
        raise BadInput(f"this is no exported loop and no checklist (.md): {error}") from None


def _read(file: str) -> SourceDocument:
    document = read_document(file)
    data = document.data
    known = ("loop_config", "specs_dir", "test_state_file", "tests")
    if not isinstance(data, dict) or not any(name in data for name in known):
        message = "is neither a loop_config (test_state_file) nor a test-state.json (tests)"
        raise JobSource(document, ()).refuse("", message)
    return document


def _state_file(config: SourceDocument) -> SourceDocument | None:
    """Return the state file that a configuration names; None if it names none.

    The path may be that of another host: then the file is beside the configuration.
    """
    name = old_config(config.data).get("test_state_file")
    if not isinstance(name, str) or not name:
        return None
    folder = Path(config.name).parent
    beside = folder / Path(name).name
    return _read(str(beside if beside.is_file() else folder / name))


# -- text ------------------------------------------------------------------------------------------


def _about(source: SourceDocument, loop: Raw) -> Iterator[str]:
    yield f"Imported from {Path(source.name).name}."
    folder = old_config(source.data).get("specs_dir")
    if folder is not None:
        yield f"Its specs_dir, {folder}, has texts for people: copy what belongs in prompts."
    if "runner" in loop:
        yield "The runner was the model: name a profile of mulligan.toml."
    yield "`mulligan loops lint` names what is missing."


def _about_tests(source: SourceDocument, spec: Raw) -> Iterator[str]:
    yield f"Imported from {Path(source.name).name}: {len(spec['items'])} tests."
    if "states" in spec:
        yield "`states` has those that need not run again."
    if any("verifiers" not in item for item in spec["items"]):
        yield "The source does not say how a test is verified: give each item `verifiers`."
