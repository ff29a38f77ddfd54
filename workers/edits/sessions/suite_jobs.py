"""The jobs of a suite, built from the state of a tree."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mulligan.policies.edits.suite import TASK_TYPE, SuiteTask, content_digest, run_key
from mulligan.policies.jobs.job import Job, escapes
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.read_job import Check, inspect_job
from mulligan.tasks.ports.errors import BadInput, refuse
from mulligan.workers.sandbox.file_tree import Tree, encode_tree

#: Fields that the suite fills in, and fields that have no meaning there.
_NOT_ALLOWED = ("task_type", "name", "idempotency_key", "labels", "on_done", "subject",
                "delayed_verification", "memory_scope")  # fmt: skip
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
#: In place of a workspace or a prompt that is not read yet.
_UNREAD = "-"

Raw = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TreeState:
    """A state of a tree."""

    #: Its content address.
    address: str
    tree: Tree
    #: Stores the part of the tree that is a job's workspace, and returns its address.
    put: Callable[[bytes], str]


def job_problems(job: Mapping[str, Any], check: Check = lambda _: []) -> list[Problem]:
    """Return a task's problems that do not depend on the tree, and those that ``check`` finds."""
    raw = dict(job)
    problems = [
        Problem("is not allowed in jobs of a suite; leave it out", (name,), "not_allowed")
        for name in _NOT_ALLOWED
        if name in raw
    ]
    problems += _prompt_problems(raw)
    if "prompt_file" in raw:
        raw.setdefault("prompt", _UNREAD)
    path = _workspace_path(raw)
    if isinstance(path, str):
        if path not in ("", ".") and escapes(posixpath.normpath(path)):
            message = f"{path} leaves the tree; it is relative to the root"
            problems.append(Problem.at("workspace.path", message, "not_allowed"))
        raw["workspace"] = {**raw["workspace"], "path": None, "snapshot": _UNREAD}
    left_out = (*_NOT_ALLOWED, "prompt_file", "vars")
    raw = {name: value for name, value in raw.items() if name not in left_out}
    return problems + inspect_job({**raw, "task_type": TASK_TYPE}, check)[1]


def _prompt_problems(raw: Raw) -> list[Problem]:
    if "prompt_file" not in raw:
        unused = Problem.at("vars", "has no effect without prompt_file")
        return [unused] if "vars" in raw else []
    problems = []
    if "prompt" in raw or "messages" in raw:
        problems.append(Problem.at("prompt_file", "give either a prompt or a prompt_file"))
    name = raw["prompt_file"]
    if not isinstance(name, str) or escapes(posixpath.normpath(name)):
        message = f"{name!r} is not a path inside the tree, relative to the root"
        problems.append(Problem.at("prompt_file", message))
    if not isinstance(raw.get("vars", {}), dict):
        problems.append(Problem.at("vars", "must be a mapping of names to values", "wrong_type"))
    return problems


def make_job(
    task: SuiteTask, state: TreeState, *, session: str, repeat: int, seed: int | None = None
) -> Job:
    """Build the job of one run. Raises BadInput if this state does not have its files.

    Its idempotency key covers all its content: in one session, the same content is the same job.
    """
    refuse(job_problems(task.job or {}))
    raw = _with_snapshot(_with_prompt(dict(task.job or {}), state.tree), state)
    raw["policy"] = {**raw.get("policy", {}), "max_attempts": 1}
    runner = {"profile": raw["runner"]} if isinstance(raw["runner"], str) else dict(raw["runner"])
    if seed is not None:
        runner.setdefault("seed", seed)
    labels = {"benchmark": session, "suite_task": task.id, "repeat": str(repeat)}
    fields = {"task_type": TASK_TYPE, "name": task.id, "runner": runner, "labels": labels}
    job = Job.model_validate({**raw, **fields})
    key = run_key(session, task, repeat, content_digest(job.model_dump(mode="json")))
    return job.model_copy(update={"idempotency_key": key})


def _with_prompt(raw: Raw, tree: Tree) -> Raw:
    """Replace ``prompt_file`` by its text."""
    if "prompt_file" not in raw:
        return raw
    rest = {name: value for name, value in raw.items() if name not in ("prompt_file", "vars")}
    name = posixpath.normpath(raw["prompt_file"])
    node = tree.get(name)
    if node is None or node.kind != "file":
        raise BadInput.at("prompt_file", f"there is no file {name} in the tree")
    try:
        text = node.content.decode()
    except UnicodeDecodeError:
        raise BadInput.at("prompt_file", f"{name} is not text in UTF-8") from None
    if not text.strip():
        raise BadInput.at("prompt_file", f"{name} is empty")
    return {**rest, "prompt": _fill(text, raw.get("vars", {}), name)}


def _fill(text: str, variables: Mapping[str, Any], name: str) -> str:
    missing = [n for n in dict.fromkeys(_VARIABLE.findall(text)) if n not in variables]
    if missing:
        names = ", ".join(f"{{{{{n}}}}}" for n in missing)
        raise BadInput.at("vars", f"{name} asks for {names}, which is not given")
    return _VARIABLE.sub(lambda match: str(variables[match[1]]), text)


def _with_snapshot(raw: Raw, state: TreeState) -> Raw:
    """Replace the workspace's path by a snapshot."""
    path = _workspace_path(raw)
    if path is None:
        return raw
    rest = {name: value for name, value in raw["workspace"].items() if name != "path"}
    return {**raw, "workspace": {**rest, "snapshot": _snapshot(posixpath.normpath(path), state)}}


def _snapshot(path: str, state: TreeState) -> str:
    if path == ".":
        return state.address
    node = state.tree.get(path)
    if node is None or node.kind != "directory":
        raise BadInput.at("workspace.path", f"there is no folder {path} in the tree")
    inside = f"{path}/"
    part = {n.removeprefix(inside): v for n, v in state.tree.items() if n.startswith(inside)}
    return state.put(encode_tree(part))


def _workspace_path(raw: Raw) -> Any:
    workspace = raw.get("workspace")
    return workspace.get("path") if isinstance(workspace, dict) else None
