"""Read loops: loop.yaml with its spec files, templates, and documents that arrive over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import ValidationError

from mulligan.console.jobfiles.file_kinds import FileKind, refuse_other_kinds
from mulligan.console.jobfiles.job_file import JobSource, with_absolute_path
from mulligan.console.jobfiles.source_document import (
    STDIN,
    FileProblem,
    SourceDocument,
    is_quoted,
    read_document,
)
from mulligan.console.loopfiles.inspect_loop import LoopRules, Part, inspect_loop
from mulligan.console.loopfiles.migrations import Raw, migrate
from mulligan.console.loopfiles.references import References, read_parameters
from mulligan.policies.loops.spec import ItemSpec, LoopDocument, SpecDocument
from mulligan.policies.problem import MOST_FOUND, FieldPath, Problem, first_problems
from mulligan.policies.suggestions import did_you_mean, name_hint
from mulligan.policies.value import shortened
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.ports.errors import BadInput, refuse

LOOP_FILE = "loop.yaml"
#: The fields of a loop and its items in one document.
_DOCUMENT_FIELDS = ("version", "parameters", "loop", "items", "states")
#: Characters of a pattern that a problem quotes.
_LONGEST_PATTERN = 200
_NO_ITEMS = "name the files with the items, such as [specs/*.yaml]"


def read_loop(
    path: str,
    *,
    parameters: Mapping[str, Any],
    environment: Mapping[str, str] | None,
    rules: LoopRules,
) -> LoopDocument:
    """Read a loop from a file, or from loop.yaml in a folder (``-`` is stdin).

    Raises BadInput with the problems of all files.
    """
    loop, problems = inspect_file(path, parameters=parameters, environment=environment, rules=rules)
    refuse(first_problems(problems))
    assert loop is not None  # noqa: S101 - without a problem there is a loop
    return loop


def lint_loop(
    path: str,
    *,
    parameters: Mapping[str, Any],
    environment: Mapping[str, str] | None,
    rules: LoopRules,
) -> tuple[LoopDocument | None, list[Problem]]:
    """Return a loop, if it has no problems, and those of all its files with their lines."""
    loop, problems = inspect_file(path, parameters=parameters, environment=environment, rules=rules)
    return loop, first_problems(problems)


def read_template(document: Any, *, templates: Path | None, rules: LoopRules) -> LoopDocument:
    """Read a loop from the body of a request, or raise BadInput with its problems.

    The body is `{template: NAME, parameters: {…}}`, for NAME.yaml in the folder ``templates``, or
    the loop itself: `{loop: {…}, items: […]}`. It must not read the server's environment, nor files
    outside of the folder.
    """
    if isinstance(document, dict) and "template" in document:
        path, parameters = _template(document, templates)
        loop, problems = inspect_file(
            str(path), parameters=parameters, environment=None, rules=rules, within=path.parent
        )
        # Where the server keeps its templates does not concern the caller.
        refuse(first_problems(_below(each, path.parent) for each in problems))
    else:
        inline = _Document(document, lambda problem: problem, lambda _: False)
        loop, problems = _inspect(inline, {}, None, rules)
        refuse(first_problems(problems))
    assert loop is not None  # noqa: S101 - without a problem there is a loop
    return loop


@dataclass(frozen=True)
class SpecFile:
    """The items of a spec file."""

    items: tuple[ItemSpec, ...]
    _part: Part

    def place(self, problems: Iterable[Problem]) -> Iterator[Problem]:
        """Yield problems of its items with their file and line."""
        return self._part.place(*problems)


def read_specs(path: str, *, environment: Mapping[str, str] | None) -> SpecFile:
    """Read a spec file to add its items. Raises BadInput with the problems of their form."""
    document = _Document.of(path, "spec")
    raw, problems = _current(document, "spec", "a spec file is a mapping with `items:`")
    refuse(problems)
    references, _ = read_parameters(None, {}, environment)
    part, problems = _resolved(document, raw, references)
    refuse(first_problems(problems))
    assert part is not None  # noqa: S101 - without a problem there is a document
    try:
        spec = SpecDocument.model_validate(_with_absolute_items(part, document.folder).raw)
    except ValidationError as error:
        found = problems_of(error, SpecDocument, most=MOST_FOUND)
        refuse(first_problems(part.place(*found)))
        raise
    if spec.states:
        message = "only a new loop may have items that were done before"
        refuse(part.place(Problem.at("states", message, "not_allowed")))
    return SpecFile(spec.items, part)


def without_references(data: Raw) -> Raw:
    """Return the body of a request without references: it must not read the environment.

    Raises BadInput with the references.
    """
    inline = _Document(data, lambda problem: problem, lambda _: False)
    part, problems = _resolved(inline, data, References())
    refuse(first_problems(problems))
    assert part is not None  # noqa: S101 - without a problem there is a document
    resolved: Raw = part.raw
    return resolved


def _template(body: Raw, folder: Path | None) -> tuple[Path, Mapping[str, Any]]:
    name, parameters = body["template"], body.get("parameters") or {}
    problems = [
        Problem("there is no such field beside template", (str(other),), "unknown_field")
        for other in body
        if other not in ("template", "parameters")
    ]
    if not isinstance(parameters, dict):
        message = "must be a mapping of names to values"
        problems.append(Problem.at("parameters", message, "wrong_type"))
    known = {each.stem: each for each in sorted(folder.glob("*.yaml"))} if folder else {}
    if not isinstance(name, str):
        problems.append(Problem.at("template", "must be the name of a template", "wrong_type"))
    elif name not in known:
        hint = name_hint(name, known) if folder else "; set loop_templates in mulligan.toml"
        message = f"there is no template {name!r}{hint}"
        problems.append(Problem.at("template", message, "unknown_name"))
    refuse(first_problems(problems))
    return known[name], parameters


def _below(problem: Problem, folder: Path) -> Problem:
    if not isinstance(problem, FileProblem):
        return problem
    file, message = (text.replace(f"{folder}/", "") for text in (problem.file, problem.message))
    return replace(problem, file=file, message=message)


# -- documents -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Document:
    """A document with how to place its problems."""

    data: Any
    locate: Callable[[Problem], Problem]
    quoted: Callable[[FieldPath], bool]
    #: The folder to which its paths are relative; None over HTTP.
    folder: Path | None = None
    #: The file; None over HTTP and for stdin.
    file: Path | None = None
    #: The folder of all files that it may name; None for any.
    within: Path | None = None

    @classmethod
    def of(cls, path: str, kind: FileKind) -> _Document:
        """Read a file. Raises BadInput."""
        source = refuse_other_kinds(read_document(path), kind)
        return cls(
            source.data,
            JobSource(source, ()).place,
            _quoted_in(source),
            folder=source.folder,
            file=None if path == STDIN else Path(path),
        )


def _quoted_in(source: SourceDocument) -> Callable[[FieldPath], bool]:
    # JSON quotes every text.
    json = source.name.endswith(".json")
    return lambda path: not json and is_quoted(source.root, path)


def inspect_file(
    path: str,
    *,
    parameters: Mapping[str, Any],
    environment: Mapping[str, str] | None,
    rules: LoopRules,
    within: Path | None = None,
) -> tuple[LoopDocument | None, list[Problem]]:
    """Return the loop of a file or a folder, if it has no problems, and all its problems."""
    folder = path != STDIN and Path(path).is_dir()
    file = str(Path(path) / LOOP_FILE) if folder else path
    try:
        document = replace(_Document.of(file, "loop"), within=within)
    except BadInput as error:
        return None, list(error.problems)
    loop, problems = _inspect(document, parameters, environment, rules)
    return loop, _in_order(problems, first=file)


def _in_order(problems: Sequence[Problem], *, first: str) -> list[Problem]:
    """Sort problems by file and line, those of the loop's own file first."""

    def place(problem: Problem) -> tuple[bool, str, int]:
        if not isinstance(problem, FileProblem):
            return False, "", 0
        return problem.file != first, problem.file, problem.line or 0

    return sorted(problems, key=place)


