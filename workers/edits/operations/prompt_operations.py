"""The operations on an agent's prompt: in its table, in a file that it names, or in prompts/."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field, model_validator

from mulligan.policies.edits.edit import EditOp
from mulligan.policies.edits.fit import FittedHunks, MisfitHunk, apply_hunks
from mulligan.policies.edits.parse_diff import parse
from mulligan.policies.edits.patch import PatchError
from mulligan.policies.edits.search_replace import replace_text
from mulligan.policies.suggestions import name_hint
from mulligan.tasks.ports.appliers import EditRefused, FileChange
from mulligan.workers.edits.operations.config_operations import ConfigOp, Name, Payload, set_field
from mulligan.workers.edits.operations.config_tree import PROMPTS, ConfigPlace, ConfigTree
from mulligan.workers.edits.operations.fuzzy_patch import APPLIED
from mulligan.workers.edits.tree import confined_paths

HAS_PROMPT = "it is this prompt"


class PatchPromptPayload(Payload):
    """A unified diff of the prompt (its file names do not matter), or a text to search and its
    replacement."""

    agent: Name
    diff: Annotated[str, Field(min_length=1)] | None = None
    #: Must occur exactly once.
    search: Annotated[str, Field(min_length=1)] | None = None
    replace: str | None = None

    @model_validator(mode="after")
    def _either_diff_or_replacement(self) -> PatchPromptPayload:
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
    """A prompt in its own file."""

    path: str
    before: bytes

    @property
    def label(self) -> str:
        return self.path

    @property
    def text(self) -> str:
        try:
            return self.before.decode("utf-8")
        except UnicodeDecodeError:
            raise EditRefused(f"{self.path}: is not UTF-8") from None

    def write(self, text: str, note: str = "") -> list[FileChange]:
        return [FileChange(path=self.path, before=self.before, after=text.encode(), note=note)]

    def with_line_endings(self, prompt: str) -> str:
        """Return a new text with the file's line endings, including the last one."""
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
    def label(self) -> str:
        return self.place.inside("system_prompt").label

    @property
    def text(self) -> str:
        return str(self.place.value["system_prompt"])

    def write(self, text: str, note: str = "") -> list[FileChange]:
        if note:
            return self.place.changed(self.place.document, note)
        return set_field(self.place, "system_prompt", text)

    def with_line_endings(self, prompt: str) -> str:
        return prompt


def prompt_of(tree: ConfigTree, agent: str) -> PromptFile | InlinePrompt | None:
    """Return an agent's prompt, None if it has none. Raises EditRefused for an unknown agent."""
    if not tree.has("agents", agent):
        known = tree.prompts()
        if agent not in known:
            names = sorted({*known, *tree.names("agents")})
            raise EditRefused(f"there is no agent {agent!r}{name_hint(agent, names)}")
        return _prompt_in_folder(tree, agent)
    place = tree.table("agents", agent)
    inline, named = (place.value.get(key) for key in ("system_prompt", "system_prompt_file"))
    if inline is not None and named is not None:
        raise EditRefused(f"{place.label}: has system_prompt and system_prompt_file; keep one")
    if inline is not None:
        if not isinstance(inline, str):
            raise EditRefused(f"{place.inside('system_prompt').label}: is not a text")
        return InlinePrompt(place=place)
    if named is not None:
        path = named_file(tree, place, "system_prompt_file")
        return PromptFile(path=path, before=tree.existing(path))
    return _prompt_in_folder(tree, agent)


def named_file(tree: ConfigTree, place: ConfigPlace, field: str) -> str:
    """Return the file that a table names, relative to its own file or the configuration folder."""
    named = place.value[field]
    if not isinstance(named, str):
        raise EditRefused(f"{place.inside(field).label}: is not a path")
    bases = dict.fromkeys((posixpath.dirname(place.path), tree.folder))
    joined = dict.fromkeys(posixpath.normpath(posixpath.join(base, named)) for base in bases)
    inside = [path for path in joined if not path.startswith("../") or len(joined) == 1]
    found = [path for path in map(confined_paths.normalize, inside) if tree.exists(path)]
    if len(found) > 1:
        raise EditRefused(f"{place.label}: {field} may be {' or '.join(found)}; keep one")
    if not found:
        raise EditRefused(f"{place.label}: {field} names {named}, which does not exist")
    return found[0]


def _prompt_in_folder(tree: ConfigTree, agent: str) -> PromptFile | None:
    if agent not in tree.prompts():
        return None
    path = tree.joined(PROMPTS, f"{agent}.md")
    return PromptFile(path=path, before=tree.existing(path))


def _replace(payload: ReplacePromptPayload, tree: ConfigTree) -> list[FileChange]:
    prompt = prompt_of(tree, payload.agent)
    if prompt is None:
        if not payload.create:
            raise _no_prompt(payload.agent, tree, "; set create: true to write it")
        path = confined_paths.normalize(tree.joined(PROMPTS, f"{payload.agent}.md"))
        if posixpath.dirname(path) != tree.joined(PROMPTS):
            raise EditRefused(f"{payload.agent!r}: cannot be the name of a file")
        text = payload.prompt if payload.prompt.endswith("\n") else payload.prompt + "\n"
        return [FileChange(path=path, before=None, after=text.encode())]
    text = prompt.with_line_endings(payload.prompt)
    return prompt.write(text, HAS_PROMPT if text == prompt.text else "")


def _patch(payload: PatchPromptPayload, tree: ConfigTree) -> list[FileChange]:
    prompt = prompt_of(tree, payload.agent)
    if prompt is None:
        raise _no_prompt(payload.agent, tree)
    try:
        if payload.diff is not None:
            done = _apply_diff(prompt.text, payload.diff)
        else:
            done = replace_text(prompt.text, payload.search or "", payload.replace or "")
    except PatchError as error:
        raise EditRefused(f"{prompt.label}: {error}") from None
    except MisfitHunk as error:
        raise EditRefused(*(f"{prompt.label}: {problem}" for problem in error.problems)) from None
    if done.applied or done.text == prompt.text:
        return prompt.write(prompt.text, APPLIED)
    note = "; ".join(done.tolerances)
    changes = prompt.write(done.text)
    return [replace(change, note=note) for change in changes] if note else changes


def _apply_diff(text: str, diff: str) -> FittedHunks:
    """Apply a diff to a text. A text in a table often lacks the last line ending that diffs
    assume."""
    files = parse(diff).files
    if len(files) != 1 or not files[0].hunks:
        raise PatchError(f"the diff is of {len(files)} files; a prompt needs the hunks of one")
    hunks = files[0].hunks
    try:
        return apply_hunks(text, hunks)
    except MisfitHunk:
        if text.endswith("\n"):
            raise
        done = apply_hunks(text + "\n", hunks)
        return replace(done, text=done.text.removesuffix("\n"))


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
