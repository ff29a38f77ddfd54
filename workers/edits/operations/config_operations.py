"""The operations on the configuration tree: models, routes, agents and their tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AliasChoices, ConfigDict, Field, field_validator, model_validator

from mulligan.policies.edits.edit import Edit, EditOp
from mulligan.policies.problem import Problem
from mulligan.policies.suggestions import name_hint
from mulligan.policies.value import Json, Value
from mulligan.tasks.ports.appliers import ApplyContext, EditRefused, FileChange, Validation
from mulligan.workers.edits.formats.structured_file import same
from mulligan.workers.edits.operations.config_tree import ConfigPlace, ConfigTree, Section
from mulligan.workers.edits.operations.payloads import payload_of, validated
from mulligan.workers.edits.tree import confined_paths as confine

#: Fields of an agent that are no parameters, and the operation for each. A laxer tier must not
#: reach what a stricter one guards.
FIELDS: dict[str, str] = {
    "class": EditOp.SET_AGENT_CLASS,
    "class_name": EditOp.SET_AGENT_CLASS,
    "tools": f"{EditOp.ADD_TOOL_TO_AGENT} or {EditOp.REMOVE_TOOL_FROM_AGENT}",
    "system_prompt": EditOp.REPLACE_SYSTEM_PROMPT,
    "system_prompt_file": EditOp.REPLACE_SYSTEM_PROMPT,
    "exemplars": EditOp.EDIT_FEW_SHOT_EXEMPLARS,
    "exemplars_file": EditOp.EDIT_FEW_SHOT_EXEMPLARS,
    "params": EditOp.SET_AGENT_PARAM,
}
HAS_IT = "it has this value"
_NO_TRAINING = (
    "lora_finetune: models are not trained here; train and register the model outside, then point"
    " to it with set_model_for_query_class"
)

Name = Annotated[str, Field(min_length=1, max_length=200)]


class Payload(Value):
    """A payload whose numbers, texts and flags are taken as they are: "1" is no number."""

    model_config = ConfigDict(strict=True)


class QueryClassPayload(Payload):
    query_class: Name
    #: A model of the tree.
    model: Name
    #: Add the query class if it does not exist.
    create: bool = False


class _Setting(Payload):
    param: Name
    value: Json
    #: Add the parameter if it does not exist.
    create: bool = False
    #: Let its type change.
    retype: bool = False


class ModelParamPayload(_Setting):
    model: Name


class AgentParamPayload(_Setting):
    agent: Name

    @field_validator("param")
    @classmethod
    def _is_no_field(cls, param: str) -> str:
        if param in FIELDS:
            raise ValueError(f"{param!r} is no parameter; it is changed by {FIELDS[param]}")
        return param


class AgentToolPayload(Payload):
    agent: Name
    tool: Name


class ToolDescriptionPayload(Payload):
    tool: Name
    description: Annotated[str, Field(min_length=1)]


class AgentClassPayload(Payload):
    agent: Name
    class_name: Name = Field(validation_alias=AliasChoices("class_name", "class"))

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, given: Any) -> Any:
        if isinstance(given, dict) and {"class", "class_name"} <= given.keys():
            raise ValueError("give class or class_name, not both")
        return given


_P = TypeVar("_P", bound=Value)


@dataclass(frozen=True, kw_only=True)
class ConfigOp(Generic[_P]):
    """An operation on one named thing of the tree."""

    op: str
    payload: type[_P]
    #: What its target names: the section, and the field of the payload with the name.
    section: Section
    named_by: str
    change: Callable[[_P, ConfigTree], list[FileChange]]

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return validated(self.payload, edit, ctx, *self._disagreement(edit))

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        validation = self.validate(edit, ctx)
        if not validation.ok:
            raise EditRefused(validation.reason)
        changes = self.change(payload_of(self.payload, edit), ConfigTree(ctx))
        for change in changes:
            confine.refuse_large(change.path, len(change.after or b""), ctx.max_bytes)
        return changes

    def _disagreement(self, edit: Edit) -> list[Problem]:
        """A target that names another thing than the payload: either may be meant."""
        name = edit.payload.get(self.named_by)
        if not isinstance(name, str):
            return []
        full = f"{self.section}.{name}"
        if edit.target in (name, full) or edit.target.startswith(f"{full}."):
            return []
        message = (
            f"is {edit.target!r}, but payload.{self.named_by} is {name!r}; give the target {full!r}"
        )
        return [Problem.at("target", message)]


def _set_route(payload: QueryClassPayload, tree: ConfigTree) -> list[FileChange]:
    tree.find("models", payload.model)
    if not tree.has("routing", payload.query_class) and payload.create:
        tables = tree.routing()
        if len(tables) != 1:
            raise EditRefused(f"there are {len(tables)} routing tables to add it to; one is needed")
        table = tables[0]
        where = (*table.where, payload.query_class)
        return table.changed(table.document.insert(where, payload.model))
    return _set(tree.find("routing", payload.query_class), payload.model)


def _set_model_param(payload: ModelParamPayload, tree: ConfigTree) -> list[FileChange]:
    return _set_param(tree.table("models", payload.model), payload)


def _set_agent_param(payload: AgentParamPayload, tree: ConfigTree) -> list[FileChange]:
    agent = tree.table("agents", payload.agent)
    inner = agent.value.get("params")
    if not isinstance(inner, dict):
        return _set_param(agent, payload)
    params = agent.inside("params")
    if payload.param in agent.value and payload.param in inner:
        raise EditRefused(
            f"{agent.shown}: has {payload.param!r} directly and under params; keep one"
        )
    return _set_param(agent if payload.param in agent.value else params, payload)


def _set_param(table: ConfigPlace, payload: _Setting) -> list[FileChange]:
    """A parameter of a table. Types stay, unless the edit says otherwise."""
    param = payload.param
    if param in table.value:
        return _set(table.inside(param), payload.value, retype=payload.retype)
    if not payload.create:
        known = [str(name) for name in table.value if name not in FIELDS]
        raise EditRefused(
            f"{table.shown}: has no parameter {param!r}{name_hint(param, known)} (create: true adds"
            " it)"
        )
    return table.changed(table.document.insert((*table.where, param), payload.value))


def _set(place: ConfigPlace, value: Json, *, retype: bool = False) -> list[FileChange]:
    value = value if retype else fitting(place, value)
    if same(place.value, value):
        return place.changed(place.document, HAS_IT)
    return place.changed(place.document.set(place.where, value))


def fitting(place: ConfigPlace, value: Json) -> Json:
    """A value as the type that is there. Raises EditRefused if it is of another kind."""
    present = place.value
    if isinstance(present, dict):
        raise EditRefused(f"{place.shown}: is a table; name one of its members")
    there, given = _kind(present), _kind(value)
    if there == "nothing":
        return value
    if there == given == "a number":
        return _number(present, value)
    kinds = {_kind(item) for item in present} if isinstance(present, list) else set()
    odd = kinds and isinstance(value, list) and not {_kind(item) for item in value} <= kinds
    if there != given or odd:
        what = f"a list of {' and '.join(sorted(kinds))}" if odd else there
        raise EditRefused(
            f"{place.shown}: is {what} ({present!r:.80}), and {value!r:.80} is not (retype: true"
            " changes the type)"
        )
    return value


def _number(present: int | float, value: int | float) -> int | float:
    """A number as the type that is there, if that loses nothing."""
    try:
        cast = type(present)(value)
    except (OverflowError, ValueError):
        return value
    return cast if cast == value else value


def _kind(value: Json) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    names: Mapping[type, str] = {str: "a text", list: "a list", dict: "a table"}
    return names.get(type(value), type(value).__name__)


def _add_tool(payload: AgentToolPayload, tree: ConfigTree) -> list[FileChange]:
    agent = tree.table("agents", payload.agent)
    tree.find("tools", payload.tool)
    tools = _tools(agent)
    where = (*agent.where, "tools")
    if tools is None:
        write = agent.document.set if "tools" in agent.value else agent.document.insert
        return agent.changed(write(where, [payload.tool]))
    if payload.tool in tools:
        return agent.changed(agent.document, f"{payload.agent} has the tool {payload.tool}")
    return agent.changed(agent.document.append(where, payload.tool))


def _remove_tool(payload: AgentToolPayload, tree: ConfigTree) -> list[FileChange]:
    agent = tree.table("agents", payload.agent)
    tools = _tools(agent) or []
    if payload.tool not in tools:
        known = dict.fromkeys(
            [*tree.names("tools"), *(tool for tool in tools if isinstance(tool, str))]
        )
        if payload.tool not in known:
            raise EditRefused(
                f"{agent.shown}: has no tool {payload.tool!r}{name_hint(payload.tool, known)}"
            )
        return agent.changed(agent.document, f"{payload.agent} has no tool {payload.tool}")
    document = agent.document
    for index in reversed([n for n, tool in enumerate(tools) if tool == payload.tool]):
        document = document.remove((*agent.where, "tools"), index)
    return agent.changed(document)


def _tools(agent: ConfigPlace) -> list[Any] | None:
    tools = agent.value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise EditRefused(f"{agent.inside('tools').shown}: is not a list")
    return tools


def _describe_tool(payload: ToolDescriptionPayload, tree: ConfigTree) -> list[FileChange]:
    return set_field(tree.table("tools", payload.tool), "description", payload.description)


def _set_class(payload: AgentClassPayload, tree: ConfigTree) -> list[FileChange]:
    agent = tree.table("agents", payload.agent)
    return set_field(agent, "class", payload.class_name)


def set_field(table: ConfigPlace, field: str, value: str) -> list[FileChange]:
    """A text that a table has or gets."""
    if field in table.value:
        return _set(table.inside(field), value)
    return table.changed(table.document.insert((*table.where, field), value))


@dataclass(frozen=True)
class LoraFinetune:
    """Always refused: said here, so that its author learns what to do instead."""

    op: str = EditOp.LORA_FINETUNE

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:  # noqa: ARG002 (the port's)
        return Validation(ok=False, reason=_NO_TRAINING)

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:  # noqa: ARG002 (the port's)
        raise EditRefused(_NO_TRAINING)


SET_MODEL_FOR_QUERY_CLASS = ConfigOp(
    op=EditOp.SET_MODEL_FOR_QUERY_CLASS,
    payload=QueryClassPayload,
    section="routing",
    named_by="query_class",
    change=_set_route,
)
SET_MODEL_PARAM = ConfigOp(
    op=EditOp.SET_MODEL_PARAM,
    payload=ModelParamPayload,
    section="models",
    named_by="model",
    change=_set_model_param,
)
SET_AGENT_PARAM = ConfigOp(
    op=EditOp.SET_AGENT_PARAM,
    payload=AgentParamPayload,
    section="agents",
    named_by="agent",
    change=_set_agent_param,
)
ADD_TOOL = ConfigOp(
    op=EditOp.ADD_TOOL_TO_AGENT,
    payload=AgentToolPayload,
    section="agents",
    named_by="agent",
    change=_add_tool,
)
REMOVE_TOOL = ConfigOp(
    op=EditOp.REMOVE_TOOL_FROM_AGENT,
    payload=AgentToolPayload,
    section="agents",
    named_by="agent",
    change=_remove_tool,
)
EDIT_TOOL_DESCRIPTION = ConfigOp(
    op=EditOp.EDIT_TOOL_DESCRIPTION,
    payload=ToolDescriptionPayload,
    section="tools",
    named_by="tool",
    change=_describe_tool,
)
SET_AGENT_CLASS = ConfigOp(
    op=EditOp.SET_AGENT_CLASS,
    payload=AgentClassPayload,
    section="agents",
    named_by="agent",
    change=_set_class,
)
#: Every operation of this module.
APPLIERS = (
    SET_MODEL_FOR_QUERY_CLASS,
    SET_MODEL_PARAM,
    SET_AGENT_PARAM,
    ADD_TOOL,
    REMOVE_TOOL,
    EDIT_TOOL_DESCRIPTION,
    SET_AGENT_CLASS,
    LoraFinetune(),
)
