"""Check a loop and its items as plain data: every problem at its place, whatever stage finds it.

A malformed item has no job, so its runner and verifiers could not be checked. Its malformed fields
are therefore replaced by valid ones, and problems of the replacements are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from pydantic import ValidationError

from mulligan.policies.jobs.job import RunnerSpec
from mulligan.policies.loops.spec import (
    MOST_HINTS,
    MOST_ITEMS,
    ItemSpec,
    LoopConfig,
    LoopDocument,
    SpecDocument,
    item_hint,
    item_job,
    item_problems,
    item_set_problems,
    spec_path,
)
from mulligan.policies.problem import MOST_FOUND, FieldPath, Problem, distinct
from mulligan.policies.value import Value
from mulligan.tasks.jobs.read_job import Check
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.workers.admission.intake import offline_rules
from mulligan.workers.admission.loop_authority import config_problems
from mulligan.workers.loops.prices import token_price
from mulligan.workers.settings.model import Settings

Model = TypeVar("Model", bound=Value)
#: Replace malformed or missing fields while the others are checked.
_ITEM = {"id": "item", "prompt": "-", "verifiers": ["json.object"]}
_LOOP = {"name": "loop"}
_RUNNER = RunnerSpec.model_validate({"kind": "scripted", "answers": ["-"]})
_SCOPES = ("attempt", "item", "loop", "day")
_LISTED = 3


@dataclass(frozen=True, kw_only=True)
class LoopRules:
    """What accepting a loop checks besides the form of its documents."""

    #: Finds every reason not to accept the job of an item.
    check: Check
    #: Whether the cost of a runner's answers is known.
    priced: Callable[[RunnerSpec], bool]
    #: Finds what the loop names that it may not.
    config: Callable[[LoopConfig], Iterable[Problem]] = lambda _: ()
    #: Finds what is wrong with the loop's repository and its branches.
    repository: Callable[[LoopConfig], Iterable[Problem]] = lambda _: ()


def loop_rules(
    settings: Settings,
    check: Check | None = None,
    repository: Callable[[LoopConfig], Iterable[Problem]] = lambda _: (),
    config: Callable[[LoopConfig], Iterable[Problem]] | None = None,
) -> LoopRules:
    """Return the rules of this installation; by default those for files on this host."""
    on_this_host = partial(config_problems, settings=settings, local_paths=True)
    return LoopRules(
        check=check or offline_rules(settings).problems,
        priced=lambda runner: token_price(runner, settings) is not None,
        config=config or on_this_host,
        repository=repository,
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """A loop, or a document with items, as plain data; and its place."""

    raw: Any
    #: Adds the file and the line to a problem of the document that contains this part.
    locate: Callable[[Problem], Problem]
    #: From the top of that document to this part.
    path: FieldPath = ()
    #: Places in that document with a problem that is reported already.
    unresolved: frozenset[FieldPath] = frozenset()

    def place(self, *problems: Problem) -> Iterator[Problem]:
        """Yield problems of this part with their places, unless they follow from others."""
        for problem in problems:
            whole = problem.below(*self.path)
            parents = (whole.path[:end] for end in range(len(whole.path) + 1))
            if self.unresolved.isdisjoint(parents):
                yield self.locate(whole)


@dataclass(frozen=True, kw_only=True)
class _Item:
    """An item, with valid parts in place of malformed ones, and where it is."""

    spec: ItemSpec
    part: Part
    index: int
    #: The malformed fields.
    malformed: frozenset[FieldPath]

    def place(self, *problems: Problem) -> Iterator[Problem]:
        return self.part.place(*(each.below("items", self.index) for each in problems))


def inspect_loop(
    config: Part, documents: Sequence[Part], rules: LoopRules
) -> tuple[LoopDocument | None, list[Problem]]:
    """Return the loop, if everything about it is valid, and its problems: MOST_FOUND at most."""
    loop, wrong = _read(LoopConfig, config.raw, _LOOP)
    problems = [*config.place(*wrong)]
    malformed = {str(each.path[0]) for each in wrong if each.path}
    items: list[_Item] = []
    states: dict[str, Any] = {}
    for part in documents:
        found, done, wrong = _read_items(part)
        items += found
        states.update(done)
        problems += part.place(*wrong)
        if len(problems) >= MOST_FOUND:
            # What follows would be about items that were not read.
            return None, distinct(problems)
    checks = (
        _set_problems(items),
        _state_problems(documents, items),
        _runner_problems(loop, items, config, known="runner" not in malformed),
        *(_job_problems(loop, item, config, rules, malformed) for item in items),
        config.place(*_price_problems(loop, items, rules, malformed)),
        config.place(*_number_problems(items)),
        config.place(*_repository_problems(loop, rules, malformed)),
    )
    problems = distinct(chain(problems, *checks))
    if problems or not items:
        return None, problems
    plain = loop.model_copy(update={"specs": ()})
    return LoopDocument(loop=plain, items=tuple(each.spec for each in items), states=states), []


# -- form ------------------------------------------------------------------------------------------


def _read(model: type[Model], raw: Any, valid: Mapping[str, Any]) -> tuple[Model, list[Problem]]:
    """Return the value, with ``valid`` parts in place of malformed ones, and the problems."""
    problems: list[Problem] = []
    while True:
        try:
            return model.model_validate(raw), problems
        except ValidationError as error:
            found = problems_of(error, model, show_values=True, most=MOST_FOUND)
        # What belongs to a malformed repository may be right.
        if all(each.path[:1] != ("repo",) for each in problems):
            problems += found
        # With so many problems nothing else is checked, whatever the value is.
        mended = _mended(raw, found, valid) if len(problems) < MOST_FOUND else dict(valid)
        raw = dict(valid) if mended == raw else mended


def _mended(raw: Any, problems: Sequence[Problem], valid: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(raw) if isinstance(raw, dict) else {}
    for problem in problems:
        match problem.path:
            case ("verifiers", int() as index, *_) if isinstance(kept.get("verifiers"), list):
                others = kept["verifiers"]
                kept["verifiers"] = [*others[:index], "json.object", *others[index + 1 :]]
            case (name, *_):
                kept.pop(str(name), None)
    return {**valid, **kept}


def _read_items(part: Part) -> tuple[list[_Item], dict[str, Any], list[Problem]]:
    """Return the items of a document, the states it gives, and the problems of its form."""
    try:
        document = SpecDocument.model_validate(part.raw)
    except ValidationError as error:
        problems = problems_of(error, SpecDocument, show_values=True, most=MOST_FOUND)
    else:
        whole = [
            _Item(spec=spec, part=part, index=index, malformed=frozenset())
            for index, spec in enumerate(document.items)
        ]
        return whole, dict(document.states), []
    if len(problems) == MOST_FOUND:
        return [], {}, problems
    raws = part.raw.get("items") if isinstance(part.raw, dict) else None
    wrong: dict[Any, list[Problem]] = defaultdict(list)
    for problem in problems:
        if problem.path[:1] == ("items",) and len(problem.path) > 1:
            wrong[problem.path[1]].append(Problem(problem.message, problem.path[2:], problem.code))
    items = [
        _Item(
            spec=ItemSpec.model_validate(_mended(raw, wrong[index], _ITEM)),
            part=part,
            index=index,
            malformed=frozenset(each.path for each in wrong[index]),
        )
        for index, raw in enumerate(raws[:MOST_ITEMS] if isinstance(raws, list) else ())
    ]
    return items, {}, problems


# -- the items together ----------------------------------------------------------------------------


def _set_problems(items: Sequence[_Item]) -> Iterator[Problem]:
    """Find ids that occur twice, unknown dependencies and cycles."""
    named = [each for each in items if not _touches(("id",), each.malformed)]
    for problem in item_set_problems([each.spec for each in named]):
        index, *path = problem.path
        yield from named[int(index)].place(Problem(problem.message, tuple(path), problem.code))


def _state_problems(documents: Sequence[Part], items: Sequence[_Item]) -> Iterator[Problem]:
    known = dict.fromkeys(each.spec.id for each in items)
    hints = MOST_HINTS
    for part in documents:
        states = part.raw.get("states") if isinstance(part.raw, dict) else None
        for name in states if isinstance(states, dict) else ():
            if name not in known:
                hint = item_hint(name, known) if hints > 0 else ""
                hints -= 1
                message = f"there is no item {name!r}{hint}"
                yield from part.place(Problem(message, ("states", name), "unknown_name"))


def _number_problems(items: Sequence[_Item]) -> Iterator[Problem]:
    if len(items) > MOST_ITEMS:
        yield Problem(f"a loop may have {MOST_ITEMS} items, not {len(items)}", code="too_long")


def _runner_problems(
    loop: LoopConfig, items: Sequence[_Item], config: Part, *, known: bool
) -> Iterator[Problem]:
    """Report once that neither the loop nor some items name a runner."""
    without = [
        each.spec.id
        for each in items
        if each.spec.runner is None and not _touches(("runner",), each.malformed)
    ]
    if known and loop.runner is None and without:
        more = f" and {len(without) - _LISTED} more" if len(without) > _LISTED else ""
        message = (
            f"is required, because these items name none: {', '.join(without[:_LISTED])}{more}"
        )
        yield from config.place(Problem.at("runner", message, "missing"))


def _price_problems(
    loop: LoopConfig, items: Sequence[_Item], rules: LoopRules, malformed: set[str]
) -> Iterator[Problem]:
    """Refuse limits of money that cannot hold, because the cost of an answer is unknown."""
    limits = [scope for scope in _SCOPES if getattr(loop.budget, scope).money is not None]
    runners = [each.spec.runner or loop.runner for each in items] if limits else []
    names = {
        runner.profile or str(runner.options.get("model") or runner.kind): None
        for runner in runners
        if runner is not None and not rules.priced(runner)
    }
    for scope in limits if "budget" not in malformed else ():
        for name in names:
            message = (
                f"the cost of the runner {name!r} is unknown: add a price for it or for its model"
                " to [prices] of mulligan.toml"
            )
            yield Problem(message, ("budget", scope, "money"), "not_allowed")


def _repository_problems(
    loop: LoopConfig, rules: LoopRules, malformed: set[str]
) -> Iterator[Problem]:
    if "repo" in malformed:
        return
    of_repository = () if loop.repo is None else rules.repository(loop)
    for problem in chain(rules.config(loop), of_repository):
        if problem.path[0] not in malformed:
            yield problem


# -- the job of an item ----------------------------------------------------------------------------


def _job_problems(
    loop: LoopConfig, item: _Item, config: Part, rules: LoopRules, malformed: set[str]
) -> Iterator[Problem]:
    """Find every reason not to accept the job of an item, and name the field that causes it."""
    spec, runner = item.spec, item.spec.runner or loop.runner
    if wrong := [*item_problems(loop, spec)]:
        yield from item.place(*(each for each in wrong if not _touches(each.path, item.malformed)))
        return
    job = item_job(loop.model_copy(update={"runner": runner or _RUNNER}), spec)
    for problem in rules.check(job):
        # The allowed combinations of verifiers depend on the runner.
        if runner is None and (problem.path[:1] == ("runner",) or problem.path == ("verifiers",)):
            continue
        owner, path = _owner(loop, problem.path, spec)
        found = Problem(problem.message, path, problem.code)
        if owner == "loop":
            if not path or path[0] not in malformed:
                yield from config.place(found)
        elif not _touches(path, item.malformed):
            yield from item.place(found if path else Problem(str(problem), code=problem.code))


def _owner(loop: LoopConfig, path: FieldPath, spec: ItemSpec) -> tuple[str, FieldPath]:
    """Return whether the loop or the item causes a problem of the job, and by which field."""
    if loop.repo is not None and path[:1] == ("workspace",):
        return "loop", spec_path(loop, path)
    path = spec_path(loop, path)
    match path:
        case ("policy", *rest):
            return "loop", tuple(rest)
        case ("budget", *rest):
            return "loop", ("budget", "item", *rest)
        case ("task_type", *_) if spec.task_type is None:
            return "loop", ("name",)
        case ("runner" | "workspace" as name, *_) if getattr(spec, name) is None:
            return "loop", path
        case ("prompt" | "verifiers" | "runner" | "workspace" | "task_type", *_):
            return "item", path
    return "item", ()


def _touches(path: FieldPath, malformed: frozenset[FieldPath]) -> bool:
    """Whether a field, or what contains it, or a part of it, is malformed."""
    return any(path[: len(each)] == each[: len(path)] for each in malformed)
