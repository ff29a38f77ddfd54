"""The operations on an agent's prompt, wherever it is: in a table, a file it names, or prompts/."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, model_validator

from mulligan.policies.edits import patch as diffs
from mulligan.policies.edits.edit import EditOp
from mulligan.policies.edits.fit import FittedHunks, MisfitHunk, apply_hunks
from mulligan.policies.edits.patch import PatchError
from mulligan.policies.edits.search_replace import replaced
from mulligan.policies.suggestions import name_hint
from mulligan.tasks.ports.appliers import EditRefused, FileChange
from mulligan.workers.edits.operations.config_operations import ConfigOp, Name, Payload, set_field
from mulligan.workers.edits.operations.config_tree import PROMPTS, ConfigPlace, ConfigTree
from mulligan.workers.edits.tree import confined_paths as confine

APPLIED = "already applied"
HAS_IT = "it is this prompt"


class PatchPromptPayload(Payload):
    """A unified diff of the prompt (its file names do not matter), or a text and its successor."""

    agent: Name
    diff: Annotated[str, Field(min_length=1)] | None = None
    #: Has to occur exactly once.
    search: Annotated[str, Field(min_length=1)] | None = None
    replace: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> PatchPromptPayload:
        pair = (self.search is not None, self.replace is not None)
        if (self.diff is not None) == any(pair) or any(pair) != all(pair):
            raise ValueError("give either diff, or search and replace")
        return self


class ReplacePromptPayload(Payload):
    agent: Name
    prompt: Annotated[str, Field(min_length=1)]
    #: Write prompts/<agent>.md if the agent has no prompt at all.
    create: bool = False


@dataclass(frozen=True, kw_only=True)
class PromptFile:
    """A prompt that is a file of its own."""

    path: str
    before: bytes

    @property
    def shown(self) -> str:
        return self.path

    @property
    def text(self) -> str:
        try:
            return self.before.decode("utf-8")
        except UnicodeDecodeError:
            raise EditRefused(f"{self.path}: is not UTF-8") from None

    def written(self, text: str, note: str = "") -> list[FileChange]:
        return [FileChange(path=self.path, before=self.before, after=text.encode(), note=note)]

    def whole(self, prompt: str) -> str:
        """A new text with the line endings, and the last one, that the file has."""
        text = prompt.replace("\r\n", "\n")
        ends = "\r\n" if "\r\n" in self.text else "\n"
        if self.text.endswith("\n") and not text.endswith("\n"):
            text += "\n"
        return text.replace("\n", ends)


@dataclass(frozen=True, kw_only=True)
class InlinePrompt:
    """A prompt that is a value of the agent's table."""

    place: ConfigPlace

    @property
    def shown(self) -> str:
        return self.place.inside("system_prompt").shown

    @property
    def text(self) -> str:
        return str(self.place.value["system_prompt"])

    def written(self, text: str, note: str = "") -> list[FileChange]:
        if note:
            return self.place.changed(self.place.document, note)
        return set_field(self.place, "system_prompt", text)

    def whole(self, prompt: str) -> str:
        return prompt


def prompt_of(tree: ConfigTree, agent: str) -> PromptFile | InlinePrompt | None:
    """Where an agent's prompt is, None if it has none. Raises EditRefused for an unknown agent."""
    if not tree.has("agents", agent):
        known = tree.prompts()
        if agent not in known:
            names = sorted({*known, *tree.names("agents")})
            raise EditRefused(f"there is no agent {agent!r}{name_hint(agent, names)}")
        return _of_folder(tree, agent)
    place = tree.table("agents", agent)
    inline, named = (place.value.get(key) for key in ("system_prompt", "system_prompt_file"))
    if inline is not None and named is not None:
        raise EditRefused(f"{place.shown}: has system_prompt and system_prompt_file; keep one")
    if inline is not None:
        if not isinstance(inline, str):
            raise EditRefused(f"{place.inside('system_prompt').shown}: is not a text")
        return InlinePrompt(place=place)
    if named is not None:
        path = named_file(tree, place, "system_prompt_file")
        return PromptFile(path=path, before=tree.existing(path))
    return _of_folder(tree, agent)


