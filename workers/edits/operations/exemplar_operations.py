"""Few-shot exemplars: a list in the agent's table, or in a file that it names.

The payload has at least one of

    replace   {at: 1, with: …} or a list of them
    remove    a position from 0, an exemplar as it is, or a list of these
    add       an exemplar, or a list of them, put at the end

Positions are those of the list as it is now; what is named twice, or not there, is refused. An
exemplar is a text or a table; it has to look like those that are there (``retype: true`` permits
another shape). The file is JSON, JSON Lines, YAML or TOML: a list, or a table with ``exemplars``.
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
HAS_THEM = "its exemplars are these"


class Replacement(Payload):
    at: int = Field(ge=0)
    with_: Exemplar = Field(alias="with")


class ExemplarsPayload(Payload):
    agent: Name
    replace: tuple[Replacement, ...] = ()
    remove: tuple[int | Exemplar, ...] = ()
    add: tuple[Exemplar, ...] = ()
    #: Let new exemplars have another shape than those that are there.
    retype: bool = False

    @field_validator("replace", "remove", "add", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        return tuple(given) if isinstance(given, list | tuple) else (given,)

    @model_validator(mode="after")
    def _something(self) -> ExemplarsPayload:
        if not (self.replace or self.remove or self.add):
            raise ValueError("give add, remove or replace")
        return self


def _edit(payload: ExemplarsPayload, tree: ConfigTree) -> list[FileChange]:
    agent = tree.table("agents", payload.agent)
    place = _list_of(tree, agent)
    if place is None:
        if payload.remove or payload.replace:
            raise EditRefused(f"{agent.shown}: has no exemplars to remove or replace")
        where = (*agent.where, "exemplars")
        return agent.changed(agent.document.insert(where, list(payload.add)))
    present: list[Any] = place.value
    if not payload.retype:
        _refuse_odd(present, payload, place)
    removed = _positions(present, payload.remove, place)
    replaced = _replaced(present, payload.replace, removed, place)
    document = place.document
    for at, exemplar in replaced.items():
        if not same(present[at], exemplar):
            document = document.set((*place.where, at), exemplar)
    stay = [there for at, there in enumerate(document.at(place.where)) if at not in removed]
    for exemplar in payload.add:
        if not any(same(exemplar, there) for there in stay):
            document = document.append(place.where, exemplar)
            stay.append(exemplar)
    # Last, from the end: so positions hold, and a list never runs empty between two steps.
    for at in sorted(removed, reverse=True):
        document = document.remove(place.where, at)
    note = HAS_THEM if document is place.document else ""
    return place.changed(document, note)


def _list_of(tree: ConfigTree, agent: ConfigPlace) -> ConfigPlace | None:
    """The place of an agent's exemplars, None if it has none."""
    inline, named = (agent.value.get(key) for key in ("exemplars", "exemplars_file"))
    if inline is not None and named is not None:
        raise EditRefused(f"{agent.shown}: has exemplars and exemplars_file; keep one")
    place: ConfigPlace | None = None
    if inline is not None:
        place = agent.inside("exemplars")
    elif named is not None:
        place = tree.document(named_file(tree, agent, "exemplars_file"), _FORMATS)
        if place is not None and isinstance(place.value, dict) and "exemplars" in place.value:
            place = place.inside("exemplars")
    if place is not None and not isinstance(place.value, list):
        raise EditRefused(f"{place.shown}: is not a list of exemplars")
    return place


def _positions(
    present: Sequence[Any], wanted: Sequence[int | Exemplar], place: ConfigPlace
) -> set[int]:
    """The positions that shall go."""
    found: set[int] = set()
    for one in wanted:
        hits = [one] if isinstance(one, int) else _hits(present, one, place)
        for at in hits:
            _refuse_beyond(at, present, place)
            if at in found:
                raise EditRefused(f"{place.shown}: the exemplar {at} is named twice")
            found.add(at)
    return found


def _hits(present: Sequence[Any], wanted: Exemplar, place: ConfigPlace) -> list[int]:
    hits = [at for at, there in enumerate(present) if same(there, wanted)]
    if len(hits) > 1:
        raise EditRefused(
            f"{place.shown}: this exemplar is there {len(hits)} times; give positions"
        )
    if not hits:
        raise EditRefused(
            f"{place.shown}: has no exemplar {_text(wanted)}"
            f"{name_hint(_text(wanted), map(_text, present))}"
        )
    return hits


def _replaced(
    present: Sequence[Any], wanted: Sequence[Replacement], removed: set[int], place: ConfigPlace
) -> dict[int, Exemplar]:
    found: dict[int, Exemplar] = {}
    for one in wanted:
        _refuse_beyond(one.at, present, place)
        if one.at in found or one.at in removed:
            raise EditRefused(f"{place.shown}: the exemplar {one.at} is named twice")
        found[one.at] = one.with_
    return found


def _refuse_beyond(at: int, present: Sequence[Any], place: ConfigPlace) -> None:
    if not 0 <= at < len(present):
        there = f"0 to {len(present) - 1}" if present else "none"
        raise EditRefused(f"{place.shown}: has no exemplar {at}; there are {there}")


def _refuse_odd(present: Sequence[Any], payload: ExemplarsPayload, place: ConfigPlace) -> None:
    """New exemplars have the shape of one that is there."""
    shapes = [_shape(there) for there in present]
    for new in (*payload.add, *(one.with_ for one in payload.replace)):
        if shapes and _shape(new) not in shapes:
            raise EditRefused(
                f"{place.shown}: exemplars are {_told(shapes[0])} there, and this is"
                f" {_told(_shape(new))}: {_text(new)} (retype: true permits it)"
            )


def _shape(exemplar: Any) -> tuple[str, ...] | None:
    """The names of a table, None for a text."""
    return tuple(sorted(map(str, exemplar))) if isinstance(exemplar, dict) else None


def _told(shape: tuple[str, ...] | None) -> str:
    return "texts" if shape is None else f"tables of {', '.join(shape)}"


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
