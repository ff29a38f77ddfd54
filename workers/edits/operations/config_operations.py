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
from mulligan.workers.edits.operations.payloads import payload_of, validate_payload
from mulligan.workers.edits.tree import confined_paths

#: Fields of an agent that are not parameters, and the operation for each: set_agent_param has a
#: laxer tier than some of these operations.
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
HAS_VALUE = "it has this value"
_NO_TRAINING = (
    "lora_finetune: mulligan does not train models; train and register the model elsewhere, then"
    " select it with set_model_for_query_class"
)

Name = Annotated[str, Field(min_length=1, max_length=200)]


class Payload(Value):
    """A payload without type coercion: "1" is not a number."""

    model_config = ConfigDict(strict=True)


class QueryClassPayload(Payload):
    query_class: Name
    #: A model of the tree.
    model: Name
    #: Add the query class if it does not exist.
    create: bool = False


class _ParamPayload(Payload):
    param: Name
    value: Json
    #: Add the parameter if it does not exist.
    create: bool = False
    #: Allow another type.
    retype: bool = False


class ModelParamPayload(_ParamPayload):
    model: Name


class AgentParamPayload(_ParamPayload):
    agent: Name

    @field_validator("param")
    @classmethod
    def _check_param(cls, param: str) -> str:
        if param in FIELDS:
            raise ValueError(f"{param!r} is not a parameter; use {FIELDS[param]}")
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
    def _check_spelling(cls, data: Any) -> Any:
        if isinstance(data, dict) and {"class", "class_name"} <= data.keys():
            raise ValueError("give class or class_name, not both")
        return data


_P = TypeVar("_P", bound=Value)


@dataclass(frozen=True, kw_only=True)
class ConfigOp(Generic[_P]):
    """An operation on one named entry of the tree."""

    op: str
    payload: type[_P]
    section: Section
    #: The field of the payload that names the entry.
    named_by: str
    change: Callable[[_P, ConfigTree], list[FileChange]]

    def validate(self, edit: Edit, ctx: ApplyContext) -> Validation:
        return validate_payload(self.payload, edit, ctx, *self._target_problems(edit))

    def changes(self, edit: Edit, ctx: ApplyContext) -> list[FileChange]:
        validation = self.validate(edit, ctx)
        if not validation.ok:
            raise EditRefused(validation.reason)
        changes = self.change(payload_of(self.payload, edit), ConfigTree(ctx))
        for change in changes:
            confined_paths.check_size(change.path, len(change.after or b""), ctx.max_bytes)
        return changes

    def _target_problems(self, edit: Edit) -> list[Problem]:
        """Return a problem if the target and the payload name different entries."""
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
            raise EditRefused(
                f"a new query class needs exactly one routing table, but there are {len(tables)}"
            )
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
            f"{agent.label}: has {payload.param!r} directly and under params; keep one"
        )
    return _set_param(agent if payload.param in agent.value else params, payload)


def _set_param(table: ConfigPlace, payload: _ParamPayload) -> list[FileChange]:
    """Set a parameter of a table. Its type stays unless the edit allows another."""
    param = payload.param
    if param in table.value:
        return _set(table.inside(param), payload.value, retype=payload.retype)
    if not payload.create:
        known = [str(name) for name in table.value if name not in FIELDS]
        raise EditRefused(
            f"{table.label}: has no parameter {param!r}{name_hint(param, known)} (create: true adds"
            " it)"
        )
    return table.changed(table.document.insert((*table.where, param), payload.value))


def _set(place: ConfigPlace, value: Json, *, retype: bool = False) -> list[FileChange]:
    value = value if retype else _convert(place, value)
    if same(place.value, value):
        return place.changed(place.document, HAS_VALUE)
    return place.changed(place.document.set(place.where, value))


def _convert(place: ConfigPlace, value: Json) -> Json:
    """Return a value in the type of the current one. Raises EditRefused for another kind."""
    current = place.value
    if isinstance(current, dict):
        raise EditRefused(f"{place.label}: is a table; name one of its members")
    old_kind, new_kind = _kind(current), _kind(value)
    if old_kind == "nothing":
        return value
    if old_kind == new_kind == "a number":
        return _convert_number(current, value)
    kinds = {_kind(item) for item in current} if isinstance(current, list) else set()
    odd = kinds and isinstance(value, list) and not {_kind(item) for item in value} <= kinds
    if old_kind != new_kind or odd:
        what = f"a list of {' and '.join(sorted(kinds))}" if odd else old_kind
        raise EditRefused(
            f"{place.label}: is {what} ({current!r:.80}), but {value!r:.80} is not (retype: true"
            " changes the type)"
        )
    return value


def _convert_number(current: int | float, value: int | float) -> int | float:
    """Return a number in the type of the current one, if that loses nothing."""
    try:
        cast = type(current)(value)
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
        known = [*tree.names("tools"), *(tool for tool in tools if isinstance(tool, str))]
        if payload.tool not in known:
            raise EditRefused(
                f"{agent.label}: has no tool {payload.tool!r}{name_hint(payload.tool, known)}"
            )
        return agent.changed(agent.document, f"{payload.agent} has no tool {payload.tool}")
    document = agent.document
    for index in reversed([n for n, tool in enumerate(tools) if tool == payload.tool]):
        document = document.remove((*agent.where, "tools"), index)
    return agent.changed(document)


def _tools(agent: ConfigPlace) -> list[Any] | None:
    tools = agent.value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise EditRefused(f"{agent.inside('tools').label}: is not a list")
    return tools


def _describe_tool(payload: ToolDescriptionPayload, tree: ConfigTree) -> list[FileChange]:
    return set_field(tree.table("tools", payload.tool), "description", payload.description)


def _set_class(payload: AgentClassPayload, tree: ConfigTree) -> list[FileChange]:
    agent = tree.table("agents", payload.agent)
    return set_field(agent, "class", payload.class_name)


def set_field(table: ConfigPlace, field: str, value: str) -> list[FileChange]:
    """Set or add a text in a table."""
    if field in table.value:
        return _set(table.inside(field), value)
    return table.changed(table.document.insert((*table.where, field), value))


@dataclass(frozen=True)
class LoraFinetune:
    """Always refused, with what to do instead."""

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
