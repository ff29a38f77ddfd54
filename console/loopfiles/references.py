"""References in loop files: `${NAME}` is a parameter, `${env:NAME}` a variable, `$${` a text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError, field_validator, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from mulligan.policies.jobs.job import HALF_A_PAIR, Text, joined_surrogates
from mulligan.policies.problem import MOST_FOUND, FieldPath, Problem
from mulligan.policies.suggestions import name_hint
from mulligan.policies.value import Value
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.yaml_expansion import MAX_VALUES

Scalar = str | int | float | bool

#: A reference ends before the next one begins: otherwise each `${` without an end would be searched
#: for up to the end of the text.
_TOKEN = re.compile(r"\$\$\{|\$\{((?:[^}$]++|\$(?!\{))*+)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_VARIABLE = re.compile(r"env:([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)
#: What YAML may read as a number or a boolean.
_NUMBER_OR_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE|[-+]?\.?\d[-+.\w]{0,40}")
_DEEPEST = 100
#: Problems of one text that are reported.
_MOST_IN_A_TEXT = 20
#: Unknown names for which the nearest known one is searched, which takes long.
_MOST_HINTS = 5
_MOST_PARAMETERS = 200
#: Characters that the references of one document may stand for: as many as a loop may have.
_MOST_EXPANDED = 20_000_000
#: The value of a parameter that is required and not given. That is reported once, not at each use.
_MISSING = object()


class Parameter(Value):
    """A parameter of a loop file."""

    description: Text = ""
    default: Any = None
    #: Whether the loop needs a value; by default if there is no default. Else it is an empty text.
    required: bool | None = None

    @field_validator("default")
    @classmethod
    def _is_scalar(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, Scalar):
            raise ValueError("must be text, a number or a boolean")
        return value

    @model_validator(mode="after")
    def _one_of(self) -> Parameter:
        if self.required and self.default is not None:
            raise ValueError("give it a default, or make it required")
        return self


def escape(text: str) -> str:
    """Return a text that resolves to ``text``."""
    return text.replace("${", "$${")


@dataclass(frozen=True)
class Resolved:
    """Data without references, and what could not be resolved."""

    data: Any
    problems: list[Problem] = field(default_factory=list)
    #: The places of references without a value: what follows from them is no other problem.
    unresolved: frozenset[FieldPath] = frozenset()


@dataclass(frozen=True)
class References:
    """The values that references have."""

    #: The declared parameters.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: The variables; None where a document must not read any.
    environment: Mapping[str, str] | None = None

    def resolve(self, data: Any, *, quoted: Callable[[FieldPath], bool]) -> Resolved:
        """Replace the references in every text.

        A text that is one reference becomes a number or a boolean, as if its value stood there,
        unless it is ``quoted``. Raises BadInput if the data is too large or has too many problems.
        """
        walk = _Walk(self, quoted)
        resolved = walk.value(data, ())
        return Resolved(resolved, walk.problems, frozenset(walk.unresolved))

    def find(self, name: str, *, hint: bool = True) -> Any:
        """Return the value of a reference. Raises ValueError with what is wrong."""
        variable = _VARIABLE.fullmatch(name)
        if variable is not None:
            return self._variable(*variable.groups())
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"${{{name}}} is not a reference: use ${{NAME}}, ${{env:NAME}} or"
                f" ${{env:NAME:-default}}, and $${{ for the text itself"
            )
        if name not in self.parameters:
            nearest = name_hint(name, self.parameters) if hint else ""
            raise ValueError(
                f"there is no parameter {name!r}{nearest}. Declare it under `parameters:`, or write"
                f" $${{{name}}} for the text itself"
            )
        return self.parameters[name]

    def _variable(self, name: str, default: str | None) -> str:
        if self.environment is None:
            raise ValueError(
                f"${{env:{name}}} is only for files of the command line: use a parameter"
            )
        value = self.environment.get(name) or default
        if value is None and name in self.environment:
            return ""
        if value is None:
            raise ValueError(
                f"the variable {name} is not set; ${{env:{name}:-default}} has a default"
            )
        return value


@dataclass
class _Walk:
    references: References
    quoted: Callable[[FieldPath], bool]
    problems: list[Problem] = field(default_factory=list)
    unresolved: set[FieldPath] = field(default_factory=set)
    #: The values that were read, and the characters that references stand for.
    values: int = 0
    expanded: int = 0

    def value(self, data: Any, path: FieldPath) -> Any:
        self.values += 1
        if self.values > MAX_VALUES:
            raise BadInput(Problem(f"has more than {MAX_VALUES:,} values", code="too_long"))
        if len(path) > _DEEPEST:
            self.report(Problem("is nested too deeply", path[:3]))
            return None
        if isinstance(data, dict):
            return {
                self.sound(str(key), path): self.value(each, (*path, joined_surrogates(str(key))))
                for key, each in data.items()
            }
        if isinstance(data, list | tuple):
            return [self.value(each, (*path, index)) for index, each in enumerate(data)]
        return self.text(self.sound(data, path), path) if isinstance(data, str) else data

    def report(self, problem: Problem) -> None:
        self.problems.append(problem)
        if len(self.problems) == MOST_FOUND:
            raise BadInput(*self.problems)

    def sound(self, text: str, path: FieldPath) -> str:
        joined = joined_surrogates(text)
        if joined != text:
            self.report(Problem(HALF_A_PAIR, path))
        return joined

    def text(self, text: str, path: FieldPath) -> Any:
        whole = _TOKEN.fullmatch(text)
        if whole is not None and whole[1] is not None:
            found = self.look_up(whole[1], path)
            written = self.written(found, path)
            return _typed(found) if not self.quoted(path) else written
        parts: list[str] = []
        end, before = 0, len(self.problems)
        for match in _TOKEN.finditer(text):
            parts += (text[end : match.start()], self.part(match, path))
            end = match.end()
            if len(self.problems) - before == _MOST_IN_A_TEXT:
                self.unresolved.add(path)
                return text
        return "".join((*parts, text[end:]))

    def part(self, match: re.Match[str], path: FieldPath) -> str:
        if match[0] == "$${":
            return "${"
        if match[1] is None:
            self.report(Problem("${ has no end: write ${NAME}, or $${ for the text itself", path))
            return match[0]
        return self.written(self.look_up(match[1], path), path)

    def look_up(self, name: str, path: FieldPath) -> Any:
        try:
            found = self.references.find(name, hint=len(self.problems) < _MOST_HINTS)
        except ValueError as error:
            self.report(Problem(str(error), path, "unknown_name"))
            found = _MISSING
        if found is _MISSING:
            self.unresolved.add(path)
            return f"${{{name}}}"
        return found

    def written(self, value: Any, path: FieldPath) -> str:
        """Return a value as text, unless the references stand for too much: many short ones may."""
        written = _as_text(value)
        self.expanded += len(written)
        if self.expanded > _MOST_EXPANDED:
            message = f"the references stand for more than {_MOST_EXPANDED:,} characters"
            raise BadInput(Problem(message, path, "too_long"))
        return written


def _typed(value: Any) -> Any:
    """Read a text as YAML reads it, if it is a number or a boolean."""
    if not isinstance(value, str) or not _NUMBER_OR_BOOLEAN.fullmatch(value):
        return value
    try:
        read = YAML(typ="safe", pure=True).load(value)
    except (YAMLError, ValueError):  # 0x_ looks like a number
        return value
    return read if isinstance(read, int | float) and math.isfinite(read) else value


def _as_text(value: Any) -> str:
    """Write a value as YAML does: its true is not Python's True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_parameters(
    declared: Any, given: Mapping[str, Any], environment: Mapping[str, str] | None
) -> tuple[References, list[Problem]]:
    """Return the references of a document, and the problems of its parameters."""
    if declared is not None and not isinstance(declared, dict):
        message = "must be a mapping, such as {folder: src}"
        return References({}, environment), [Problem.at("parameters", message, "wrong_type")]
    if declared is not None and len(declared) > _MOST_PARAMETERS:
        message = f"there may be {_MOST_PARAMETERS} parameters, not {len(declared)}"
        return References({}, environment), [Problem.at("parameters", message, "too_long")]
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, raw in (declared or {}).items():
        value, wrong = _read_parameter(name, raw, given, environment)
        values[name] = value
        problems += [each.below("parameters", name) for each in wrong]
    unknown = [name for name in given if name not in values]
    for index, name in enumerate(unknown[:MOST_FOUND]):
        hint = name_hint(name, values) if index < _MOST_HINTS else ""
        message = f"there is no such parameter{hint}"
        problems.append(Problem(message, ("parameters", name), "unknown_name"))
    return References(values, environment), problems


def _read_parameter(
    name: str, raw: Any, given: Mapping[str, Any], environment: Mapping[str, str] | None
) -> tuple[Any, list[Problem]]:
    if not _NAME.fullmatch(name):
        message = "may contain only letters, digits, _ and -, and starts with a letter or _"
        return _MISSING, [Problem(message)]
    try:
        own = References({}, environment).resolve(raw, quoted=lambda _: False)
    except BadInput as error:
        return _MISSING, list(error.problems)
    try:
        short = {} if isinstance(own.data, dict) else {"default": own.data}
        parameter = Parameter.model_validate(short or own.data)
    except ValidationError as error:
        return _MISSING, problems_of(error, Parameter, list_known=True, most=MOST_FOUND)
    if name in given:
        if not isinstance(given[name], Scalar):
            return _MISSING, [Problem("must be text, a number or a boolean", code="wrong_type")]
        return given[name], []
    if own.problems:
        return _MISSING, own.problems
    if parameter.default is not None:
        return parameter.default, []
    if parameter.required is False:
        return "", []
    about = f" ({parameter.description})" if parameter.description else ""
    return _MISSING, [Problem(f"a value is required{about}", code="missing")]
