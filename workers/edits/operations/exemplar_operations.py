"""The operation on few-shot exemplars: a list in the agent's table, or in a file that it names.

The payload has at least one of

    replace   {at: 1, with: …} or a list of them
    remove    a position from 0, a whole exemplar, or a list of these
    add       an exemplar, or a list of them, put at the end

Positions are those of the list before the edit. An exemplar that is missing or named twice is
refused. An exemplar is a text or a table; it must have the shape of an existing one
(``retype: true`` allows another). The file is JSON, JSON Lines, YAML or TOML: a list, or a table
with ``exemplars``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import Field, field_validator, model_validator

from mulligan.policies.edits.edit import EditOp
from mulligan.policies.suggestions import name_hint
from mulligan.policies.value import Json
from mulligan.tasks.ports.appliers import EditRefused, FileChange
from mulligan.workers.edits.formats.json_file import JsonLinesFile
from mulligan.workers.edits.formats.structured_file import StructuredFile, same
from mulligan.workers.edits.operations.config_operations import ConfigOp, Name, Payload
from mulligan.workers.edits.operations.config_tree import FORMATS, ConfigPlace, ConfigTree
from mulligan.workers.edits.operations.prompt_operations import named_file

_FORMATS: dict[str, type[StructuredFile]] = {
    **FORMATS,
    ".jsonl": JsonLinesFile,
    ".ndjson": JsonLinesFile,
}
Exemplar = str | dict[str, Json]
HAS_EXEMPLARS = "its exemplars are these"


class Replacement(Payload):
    at: int = Field(ge=0)
    with_: Exemplar = Field(alias="with")


class ExemplarsPayload(Payload):
    agent: Name
    replace: tuple[Replacement, ...] = ()
    remove: tuple[int | Exemplar, ...] = ()
    add: tuple[Exemplar, ...] = ()
    #: Allow new exemplars of another shape.
    retype: bool = False

    @field_validator("replace", "remove", "add", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list | tuple) else (value,)

    @model_validator(mode="after")
    def _check(self) -> ExemplarsPayload:
        if not (self.replace or self.remove or self.add):
            raise ValueError("give add, remove or replace")
        return self


def _edit(payload: ExemplarsPayload, tree: ConfigTree) -> list[FileChange]:
    agent = tree.table("agents", payload.agent)
    place = _find_exemplars(tree, agent)
    if place is None:
        if payload.remove or payload.replace:
            raise EditRefused(f"{agent.label}: has no exemplars to remove or replace")
        where = (*agent.where, "exemplars")
        return agent.changed(agent.document.insert(where, list(payload.add)))
    current: list[Any] = place.value
    if not payload.retype:
        _check_shapes(current, payload, place)
    removed = _removed_positions(current, payload.remove, place)
    replacements = _replacements(current, payload.replace, removed, place)
    document = place.document
    for at, exemplar in replacements.items():
        if not same(current[at], exemplar):
            document = document.set((*place.where, at), exemplar)
    kept = [item for at, item in enumerate(document.at(place.where)) if at not in removed]
    for exemplar in payload.add:
        if not any(same(exemplar, item) for item in kept):
            document = document.append(place.where, exemplar)
            kept.append(exemplar)
    # Removing comes last, from the end: positions stay valid, and the list is never empty between
    # two steps.
    for at in sorted(removed, reverse=True):
        document = document.remove(place.where, at)
    note = HAS_EXEMPLARS if document is place.document else ""
    return place.changed(document, note)


def _find_exemplars(tree: ConfigTree, agent: ConfigPlace) -> ConfigPlace | None:
    """Return the place of an agent's exemplars, or None if it has none."""
    inline, named = (agent.value.get(key) for key in ("exemplars", "exemplars_file"))
    if inline is not None and named is not None:
        raise EditRefused(f"{agent.label}: has exemplars and exemplars_file; keep one")
    place: ConfigPlace | None = None
    if inline is not None:
        place = agent.inside("exemplars")
    elif named is not None:
        place = tree.document(named_file(tree, agent, "exemplars_file"), _FORMATS)
        if place is not None and isinstance(place.value, dict) and "exemplars" in place.value:
            place = place.inside("exemplars")
    if place is not None and not isinstance(place.value, list):
        raise EditRefused(f"{place.label}: is not a list of exemplars")
    return place


def _removed_positions(
    current: Sequence[Any], remove: Sequence[int | Exemplar], place: ConfigPlace
) -> set[int]:
    found: set[int] = set()
    for one in remove:
        at = one if isinstance(one, int) else _find_position(current, one, place)
        _check_position(at, current, place)
        if at in found:
            raise EditRefused(f"{place.label}: the exemplar {at} is named twice")
        found.add(at)
    return found


def _find_position(current: Sequence[Any], exemplar: Exemplar, place: ConfigPlace) -> int:
    hits = [at for at, item in enumerate(current) if same(item, exemplar)]
    if len(hits) > 1:
        raise EditRefused(f"{place.label}: has this exemplar {len(hits)} times; give positions")
    if not hits:
        raise EditRefused(
            f"{place.label}: has no exemplar {_text(exemplar)}"
            f"{name_hint(_text(exemplar), [_text(item) for item in current])}"
        )
    return hits[0]


def _replacements(
    current: Sequence[Any], replace: Sequence[Replacement], removed: set[int], place: ConfigPlace
) -> dict[int, Exemplar]:
    found: dict[int, Exemplar] = {}
    for one in replace:
        _check_position(one.at, current, place)
        if one.at in found or one.at in removed:
            raise EditRefused(f"{place.label}: the exemplar {one.at} is named twice")
        found[one.at] = one.with_
    return found


def _check_position(at: int, current: Sequence[Any], place: ConfigPlace) -> None:
    if not 0 <= at < len(current):
        known = f"it has 0 to {len(current) - 1}" if current else "it has none"
        raise EditRefused(f"{place.label}: has no exemplar {at}; {known}")


def _check_shapes(current: Sequence[Any], payload: ExemplarsPayload, place: ConfigPlace) -> None:
    """Refuse a new exemplar unless it has the shape of an existing one."""
    shapes = [_shape(item) for item in current]
    for new in (*payload.add, *(one.with_ for one in payload.replace)):
        if shapes and _shape(new) not in shapes:
            raise EditRefused(
                f"{place.label}: the exemplars are {shapes[0]}, but this is one of {_shape(new)}:"
                f" {_text(new)} (retype: true allows it)"
            )


def _shape(exemplar: Any) -> str:
    """Describe exemplars like this one: ``texts`` or ``tables of answer, question``."""
    if not isinstance(exemplar, dict):
        return "texts"
    return f"tables of {', '.join(sorted(map(str, exemplar)))}"


def _text(exemplar: Any) -> str:
    text = json.dumps(exemplar, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else text[:117] + "…"


EDIT_FEW_SHOT_EXEMPLARS = ConfigOp(
    op=EditOp.EDIT_FEW_SHOT_EXEMPLARS,
    payload=ExemplarsPayload,
    section="agents",
    named_by="agent",
    change=_edit,
)
#: Every operation of this module.
APPLIERS = (EDIT_FEW_SHOT_EXEMPLARS,)