def _inspect(
    document: _Document,
    parameters: Mapping[str, Any],
    environment: Mapping[str, str] | None,
    rules: LoopRules,
) -> tuple[LoopDocument | None, list[Problem]]:
    raw, problems = _current(document, "loop", "a loop is a mapping with `name:` and `specs:`")
    if problems:
        return None, problems
    declared = raw.pop("parameters", None)
    references, wrong = read_parameters(declared, parameters, environment)
    problems += map(document.locate, wrong)
    top, wrong = _resolved(document, raw, references)
    problems += wrong
    if top is None:
        return None, problems
    config, parts, wrong = _parts(document, top)
    problems += wrong
    for found in _spec_files(document, config):
        if isinstance(found, Problem):
            problems.append(found)
            continue
        raw, wrong = _current(found, "spec", "a spec file is a mapping with `items:`")
        if not wrong:
            part, wrong = _resolved(found, raw, references)
            if part is None:
                return None, [*problems, *wrong]
            parts.append(_with_absolute_items(part, found.folder))
        problems += wrong
        if len(problems) >= MOST_FOUND:
            return None, problems
    if not parts and not problems and not _patterns(config.raw):
        problems += config.place(Problem.at("specs", _NO_ITEMS, "missing"))
    loop, wrong = inspect_loop(config, parts, rules)
    problems += wrong
    return (None if problems else loop), problems


