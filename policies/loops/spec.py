"""What a loop consists of: its configuration (`loop.yaml`) and the items of its specs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, field_validator, model_validator

from mulligan.policies.jobs.job import (
    EXTERNAL,
    GIT_DIFF,
    GIT_MERGE,
    Job,
    Name,
    PolicySpec,
    RunnerSpec,
    Setup,
    Text,
    VerifierSpec,
    Workspace,
)
from mulligan.policies.loops.budget import LoopBudget
from mulligan.policies.loops.numbers import NotBoolean, Whole
from mulligan.policies.loops.repository_rules import repository_rules
from mulligan.policies.path_patterns import pattern_problem
from mulligan.policies.problem import MOST_FOUND, FieldError, FieldPath, Problem
from mulligan.policies.regressions.record import RegressionRules
from mulligan.policies.suggestions import did_you_mean, name_hint
from mulligan.policies.value import Value

_NO_WEIGHT = 0.001
#: A name that is part of addresses, keys and commands.
_LONGEST_NAME = 80
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
LoopName = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME, pattern=NAME_PATTERN)]
ItemId = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME, pattern=NAME_PATTERN)]
#: An item of this loop, or of another one as `loop/item`.
ItemRef = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2 * _LONGEST_NAME + 1,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,79})?$",
    ),
]
EventName = Annotated[str, Field(min_length=1, max_length=_LONGEST_NAME, pattern=NAME_PATTERN)]
#: How a wait for an event is written beside waits for items of other loops.
EVENT = "event:"
#: One line of text without characters that control a terminal or the direction of a text, that
#: separate lines, or that cannot be seen. U+200C and U+200D may be part of words and of emoji.
PLAIN_LINE = r"^[^\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"
#: What a loop may do by itself for an item that failed.
HealAction = Literal[
    "change_strategy",
    "split",
    "skip",
    "unblock",
    "repair_dependency_chain",
    "rollback",
    "escalate",
]
HEAL_ACTIONS: tuple[HealAction, ...] = get_args(HealAction)
#: What `auto_heal: true` stands for. Work is left out only where a loop says so by name.
_HEALS_BY_DEFAULT: frozenset[HealAction] = frozenset(HEAL_ACTIONS) - {"skip"}
#: ``reroute``: when healing the failed item did not help, go on without it.
OnBlocked = Literal["wait", "continue", "reroute"]
#: The state of an item that was done before its loop existed.
DoneState = Literal["passed", "skipped"]
#: The fields of a loop that belong to `repo`.
OF_REPOSITORIES = (
    "branch", "base", "setup", "protect", "edits", "already_done", "deliver", "sync",
    "regressions",
)  # fmt: skip
#: Items of one loop, and patterns of files of one item.
MOST_ITEMS = 5000
MOST_FILES = 200
MOST_FILE_PATTERNS = 30
#: Events that the items of one loop give off, and what they wait for outside the loop.
MOST_EVENTS = 100
MOST_WAITS = 1000
#: What takes long to search for: cycles, and ids that are similar to an unknown one.
_MOST_CYCLES = 5
MOST_HINTS = 5
_MOST_COMPARED = 1000


def is_loop_name(text: str) -> bool:
    """Whether a loop may have this name. Any other text could address another record."""
    return len(text) <= _LONGEST_NAME and re.fullmatch(NAME_PATTERN, text) is not None


def _answers_by_itself(runner: RunnerSpec) -> RunnerSpec:
    if runner.kind == EXTERNAL:
        raise ValueError("an item cannot be external work: name a runner that answers by itself")
    return runner


ItemRunner = Annotated[RunnerSpec, AfterValidator(_answers_by_itself)]


#: What git allows in the name of a branch and does not read as an option, a pattern or a path.
_BRANCH = re.compile(r"[A-Za-z0-9_][\w./@+=-]*", re.ASCII)


def _check_branch(name: str) -> str:
    parts = name.split("/")
    wrong = any(not part or part[0] == "." or part.endswith((".", ".lock")) for part in parts)
    if wrong or not _BRANCH.fullmatch(name) or ".." in name or parts[0] in ("refs", "HEAD"):
        raise ValueError(f"{name!r} is not the name of a branch, such as mulligan/docs")
    return name


BranchName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_branch)]


class Deliver(Value):
    """What follows when every item of a loop is done: nothing, or one of these."""

    #: A branch that is moved forward to the loop's, if that is all there is to do.
    fast_forward: BranchName | None = None
    #: A command of the workers' configuration by its name, or its arguments. It runs in a checkout.
    command: Text | tuple[Text, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        """`branch`, the default, leaves the work on the loop's branch."""
        if value == "branch":
            return {}
        if isinstance(value, str):
            message = f"{value!r} is none of branch, {{fast_forward: BRANCH}} and {{command: NAME}}"
            raise ValueError(message)  # noqa: TRY004 - pydantic reads this kind
        return value

    @model_validator(mode="after")
    def _one_of(self) -> Deliver:
        if self.fast_forward is not None and self.command is not None:
            raise ValueError("give either fast_forward or command")
        return self


