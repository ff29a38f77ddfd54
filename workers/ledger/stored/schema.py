"""The schema of stored bodies: what a release can read, and what a body needs of its reader.

A body is written without the fields that have their default value. So a body that does not use
what a later schema added is readable by earlier releases, and needs no more than schema 1.
CONTRIBUTING.md, "Changing a stored body", says when to raise the number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True, kw_only=True)
class StoredSchema:
    """The schema of one release."""

    #: The newest schema that the release reads.
    number: int
    release: str
    #: What schemas after the first added → its schema: `Model.field`, `Model.field=value`, or
    #: `Model.name:option` for an option of a verifier or a runner.
    added: Mapping[str, int] = field(default_factory=dict)

    def needed_by(self, *bodies: BaseModel | None) -> int:
        """Return the lowest schema that can read all these bodies."""
        models = {place.partition(".")[0] for place in self.added}
        walked = (body for body in bodies if body is not None and models & _models_in(type(body)))
        return max((need for body in walked for need in self._needs(body, "")), default=1)

    def _needs(self, value: Any, place: str) -> Iterator[int]:
        match value:
            case BaseModel():
                model = type(value)
                for name, about in model.model_fields.items():
                    inner = getattr(value, name)
                    if inner != about.get_default(call_default_factory=True):
                        inner_place = f"{model.__name__}.{name}"
                        yield self.added.get(inner_place, 1)
                        yield from self._needs(inner, inner_place)
                for option in value.model_extra or ():
                    yield self.added.get(f"{model.__name__}.{_name_of(value)}:{option}", 1)
            case list() | tuple() | set() | frozenset():
                for each in value:
                    yield from self._needs(each, place)
            case str() | int() | float():
                yield self.added.get(f"{place}={value}", 1)


def _name_of(spec: BaseModel) -> str | None:
    """Return the id of a verifier or the kind of a runner."""
    return getattr(spec, "id", None) or getattr(spec, "kind", None)


@cache
def _models_in(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of a model and of every model and enum inside it."""
    return frozenset({model.__name__, *model.model_json_schema().get("$defs", ())})


def _release() -> str:
    try:
        return version("mulligan")
    except PackageNotFoundError:  # a source tree that is not installed
        return "unknown"


#: The schema of this release. tests/repository/schemas holds a fingerprint of each one.
CURRENT = StoredSchema(
    number=6,
    release=_release(),
    added={
        "Finding.example": 2,
        "Finding.count": 2,
        "VerifierSpec.text.match:choice": 2,
        "VerifierSpec.text.match:example": 2,
        "VerifierSpec.pytest.subprocess:show_source": 2,
        "Budget.money": 3,
        "RunnerSpec.command:provider": 3,
        "RunnerSpec.command:out_of_credits_exit_codes": 3,
        "VerificationResult.in_process": 4,
        "EditOutcome.reason=quarantined": 4,
        "EditDelta.reason=quarantined": 4,
        "RunnerSpec.command:network": 4,
        "RunnerSpec.command:read": 4,
        "RunnerSpec.command:home_files": 4,
        "VerifierSpec.command.subprocess:network": 4,
        "Workspace.git": 5,
        "Workspace.ref": 5,
        "Workspace.commit": 5,
        "Workspace.branch": 5,
        "Workspace.setup": 5,
        "Workspace.edits": 5,
        "Setup.run": 5,
        "Setup.cache": 5,
        "Setup.key": 5,
        "Setup.timeout": 5,
        "Output.commit": 5,
        "Output.base": 5,
        "Output.ended": 5,
        "Output.not_saved": 5,
        "Output.stuck": 5,
        "Output.start_over": 5,
        "AttemptPlan.kept": 5,
        "AttemptPlan.kept_score": 5,
        "AttemptPlan.conflicts": 5,
        "VerifierSpec.git.merge:acceptance": 5,
        "VerifierSpec.git.merge:guard": 5,
        "VerifierSpec.git.merge:already_done": 5,
        "VerifierSpec.git.merge:sync": 5,
        "VerifierSpec.git.merge:title": 5,
        "VerifierSpec.git.merge:check": 6,
        "RunnerSpec.command:format": 5,
        "RunnerSpec.command:nudge": 5,
        "VerifierSpec.loop.draft:loop": 6,
        "VerifierSpec.loop.draft:programs": 6,
        "VerifierSpec.loop.draft:max_items": 6,
        "VerifierSpec.loop.draft:seconds": 6,
        "VerifierSpec.loop.draft:auto_start": 6,
    },
)
