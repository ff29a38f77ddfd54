"""Problems of a document as values: what is wrong, where, and which rule is broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mulligan.policies.value import shortened

#: From the top of a document to one of its values: ``("verifiers", 1, "id")``.
FieldPath = tuple[str | int, ...]
#: The rule, for programs. Codes are stable; messages are for people.
ProblemCode = Literal[
    "invalid",
    "missing",
    "unknown_field",
    "unknown_name",
    "wrong_type",
    "too_short",
    "too_long",
    "not_allowed",
    "key_in_use",
    "session_exists",
    "too_costly",
]
#: Problems of one document that are reported; of the others only their number.
MOST_REPORTED = 200
#: A document with so many problems is not checked further: nobody corrects more of them at once.
MOST_FOUND = 1000
#: Characters of a message and of one step of a path. Both may quote a document.
_LONGEST_MESSAGE = 2000
_LONGEST_STEP = 200


@dataclass(frozen=True)
class Problem:
    """One problem of a document."""

    message: str
    #: The value that is wrong; empty for the whole document.
    path: FieldPath = ()
    code: ProblemCode = "invalid"
    #: The index of the job, if several were submitted together.
    index: int | None = None

    @classmethod
    def at(cls, path: str | FieldPath, message: str, code: ProblemCode = "invalid") -> Problem:
        """Return a problem of one field. A string is a dotted path: ``"workspace.path"``."""
        return cls(message, field_path(path), code)

    @property
    def field(self) -> str:
        """The path within its job, as people write it: ``verifiers[1].id``."""
        return spell_path(self.path)

    def below(self, *steps: str | int) -> Problem:
        """Return the same problem of a document that contains this one at these steps."""
        return replace(self, path=(*steps, *self.path))

    def of_job(self, index: int | None) -> Problem:
        """Return the same problem with the index of its job; None for a single job."""
        return replace(self, index=index)

    def __str__(self) -> str:
        path = self.path if self.index is None else ("jobs", self.index, *self.path)
        return f"{spell_path(path)}: {self.message}" if path else self.message


def distinct(problems: Iterable[Problem]) -> list[Problem]:
    """Return the first MOST_FOUND problems, each once. Whatever yields them does not go on."""
    found: dict[Problem, None] = {}
    for problem in problems:
        found[problem] = None
        if len(found) == MOST_FOUND:
            break
    return list(found)


def until_costly(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems up to the first that took its whole time to find, and look no further."""
    found = []
    for problem in problems:
        found.append(problem)
        if problem.code == "too_costly":
            break
    return found


def first_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that are worth reporting, and as the last one how many more there are."""
    found = distinct(problems)
    more = len(found) - MOST_REPORTED
    reported = [_short(each) for each in found[:MOST_REPORTED]]
    if more <= 0:
        return reported
    least = "at least " if len(found) == MOST_FOUND else ""
    return [*reported, Problem(f"and {least}{more} more problem{'s' if more > 1 else ''}")]


def _short(problem: Problem) -> Problem:
    steps = (shortened(each, _LONGEST_STEP) for each in problem.path)
    return replace(problem, message=shortened(problem.message, _LONGEST_MESSAGE), path=tuple(steps))


class FieldError(ValueError):
    """A validator of a whole value found a problem in one of its fields."""

    def __init__(self, path: str | FieldPath, message: str) -> None:
        self.path = field_path(path)
        self.message = message
        super().__init__(f"{spell_path(self.path)}: {message}")


def field_path(path: str | FieldPath) -> FieldPath:
    """Split a dotted path into its steps."""
    return tuple(path.split(".")) if isinstance(path, str) else path


def spell_path(path: Sequence[str | int]) -> str:
    """Write a path as people do: ``verifiers[1].id``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")
