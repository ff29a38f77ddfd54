"""Spec check: compare the items of a loop with the code base that they are to change.

A verifier of an item says nothing if it cannot run, or passes before the work. So all of them run
once on the repository as it is, as they do before the first attempt of an item.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from pydantic import TypeAdapter, ValidationError

from mulligan.policies.failures.classify import message_of
from mulligan.policies.failures.failure import VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import Seconds, VerifierSpec
from mulligan.policies.loops.draft import COMMAND, PYTEST, unchecked_criteria
from mulligan.policies.loops.spec import ItemSpec, ItemVerifier, item_set_problems
from mulligan.policies.path_patterns import matches
from mulligan.policies.problem import FieldPath, Problem, spell_path
from mulligan.policies.repair.instruction import one_line
from mulligan.tasks.ports.clock import SYSTEM_CLOCK, Clock
from mulligan.tasks.ports.errors import (
    BadInput,
    CallCancelled,
    ProcessesBusy,
    SetupFailed,
    VerifierError,
    WorkspaceUnavailable,
)
from mulligan.tasks.ports.verifiers import Candidate, Verifier

#: Seconds of a verifier that names no timeout, as theirs are by default.
_TIMEOUT = 60.0
_SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)
#: Patterns and files that are compared.
_MOST_COMPARED = 50_000
_LONGEST_COMMAND, _LONGEST_MESSAGE = 120, 1000


@dataclass(frozen=True, kw_only=True)
class SpecFinding:
    """One thing that is wrong with a spec, or a warning about it."""

    message: str
    #: Below the items: ``(index, field…)``.
    path: FieldPath
    #: Stable and language-free: ``cycle``, ``cannot_run``, ``passes_already``…
    code: str
    item: str = ""
    is_warning: bool = False
    #: How many problems it stands for.
    count: int = 1

    @property
    def place(self) -> str:
        return spell_path(("items", *self.path))

    def __str__(self) -> str:
        about = self.item or self.place
        return self.message if self.message.startswith(about) else f"{about}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class CodeBase:
    """What a spec is compared with, and how its verifiers are built and run there."""

    #: Builds a verifier, or raises BadInput.
    build: Callable[[VerifierSpec], Verifier]
    #: The code base without any work.
    candidate: Callable[[ItemSpec], Candidate]
    #: Its files; None if they are not known.
    files: Collection[str] | None = None
    #: For all verifiers together.
    seconds: float = 200.0
    clock: Clock = SYSTEM_CLOCK
    #: Called before each verifier that runs.
    on_run: Callable[[str], None] = lambda _label: None


@dataclass
class SpecCheck:
    """One check of a spec. Equal verifiers run once."""

    base: CodeBase
    _known: dict[str, VerificationResult | str] = field(default_factory=dict)
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self._until = self.base.clock.monotonic() + self.base.seconds

    def find(
        self, items: Sequence[ItemSpec], *, done: Collection[str] = ()
    ) -> Iterator[SpecFinding]:
        """Yield what is wrong. ``done``: items that are done already, whose verifiers may pass."""
        yield from set_findings(items)
        for index, item in enumerate(items):
            yield from item_findings(index, item, self.base.files)
            if item.id not in done:
                yield from self.run(index, item)

    def run(self, index: int, item: ItemSpec) -> Iterator[SpecFinding]:
        """Run the verifiers of an item. WorkspaceUnavailable passes through."""
        results = [self._result(item, each) for each in item.verifiers]
        fails = any(
            each.role == "acceptance" and _failed(result)
            for each, result in zip(item.verifiers, results, strict=True)
        )
        for place, (each, result) in enumerate(zip(item.verifiers, results, strict=True)):
            found = _finding(each, result, others_fail=fails)
            if found is not None:
                code, message, is_warning = found
                yield SpecFinding(
                    message=one_line(f"{describe_verifier(each)} {message}", _LONGEST_MESSAGE),
                    path=(index, "verifiers", place),
                    code=code,
                    item=item.id,
                    is_warning=is_warning,
                )

    def _result(self, item: ItemSpec, spec: ItemVerifier) -> VerificationResult | str:
        """Return the result of a verifier on the code base, or why there is none."""
        plain = spec.plain().model_dump(mode="json", exclude={"name", "weight", "required"})
        # Without a repository, each item may have a workspace of its own.
        space = item.workspace.model_dump(mode="json") if item.workspace else None
        key = json.dumps([plain, space], sort_keys=True)
        if key not in self._known:
            self._known[key] = self._run(item, spec)
        return self._known[key]

    def _run(self, item: ItemSpec, spec: ItemVerifier) -> VerificationResult | str:
        left = self._until - self.base.clock.monotonic()
        if left < 1:
            return (
                "was not run: all verifiers of the spec together may take"
                f" {self.base.seconds:g} s on the code base"
            )
        self.base.on_run(f"{item.id}: {describe_verifier(spec)}")
        try:
            result = self.base.build(_within(spec, left)).verify(self.base.candidate(item))
        except (WorkspaceUnavailable, CallCancelled, SetupFailed, ProcessesBusy):
            raise  # this is nobody's fault, and would be the same for every verifier
        except (BadInput, VerifierError) as error:
            return f"cannot run: {error}"
        except Exception as error:  # a plug-in's bug
            return f"cannot run: {type(error).__name__}: {message_of(error)}"
        if result.evidence.get("timed_out"):
            return f"does not end on the code base: {result.summary}"
        if any(each.code == "no_tests" for each in result.errors):
            return f"cannot run: {result.summary}"
        return result


def _within(spec: ItemVerifier, left: float) -> VerifierSpec:
    """Return a verifier that takes no longer than what is left."""
    plain = spec.plain()
    if spec.id not in (PYTEST, COMMAND):
        return plain
    try:
        wanted = _SECONDS.validate_python(plain.options.get("timeout", _TIMEOUT))
    except ValidationError:
        return plain  # building it says what is wrong
    fields = plain.model_dump(exclude_unset=True)
    return VerifierSpec.model_validate({**fields, "timeout": min(wanted, left)})


def _failed(result: VerificationResult | str) -> bool:
    return not isinstance(result, str) and result.status is VerificationStatus.FAIL


def _finding(
    spec: ItemVerifier, result: VerificationResult | str, *, others_fail: bool
) -> tuple[str, str, bool] | None:
    """Return the code and the message of what is wrong with a verifier, and whether it matters."""
    if isinstance(result, str):
        return "cannot_run", result, False
    if result.status is VerificationStatus.SKIPPED:
        return "cannot_run", f"is skipped: {result.summary}", False
    fails = result.status is VerificationStatus.FAIL
    if spec.role == "guard" and fails:
        message = f"is a guard, but fails before the work: {result.summary}"
        return "guard_fails", message, False
    if spec.role == "acceptance" and not fails:
        message = "passes before the work, so it does not show that the work is done"
        # One that fails is enough for the item.
        return "passes_already", message, others_fail
    return None


# -- without running anything ----------------------------------------------------------------------


def set_findings(items: Sequence[ItemSpec]) -> Iterator[SpecFinding]:
    """Find ids that occur twice, unknown dependencies and cycles."""
    for problem in item_set_problems(items):
        index, *rest = problem.path
        code = "unknown_dependency" if problem.code == "unknown_name" else "duplicate_id"
        if "cycle" in problem.message and rest == ["depends_on"]:
            code = "cycle"
        yield SpecFinding(
            message=problem.message, path=problem.path, code=code, item=items[int(index)].id
        )


def item_findings(
    index: int, item: ItemSpec, files: Collection[str] | None
) -> Iterator[SpecFinding]:
    """Find criteria that nothing checks, and files that do not exist. These are warnings."""
    for criterion in unchecked_criteria(item):
        yield SpecFinding(
            message=f"no verifier checks the criterion {criterion[:200]!r}",
            path=(index, "pass_criteria", item.pass_criteria.index(criterion)),
            code="criterion_unchecked",
            item=item.id,
            is_warning=True,
        )
    if files is None or len(files) * len(item.touches) > _MOST_COMPARED:
        return
    for place, pattern in enumerate(item.touches):
        if not any(matches([pattern], each) for each in files):
            yield SpecFinding(
                message=f"touches {pattern[:200]!r}, which no file matches yet",
                path=(index, "touches", place),
                code="touches_nothing",
                item=item.id,
                is_warning=True,
            )


def problem_finding(index: int, item: str, problem: Problem) -> SpecFinding:
    """Return the problem of an item as a finding."""
    field_name = spell_path(problem.path)
    message = f"{field_name}: {problem.message}" if field_name else problem.message
    return SpecFinding(message=message, path=(index, *problem.path), code=problem.code, item=item)


def describe_verifier(spec: VerifierSpec) -> str:
    """Return a verifier as people write it: its command, or its name."""
    options: Mapping[str, object] = spec.options
    match options.get("argv") or options.get("args") or options.get("command"):
        case list() | tuple() as words:
            head = ("pytest",) if spec.id == PYTEST else ()
            # Where a program is installed says nothing to a reader.
            program = [] if head else [PurePath(str(words[0])).name]
            rest = words if head else words[1:]
            return one_line(" ".join([*head, *program, *map(str, rest)]), _LONGEST_COMMAND)
        case str() as name:
            return one_line(name, _LONGEST_COMMAND)
    return spec.label
