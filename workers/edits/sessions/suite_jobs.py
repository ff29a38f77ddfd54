"""The jobs of a suite: what a tree's state makes of them."""

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

#: Fields that a suite fills in itself, and fields that have no meaning there.
_OURS = ("task_type", "name", "idempotency_key", "labels", "on_done", "subject",
         "delayed_verification", "memory_scope")  # fmt: skip
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
#: Stands for a workspace or a prompt that is not read yet.
_LATER = "-"

Raw = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TreeState:
    """A state of a tree, as jobs are made from it."""

    #: Its content address.
    address: str
    tree: Tree
    #: Keeps a part of the tree that a job asks for as its workspace.
    put: Callable[[bytes], str]


def job_problems(given: Mapping[str, Any], check: Check = lambda _: []) -> list[Problem]:
    """What is wrong with a task's job whatever the tree holds, and what ``check`` finds in it."""
    raw = dict(given)
    problems = [
        Problem("is not for jobs of a suite; leave it out", (name,), "not_allowed")
        for name in _OURS
        if name in raw
    ]
    problems += _prompt_problems(raw)
    if "prompt_file" in raw:
        raw |= {"prompt": raw.get("prompt", _LATER)}
    path = _workspace_path(raw)
    if isinstance(path, str):
        if path not in ("", ".") and escapes(posixpath.normpath(path)):
            message = f"{path} leaves the tree; it is relative to the root"
            problems.append(Problem.at("workspace.path", message, "not_allowed"))
        raw["workspace"] = {**raw["workspace"], "path": None, "snapshot": _LATER}
    raw = {
        name: value for name, value in raw.items() if name not in (*_OURS, "prompt_file", "vars")
    }
    return problems + inspect_job({**raw, "task_type": TASK_TYPE}, check)[1]


def _prompt_problems(raw: Raw) -> list[Problem]:
    if "prompt_file" not in raw:
        unused = Problem.at("vars", "is only of use with prompt_file")
        return [unused] if "vars" in raw else []
    problems = []
    if "prompt" in raw or "messages" in raw:
        problems.append(Problem.at("prompt_file", "give either a prompt or a prompt_file"))
    name = raw["prompt_file"]
    if not isinstance(name, str) or escapes(posixpath.normpath(name)):
        message = f"{name!r} is not a file of the tree, relative to the root"
        problems.append(Problem.at("prompt_file", message))
    if not isinstance(raw.get("vars", {}), dict):
        problems.append(Problem.at("vars", "must be a mapping of names to values", "wrong_type"))
    return problems


def make_job(
    task: SuiteTask, state: TreeState, *, session: str, repeat: int, seed: int | None = None
) -> Job:
    """The job of one run, or BadInput if this state does not make one.

    Its idempotency key is of everything in it: the same content is the same job, in one session.
    """
    refuse(job_problems(task.job or {}))
    raw = _placed(_prompted(dict(task.job or {}), state.tree), state)
    raw["policy"] = {**raw.get("policy", {}), "max_attempts": 1}
    runner = {"profile": raw["runner"]} if isinstance(raw["runner"], str) else dict(raw["runner"])
    if seed is not None:
        runner.setdefault("seed", seed)
    labels = {"benchmark": session, "suite_task": task.id, "repeat": str(repeat)}
    fields = {"task_type": TASK_TYPE, "name": task.id, "runner": runner, "labels": labels}
    job = Job.model_validate({**raw, **fields})
    key = run_key(session, task, repeat, content_digest(job.model_dump(mode="json")))
    return job.model_copy(update={"idempotency_key": key})


def _prompted(raw: Raw, tree: Tree) -> Raw:
    """With the prompt in place of the file that has it."""
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
    return {**rest, "prompt": _filled(text, raw.get("vars", {}), name)}


def _filled(text: str, variables: Mapping[str, Any], name: str) -> str:
    missing = [n for n in dict.fromkeys(_PLACEHOLDER.findall(text)) if n not in variables]
    if missing:
        asked = ", ".join(f"{{{{{n}}}}}" for n in missing)
        raise BadInput.at("vars", f"{name} asks for {asked}, which is not given")
    return _PLACEHOLDER.sub(lambda match: str(variables[match[1]]), text)


def _placed(raw: Raw, state: TreeState) -> Raw:
    """With a snapshot in place of the workspace's path."""
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