def _current(
    document: _Document, kind: Literal["loop", "spec"], shape: str
) -> tuple[Raw, list[Problem]]:
    """Return a document in the current version, or the problem that prevents it."""
    if not isinstance(document.data, dict):
        return {}, [document.locate(Problem(shape, code="wrong_type"))]
    raw, problems = migrate(dict(document.data), kind)
    return raw, [*map(document.locate, problems)]


def _resolved(
    document: _Document, raw: Raw, references: References
) -> tuple[Part | None, list[Problem]]:
    """Return a document without references, and the problems of those it had.

    None: it is too large, or has too many problems to go on.
    """
    try:
        found = references.resolve(raw, quoted=document.quoted)
    except BadInput as error:
        return None, [*map(document.locate, error.problems)]
    part = Part(raw=found.data, locate=document.locate, unresolved=found.unresolved)
    return part, [*map(document.locate, found.problems)]


def _parts(document: _Document, top: Part) -> tuple[Part, list[Part], list[Problem]]:
    """Return the loop of a document, the items in it, if any, and the problems of its form."""
    if "loop" not in top.raw and "items" not in top.raw:
        return _with_absolute(top, document.folder), [], []
    unknown = [name for name in top.raw if name not in _DOCUMENT_FIELDS]
    problems = [
        Problem(
            f"there is no such field beside `loop:`{did_you_mean(name, _DOCUMENT_FIELDS)}",
            (name,),
            "unknown_field",
        )
        for name in unknown[:MOST_FOUND]
    ]
    if "loop" not in top.raw:
        problems.append(Problem.at("loop", "is required beside `items:`", "missing"))
    loop = replace(top, raw=top.raw.get("loop", {"name": "loop"}), path=("loop",))
    names = ("version", "items", "states")
    inside = {name: top.raw[name] for name in names if name in top.raw}
    items = [replace(top, raw=inside)] if "items" in inside else []
    if document.folder is None and _patterns(loop.raw):
        message = "files are read only by the command line: put the items under `items:`"
        problems.append(Problem.at("loop.specs", message, "not_allowed"))
    return (
        _with_absolute(loop, document.folder),
        [_with_absolute_items(each, document.folder) for each in items],
        [*top.place(*problems)],
    )


def _with_absolute(part: Part, folder: Path | None) -> Part:
    if folder is None or not isinstance(part.raw, dict):
        return part
    return replace(part, raw=with_absolute_path(part.raw, folder))


def _with_absolute_items(part: Part, folder: Path | None) -> Part:
    items = part.raw.get("items")
    if folder is None or not isinstance(items, list):
        return part
    absolute = [
        with_absolute_path(each, folder) if isinstance(each, dict) else each for each in items
    ]
    return replace(part, raw={**part.raw, "items": absolute})


# -- spec files ------------------------------------------------------------------------------------


def _patterns(loop: Any) -> list[Any]:
    """Return the patterns of a loop; those that are no texts are problems of its form."""
    patterns = loop.get("specs") if isinstance(loop, dict) else None
    return patterns if isinstance(patterns, list) else []


def _spec_files(document: _Document, config: Part) -> Iterator[_Document | Problem]:
    """Yield the spec files of a loop, and the problems of patterns and of unreadable files."""
    if document.folder is None:
        return
    base = document.file.parent if document.file else document.folder
    seen = {document.file}
    for index, pattern in enumerate(_patterns(config.raw)):
        if not isinstance(pattern, str):
            continue
        quoted = repr(shortened(pattern, _LONGEST_PATTERN))
        try:
            found = _matching(pattern, base, document.within)
        except (ValueError, NotImplementedError, OSError, RecursionError):
            message = f"{quoted} is not a pattern of files relative to this one"
            yield from config.place(Problem(message, ("specs", index)))
            continue
        if not found:
            message = f"no file matches {quoted}"
            yield from config.place(Problem(message, ("specs", index)))
        for file in found:
            if file not in seen:
                seen.add(file)
                yield from _read_spec(file)


def _matching(pattern: str, base: Path, within: Path | None) -> list[Path]:
    """Return the files that a pattern matches, those outside of ``within`` left out.

    Raises ValueError and other errors for what is no pattern.
    """
    parts = PurePath(pattern).parts
    if not parts:  # "." or "./", for which glob has no error of its own
        raise ValueError(pattern)
    if within is not None and ".." in parts:  # a search elsewhere would take long
        return []
    found = sorted(each for each in base.glob(pattern) if each.is_file())
    if within is None:
        return found
    allowed = within.resolve()
    return [each for each in found if each.resolve().is_relative_to(allowed)]


def _read_spec(file: Path) -> Iterator[_Document | Problem]:
    try:
        yield _Document.of(str(file), "spec")
    except BadInput as error:
        yield from error.problems