class LoopConfig(Value):
    """The configuration of a loop. Files call it `loop.yaml`."""

    version: Annotated[Literal[1], NotBoolean] = 1
    name: LoopName
    #: Patterns of spec files, relative to the file of the loop.
    specs: tuple[Text, ...] = ()
    #: The runner of items that name none: a profile of the workers.
    runner: ItemRunner | None = None
    workspace: Workspace | None = None
    #: The git repository that the items change: a name of the workers' configuration, its URL, or
    #: a path that every worker can reach. Instead of a workspace.
    repo: Text | None = None
    #: The branch that passed work is merged into; by default `mulligan/NAME`.
    branch: BranchName | None = None
    #: Where the branch begins: a branch, a tag or a commit.
    base: Text = "HEAD"
    #: How a checkout is prepared for agents and verifiers.
    setup: Setup | None = None
    #: Patterns of files that no attempt may change or delete.
    protect: tuple[Text, ...] | None = Field(default=None, max_length=200)
    #: Whether answers are plans of edits, for runners that only answer with text.
    edits: bool = False
    #: What happens to an item whose acceptance verifiers pass before the work.
    already_done: Literal["skip", "refuse"] = "skip"
    #: What follows when every item is done.
    deliver: Deliver = Deliver()
    #: A branch of the repository whose new commits are merged into the loop's branch.
    sync: Text | None = None
    max_attempts: Whole = Field(default=3, ge=2, le=100)
    #: 1 is the most urgent.
    priority: Whole = Field(default=5, ge=1, le=9)
    #: Its share among the loops of one priority.
    weight: Annotated[float, NotBoolean] = Field(
        default=1.0, ge=0.001, le=1000, allow_inf_nan=False
    )
    #: Maximum items that run at once.
    concurrency: Whole = Field(default=1, ge=1, le=1000)
    #: ``False``, ``True`` for every action but `skip`, or a list of actions.
    auto_heal: bool | tuple[HealAction, ...] = False
    #: Stronger runners, in this order, for items that failed although their strategy was changed.
    escalate_to: tuple[ItemRunner, ...] = Field(default=(), max_length=10)
    #: What the items after a failed one do: wait for it, go on without it, or go on without it when
    #: it could not be healed.
    on_blocked: OnBlocked = "wait"
    budget: LoopBudget = LoopBudget()
    #: Whether what passed is verified again, or when, and what follows if it fails.
    regressions: bool | RegressionRules = True

    @field_validator("auto_heal", mode="before")
    @classmethod
    def _check_auto_heal(cls, value: Any) -> Any:
        """Refuse in one sentence what is neither a boolean nor a list of actions."""
        if isinstance(value, bool):
            return value
        if not isinstance(value, list | tuple):
            message = "must be true, false or a list of actions"
            raise ValueError(message)  # noqa: TRY004 - pydantic reads this kind
        for index, each in enumerate(value):
            if each not in HEAL_ACTIONS:
                hint = name_hint(str(each), HEAL_ACTIONS)
                raise FieldError((index,), f"there is no such action{hint}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> LoopConfig:
        if self.repo is not None and self.workspace is not None:
            raise FieldError("workspace", "give either repo or workspace")
        if self.repo is None:
            defaults = LoopConfig.model_fields
            for name in OF_REPOSITORIES:
                if getattr(self, name) != defaults[name].get_default(call_default_factory=True):
                    raise FieldError(name, "belongs to repo")
        if self.on_blocked == "reroute" and "repair_dependency_chain" not in self.heals:
            message = "reroute needs auto_heal with repair_dependency_chain"
            raise FieldError("on_blocked", message)
        return self

    @property
    def target(self) -> str:
        """The branch that passed work is merged into."""
        return self.branch or f"mulligan/{self.name}"

    def item_workspace(self) -> Workspace | None:
        """The workspace of items that have none of their own."""
        if self.repo is None:
            return self.workspace
        fields: dict[str, Any] = {"git": self.repo, "ref": self.base, "branch": self.target}
        if self.protect is not None:
            fields["protect"] = self.protect
        return Workspace(**fields, setup=self.setup, edits=self.edits)

    @property
    def regression_rules(self) -> RegressionRules | None:
        """When what passed is verified again; None: never."""
        if isinstance(self.regressions, RegressionRules):
            return self.regressions
        return RegressionRules() if self.regressions and self.repo is not None else None

    @property
    def heals(self) -> frozenset[HealAction]:
        """The actions that the loop may take by itself."""
        if isinstance(self.auto_heal, bool):
            return _HEALS_BY_DEFAULT if self.auto_heal else frozenset()
        return frozenset(self.auto_heal)


def branch_clashes(loop: LoopConfig, other: LoopConfig) -> Iterator[Problem]:
    """Find why two loops cannot write to one repository. Both may be delivered to one branch."""
    ours, theirs = loop.target, other.target
    if ours in (theirs, other.deliver.fast_forward):
        message = f"{ours} is the branch of another loop: name another branch"
        yield Problem.at("branch", message)
    elif ours.startswith(f"{theirs}/") or theirs.startswith(f"{ours}/"):
        message = (
            f"git cannot have {ours} beside {theirs}, which is the branch of another loop: name"
            " another branch"
        )
        yield Problem.at("branch", message)
    if loop.deliver.fast_forward == theirs:
        message = f"{theirs} is the branch of another loop: name another branch"
        yield Problem.at("deliver.fast_forward", message)


class ItemVerifier(VerifierSpec):
    """A check of an item. ``guard``: it passed before the work and must still pass."""

    role: Literal["acceptance", "guard"] = "acceptance"

    def plain(self) -> VerifierSpec:
        """Return the verifier as a job has it."""
        return VerifierSpec.model_validate(self.model_dump(exclude={"role"}, exclude_unset=True))


class ItemSpec(Value):
    """One work item of a loop."""

    id: ItemId
    title: Annotated[str, Field(max_length=200, pattern=PLAIN_LINE)] = ""
    prompt: str = Field(min_length=1)
    #: Items that must pass first, also of other loops: `loop/item`.
    depends_on: tuple[ItemRef, ...] = Field(default=(), max_length=200)
    #: Events that it gives off when it is done, and those that it waits for before it begins.
    emits: tuple[EventName, ...] = Field(default=(), max_length=50)
    waits_for: tuple[EventName, ...] = Field(default=(), max_length=50)
    verifiers: tuple[ItemVerifier, ...] = Field(min_length=1, max_length=50)
    #: What a person would check; part of the prompt.
    pass_criteria: tuple[Text, ...] = Field(default=(), max_length=100)
    #: 1 is the most urgent.
    priority: Whole = Field(default=5, ge=1, le=9)
    #: Patterns of the files that the item changes. No other item changes them at the same time.
    touches: tuple[Text, ...] = Field(default=(), max_length=MOST_FILES)
    #: The item's own runner, instead of the loop's.
    runner: ItemRunner | None = None
    workspace: Workspace | None = None
    #: By default the name of the loop.
    task_type: Name | None = None

    @property
    def label(self) -> str:
        return self.title or self.id

    @property
    def own_dependencies(self) -> tuple[str, ...]:
        """The items of its own loop that must pass first."""
        return tuple(each for each in self.depends_on if "/" not in each)

    @property
    def outer_waits(self) -> tuple[str, ...]:
        """What it waits for outside its loop: `loop/item`, and `event:name`."""
        items = tuple(each for each in self.depends_on if "/" in each)
        return (*items, *(EVENT + each for each in self.waits_for))


class SpecDocument(Value):
    """A spec file: items in the order in which people read them."""

    version: Annotated[Literal[1], NotBoolean] = 1
    items: tuple[ItemSpec, ...] = Field(min_length=1, max_length=MOST_ITEMS)
    #: Items that were done before the loop existed: `passed` or `skipped`.
    states: dict[ItemId, DoneState] = Field(default_factory=dict)


class LoopDocument(Value):
    """A loop with its items: what the factory creates a loop from."""

    loop: LoopConfig
    items: tuple[ItemSpec, ...] = Field(min_length=1, max_length=MOST_ITEMS)
    #: The first states of items that were done before the loop existed.
    states: dict[ItemId, DoneState] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _without_patterns(cls, value: Any) -> Any:
        """The files have been read: where they were says nothing about the loop."""
        if isinstance(value, dict) and isinstance(value.get("loop"), dict):
            return {**value, "loop": {k: v for k, v in value["loop"].items() if k != "specs"}}
        return value


def workspace_problems(workspace: Workspace | None) -> Iterator[Problem]:
    """Find the fields of a workspace that nobody may set: loops and submitting fill them in."""
    if workspace is None:
        return
    if workspace.branch is not None:
        message = "only a loop with a repo has a branch: use ref"
        yield Problem.at("workspace.branch", message, "not_allowed")
    if workspace.commit is not None:
        message = "is found when the work is submitted: use ref"
        yield Problem.at("workspace.commit", message, "not_allowed")


def item_problems(loop: LoopConfig, item: ItemSpec) -> Iterator[Problem]:
    """Find what an item may not have because its loop has or adds it, and what it lacks."""
    if loop.repo is not None and item.workspace is not None:
        message = "the items of a loop with a repository have no workspace of their own"
        yield Problem.at("workspace", message, "not_allowed")
        return
    yield from workspace_problems(item.workspace)
    for index, name in enumerate(item.depends_on):
        if name.startswith(f"{loop.name}/"):
            message = f"is an item of this loop: call it {name.partition('/')[2]}"
            yield Problem(message, ("depends_on", index))
    for index, pattern in enumerate(item.touches):  # earlier releases have accepted any
        if message := pattern_problem(pattern):
            yield Problem(message, ("touches", index))
    if sum("*" in each or "?" in each for each in item.touches) > MOST_FILE_PATTERNS:
        message = f"may have {MOST_FILE_PATTERNS} patterns with wildcards"
        yield Problem.at("touches", message, "too_long")
    for index, name in enumerate(item.waits_for):
        if name in item.emits:
            message = f"the item waits for {name}, which only its own end gives off"
            yield Problem(message, ("waits_for", index))
    for index, each in enumerate(item.verifiers):
        if each.id in (GIT_DIFF, GIT_MERGE):
            message = f"a loop with a repo adds {each.id} by itself: leave it out"
            yield Problem(message, ("verifiers", index, "id"), "not_allowed")
    if loop.repo is not None and all(each.role == "guard" for each in item.verifiers):
        message = (
            "every verifier is a guard, so none shows that the work is done: add one that fails"
            " before the work, without role: guard"
        )
        yield Problem.at("verifiers", message, "missing")


def item_prompt(item: ItemSpec, space: Workspace | None = None) -> str:
    """Return what every attempt asks: the item's prompt and criteria, the repository's rules."""
    parts = [item.prompt]
    if item.pass_criteria:
        criteria = "\n".join(f"- {each}" for each in item.pass_criteria)
        parts.append(f"The work is done when all of this is true:\n{criteria}")
    if space is not None and space.branch is not None:
        parts.append(repository_rules(space))
    return "\n\n".join(parts)


def item_job(
    loop: LoopConfig,
    item: ItemSpec,
    *,
    labels: dict[str, str] | None = None,
    runner: RunnerSpec | None = None,
    advice: str = "",
) -> Job:
    """Return the job that does an item. Raises ValueError if the item has no runner.

    ``runner``: instead of the item's own. ``advice``: what earlier runs taught; see healing.
    """
    runner = runner or item.runner or loop.runner
    if runner is None:
        raise ValueError("no runner: name one in the item or in the loop")
    verifiers = tuple(each.plain() for each in item.verifiers)
    if loop.repo is not None:
        # What these find decides, but says nothing about how good the work is.
        first = [VerifierSpec(id=GIT_DIFF, weight=_NO_WEIGHT)]
        if loop.edits:
            first.append(VerifierSpec(id="edits.plan", weight=_NO_WEIGHT))
        places = [i + len(first) for i in range(len(verifiers))]
        roles = {
            role: [i for i, each in zip(places, item.verifiers, strict=True) if each.role == role]
            for role in ("acceptance", "guard")
        }
        more = {"already_done": loop.already_done, "sync": loop.sync, "title": item.title}
        merge = {**roles, **{name: value for name, value in more.items() if value}}
        last = VerifierSpec(id=GIT_MERGE, weight=_NO_WEIGHT, **merge)
        verifiers = (*first, *verifiers, last)
    space = item.workspace or loop.item_workspace()
    return Job(
        task_type=item.task_type or loop.name,
        name=item.id,
        prompt="\n\n".join(filter(None, (item_prompt(item, space), advice))),
        runner=runner,
        verifiers=verifiers,
        policy=PolicySpec(max_attempts=loop.max_attempts),
        budget=loop.budget.item_budget(),
        workspace=space,
        labels={**(labels or {}), "loop": loop.name, "item": item.id},
    )


#: The fields of a loop that a workspace of its items comes from.
_OF_WORKSPACE = {"git": "repo", "ref": "base"}


def spec_path(loop: LoopConfig, path: FieldPath) -> FieldPath:
    """Return the place in a loop's files of a problem of an item's job in a repository."""
    if loop.repo is None:
        return path
    match path:
        case ("workspace", str() as name, *rest):
            return (_OF_WORKSPACE.get(name, name), *rest)
        case ("verifiers", int() as index, *rest):
            return ("verifiers", max(0, index - (2 if loop.edits else 1)), *rest)
    return path


def own_verifiers(job: Job) -> list[VerifierSpec]:
    """Return the verifiers that the spec of an item names, without those that a loop adds."""
    if not job.merges:
        return list(job.verifiers)
    roles = job.verifiers[-1].options
    return [job.verifiers[i] for i in sorted((*roles["acceptance"], *roles["guard"]))]


def dependency_cycle(items: Sequence[ItemSpec]) -> tuple[str, ...]:
    """Return the ids of a cycle of dependencies, the first one repeated at the end; or nothing.

    It begins with the item of the cycle that comes first in the specs.
    """
    graph = TopologicalSorter[str]()
    for item in items:
        graph.add(item.id, *item.own_dependencies)
    try:
        graph.prepare()
    except CycleError as error:
        ring = list(reversed(error.args[1]))[:-1]
        first = next(item.id for item in items if item.id in ring)
        start = ring.index(first)
        return (*ring[start:], *ring[:start], first)
    return ()


def item_hint(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown id: the one that was probably meant."""
    return did_you_mean(name, islice(known, _MOST_COMPARED))


def item_set_problems(items: Sequence[ItemSpec]) -> Iterator[Problem]:
    """Find ids that occur twice, unknown dependencies and cycles, at ``(index, field…)``.

    Of a loop that is wrong everywhere, the first problems are enough.
    """
    yield from islice(_item_set_problems(items), MOST_FOUND)


def _item_set_problems(items: Sequence[ItemSpec]) -> Iterator[Problem]:
    known = Counter(item.id for item in items)
    hints = MOST_HINTS
    for index, item in enumerate(items):
        if known[item.id] > 1:
            yield Problem(f"the id {item.id} occurs twice", (index, "id"))
        for number, each in enumerate(item.depends_on):
            if each not in known and "/" not in each:
                hint = item_hint(each, known) if hints > 0 else ""
                hints -= 1
                message = f"{item.id} depends on {each}, which does not exist{hint}"
                yield Problem(message, (index, "depends_on", number), "unknown_name")
    events = dict[str, tuple[int, int]]()
    for index, item in enumerate(items):
        for number, event in enumerate(item.emits):
            events.setdefault(event, (index, number))
    if len(events) > MOST_EVENTS:
        index, number = [*events.values()][MOST_EVENTS]
        message = f"the items of a loop may give off {MOST_EVENTS} different events"
        yield Problem(message, (index, "emits", number), "too_long")
    waits = dict[str, int]()
    for index, item in enumerate(items):
        for each in item.outer_waits:
            waits.setdefault(each, index)
    if len(waits) > MOST_WAITS:
        message = f"the items of a loop may wait for {MOST_WAITS} items of others and events"
        yield Problem(message, ([*waits.values()][MOST_WAITS],), "too_long")
    places = {item.id: index for index, item in reversed(list(enumerate(items)))}
    rest = list(items)
    cycle, left = dependency_cycle(rest), _MOST_CYCLES
    while cycle and left:
        message = f"the dependencies form a cycle: {' → '.join(cycle)}"
        place = (places[cycle[0]], "depends_on")
        rest = [item for item in rest if item.id not in cycle]
        cycle, left = dependency_cycle(rest), left - 1
        yield Problem(message if left or not cycle else f"{message}; there are more cycles", place)