def named_file(tree: ConfigTree, place: ConfigPlace, field: str) -> str:
    """The file that a table names: relative to its own file, or to the configuration folder."""
    named = place.value[field]
    if not isinstance(named, str):
        raise EditRefused(f"{place.inside(field).shown}: is not a path")
    bases = dict.fromkeys((posixpath.dirname(place.path), tree.folder))
    joined = dict.fromkeys(posixpath.normpath(posixpath.join(base, named)) for base in bases)
    outside = [path for path in joined if path.startswith("../")]
    paths = [confine.normal(path) for path in joined if path not in outside or len(joined) == 1]
    there = [path for path in paths if tree.exists(path)]
    if len(there) > 1:
        raise EditRefused(f"{place.shown}: {field} may be {' or '.join(there)}; keep one")
    if not there:
        raise EditRefused(f"{place.shown}: {field} names {named}, which does not exist")
    return there[0]


def _of_folder(tree: ConfigTree, agent: str) -> PromptFile | None:
    if agent not in tree.prompts():
        return None
    path = tree.joined(PROMPTS, f"{agent}.md")
    return PromptFile(path=path, before=tree.existing(path))


def _replace(payload: ReplacePromptPayload, tree: ConfigTree) -> list[FileChange]:
    prompt = prompt_of(tree, payload.agent)
    if prompt is None:
        if not payload.create:
            raise _no_prompt(payload.agent, tree, "; create: true writes it")
        path = confine.normal(tree.joined(PROMPTS, f"{payload.agent}.md"))
        if posixpath.dirname(path) != tree.joined(PROMPTS):
            raise EditRefused(f"{payload.agent!r}: cannot be the name of a file")
        text = payload.prompt if payload.prompt.endswith("\n") else payload.prompt + "\n"
        return [FileChange(path=path, before=None, after=text.encode())]
    text = prompt.whole(payload.prompt)
    return prompt.written(text, HAS_IT if text == prompt.text else "")


def _patch(payload: PatchPromptPayload, tree: ConfigTree) -> list[FileChange]:
    prompt = prompt_of(tree, payload.agent)
    if prompt is None:
        raise _no_prompt(payload.agent, tree)
    try:
        if payload.diff is not None:
            done = _patched(prompt.text, payload.diff)
        else:
            done = replaced(prompt.text, payload.search or "", payload.replace or "")
    except PatchError as error:
        raise EditRefused(f"{prompt.shown}: {error}") from None
    except MisfitHunk as error:
        raise EditRefused(*(f"{prompt.shown}: {problem}" for problem in error.problems)) from None
    if done.applied or done.text == prompt.text:
        return prompt.written(prompt.text, APPLIED)
    changes = prompt.written(done.text)
    said = "; ".join(done.tolerances)
    return [_noted(change, said) for change in changes] if said else changes


def _patched(text: str, diff: str) -> FittedHunks:
    """A text after a diff. A text in a table often has no last line ending; diffs suppose one."""
    files = diffs.parse(diff).files
    if len(files) != 1 or not files[0].hunks:
        raise PatchError(f"the diff is of {len(files)} files; a prompt needs the hunks of one")
    hunks = files[0].hunks
    try:
        return apply_hunks(text, hunks)
    except MisfitHunk:
        if text.endswith("\n"):
            raise
        done = apply_hunks(text + "\n", hunks)
        return FittedHunks(
            text=done.text.removesuffix("\n"), tolerances=done.tolerances, applied=done.applied
        )


def _noted(change: FileChange, note: str) -> FileChange:
    return FileChange(path=change.path, before=change.before, after=change.after, note=note)


def _no_prompt(agent: str, tree: ConfigTree, more: str = "") -> EditRefused:
    return EditRefused(
        f"the agent {agent!r} has no prompt: neither system_prompt nor system_prompt_file, and"
        f" {tree.joined(PROMPTS, agent)}.md does not exist{more}"
    )


PATCH_SYSTEM_PROMPT = ConfigOp(
    op=EditOp.PATCH_SYSTEM_PROMPT,
    payload=PatchPromptPayload,
    section="agents",
    named_by="agent",
    change=_patch,
)
REPLACE_SYSTEM_PROMPT = ConfigOp(
    op=EditOp.REPLACE_SYSTEM_PROMPT,
    payload=ReplacePromptPayload,
    section="agents",
    named_by="agent",
    change=_replace,
)
#: Every operation of this module.
APPLIERS = (PATCH_SYSTEM_PROMPT, REPLACE_SYSTEM_PROMPT)
