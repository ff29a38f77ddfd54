"""Problems: what is wrong with a document, where, and by which rule, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

#: From the top of a document to one of its values: ``("verifiers", 1, "id")``.
FieldPath = tuple[str | int, ...]
#: What kind of problem it is, for programs. The words are stable; messages are for people.
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
]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with what was given."""

    message: str
    #: The value that is wrong; empty for the whole document.
    path: FieldPath = ()
    code: ProblemCode = "invalid"
    #: The job's place, if several were given together.
    index: int | None = None

    @classmethod
    def at(cls, path: str | FieldPath, message: str, code: ProblemCode = "invalid") -> Problem:
        """A problem of one field. A text is a path of names: ``"workspace.path"``."""
        return cls(message, field_path(path), code)

    @property
    def field(self) -> str:
        """The path as people write it, within its own document: ``verifiers[1].id``."""
        return spell_path(self.path)

    def below(self, *steps: str | int) -> Problem:
        """The same problem of a document that has this one at these steps."""
        return replace(self, path=(*steps, *self.path))

    def of_job(self, index: int | None) -> Problem:
        """The same problem of one of several jobs; None: of the only one."""
        return replace(self, index=index)

    def __str__(self) -> str:
        path = self.path if self.index is None else ("jobs", self.index, *self.path)
        return f"{spell_path(path)}: {self.message}" if path else self.message


class FieldError(ValueError):
    """What a validator of a whole value raises about one of its fields."""

    def __init__(self, path: str | FieldPath, message: str) -> None:
        self.path = field_path(path)
        self.message = message
        super().__init__(f"{spell_path(self.path)}: {message}")


def field_path(path: str | FieldPath) -> FieldPath:
    """A path of names, written with dots, as its steps."""
    return tuple(path.split(".")) if isinstance(path, str) else path


def spell_path(path: Sequence[str | int]) -> str:
    """``verifiers[1].id``"""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")
