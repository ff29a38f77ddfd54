"""A spec that a model drafts: what it may contain, and how a spec compares with its criteria.

A draft carries no authority. It chooses texts, dependencies and checks; its checks only run tests,
commands that mulligan.toml names, and programs that the person who asked for it allows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import Field

from mulligan.policies.jobs.job import Job, Seconds, Text, VerifierSpec, Workspace
from mulligan.policies.loops.spec import ItemSpec, ItemVerifier, LoopConfig
from mulligan.policies.problem import Problem
from mulligan.policies.suggestions import name_hint
from mulligan.policies.value import Value

#: The task type of the job that drafts a loop, and the verifier that its answer must pass.
DRAFT_TASK = "draft_loop"
LOOP_DRAFT = "loop.draft"
PYTEST, COMMAND = "pytest.subprocess", "command.subprocess"
#: The checks that a draft may use: both look at files, and no answer of an agent counts.
_CHECKS = (PYTEST, COMMAND)
_ITEM_FIELDS = ("id", "title", "prompt", "depends_on", "verifiers", "pass_criteria", "touches",
                "priority")  # fmt: skip
_CHECK_FIELDS = ("id", "name", "role", "args", "command", "argv", "timeout", "expect_exit")
_TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 1}}
#: What a model is told, and constrained to if its server can do that.
CONTRACT: dict[str, Any] = {
    "type": "object",
    "required": ["items"],
    "properties": {
        "items": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "title", "prompt", "verifiers"],
                "properties": {
                    "id": {"type": "string"},
                    "title": {"type": "string", "maxLength": 200},
                    "prompt": {"type": "string", "minLength": 1},
                    "depends_on": _TEXTS,
                    "touches": _TEXTS,
                    "pass_criteria": _TEXTS,
                    "priority": {"type": "integer", "minimum": 1, "maximum": 9},
                    "verifiers": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["id"],
                            "properties": {
                                "id": {"enum": list(_CHECKS)},
                                "name": {"type": "string"},
                                "role": {"enum": ["acceptance", "guard"]},
                                "args": _TEXTS,
                                "argv": _TEXTS,
                                "command": {"type": "string"},
                                "timeout": {"type": "number"},
                                "expect_exit": {"type": "integer"},
                            },
                        },
                    },
                },
            },
        }
    },
}


class DraftRules(Value):
    """What a draft is for, and what it may run. These are the options of `loop.draft`."""

    #: The configuration of the loop that the draft has the items of.
    loop: LoopConfig
    #: The programs that a check of the draft may run, by name. Tests need none.
    programs: tuple[Text, ...] = Field(default=(), max_length=50)
    max_items: int = Field(default=100, ge=1, le=1000)
    #: For all checks of the draft together, on the repository as it is.
    seconds: Seconds = Field(default=200.0, gt=0, le=1000)
    #: Whether the loop is created and started as soon as a draft passes.
    auto_start: bool = False


def rules_of(job: Job) -> DraftRules | None:
    """Return what a job drafts; None if it drafts no loop. Raises ValidationError."""
    for each in job.verifiers:
        if each.id == LOOP_DRAFT:
            return DraftRules.model_validate(each.options)
    return None


def authority_problems(item: ItemSpec, programs: Collection[str]) -> Iterator[Problem]:
    """Find what a drafted item may not choose."""
    for name in sorted(item.model_fields_set - {*_ITEM_FIELDS}):
        yield Problem("a draft may not choose this field: leave it out", (name,), "not_allowed")
    for index, name in enumerate(item.depends_on):
        if "/" in name:
            message = "a draft may only depend on items of its own list"
            yield Problem(message, ("depends_on", index), "not_allowed")
    for index, each in enumerate(item.verifiers):
        for problem in _check_problems(each, programs):
            yield problem.below("verifiers", index)


def _check_problems(check: ItemVerifier, programs: Collection[str]) -> Iterator[Problem]:
    if check.id not in _CHECKS:
        message = f"a draft may only use {' and '.join(_CHECKS)}{name_hint(check.id, _CHECKS)}"
        yield Problem.at("id", message, "not_allowed")
        return
    for name in sorted({*check.model_fields_set, *check.options} - {*_CHECK_FIELDS}):
        yield Problem("a draft may not choose this option: leave it out", (name,), "not_allowed")
    argv = check.options.get("argv")
    if isinstance(argv, list | tuple) and argv and argv[0] not in programs:
        allowed = ", ".join(programs) or "none"
        message = (
            f"a draft may not run {str(argv[0])[:80]!r} (allowed programs: {allowed}): use"
            f" {PYTEST}, or a command of mulligan.toml by its name"
        )
        yield Problem.at("argv", message, "not_allowed")
    if check.id == COMMAND and not argv and check.options.get("command") is None:
        yield Problem.at("command", "is required: what does the check run?", "missing")


_WORDS_OF_NAME, _LONGEST_SLUG = 5, 60


def slug(text: str, default: str = "draft") -> str:
    """Return the first words of a text as the name of a loop or the id of an item."""
    words = re.findall(r"[a-z0-9]+", text.lower())[:_WORDS_OF_NAME]
    return "-".join(words)[:_LONGEST_SLUG].rstrip("-") or default


# -- criteria --------------------------------------------------------------------------------------

_CODE = re.compile(r"`([^`]+)`")


def unchecked_criteria(item: ItemSpec) -> list[str]:
    """Return the criteria that no acceptance verifier can be said to check.

    A verifier checks the criterion that its `name` repeats, and one whose `code` its options
    contain. Each other acceptance verifier may check one more.
    """
    checks = [each for each in item.verifiers if each.role == "acceptance"]
    left: list[str] = []
    used: set[int] = set()
    for criterion in item.pass_criteria:
        found = next((i for i, each in enumerate(checks) if _is_about(each, criterion)), None)
        if found is None:
            left.append(criterion)
        else:
            used.add(found)
    return left[max(0, len(checks) - len(used)) :]


def _is_about(check: VerifierSpec, criterion: str) -> bool:
    if check.name is not None and _plain(check.name) == _plain(criterion):
        return True
    said = " ".join(_texts(check.options))
    return any(code in said for code in _CODE.findall(criterion))


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _texts(options: Mapping[str, Any]) -> Iterator[str]:
    for value in options.values():
        match value:
            case str():
                yield value
            case list() | tuple():
                yield " ".join(str(each) for each in value)


#: The draft decides; that it is JSON says little.
_DECIDES = 20.0


def draft_verifiers(rules: DraftRules) -> tuple[VerifierSpec, ...]:
    """Return what checks a draft. No other job may have the last one, which may start a loop."""
    options = rules.model_dump(mode="json", exclude_unset=True)
    return (
        VerifierSpec(id="json.object"),
        VerifierSpec(id="contract.schema", schema=CONTRACT),
        VerifierSpec(id=LOOP_DRAFT, weight=_DECIDES, **options),
    )


def draft_workspace(loop: LoopConfig) -> Workspace | None:
    """Return where a draft is verified. The answer is the draft: nothing of a checkout is kept."""
    space = loop.item_workspace()
    return None if space is None else space.model_copy(update={"branch": None, "edits": False})
