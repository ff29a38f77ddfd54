"""``loop.draft``: the answer is the spec of a loop that fits the repository of the job.

Its verifiers run once on the repository as it is, in the sandbox of all verifiers. No code of the
answer runs: they may only run tests, named commands, and the programs that `programs` allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Protocol

from pydantic import ValidationError

from mulligan.policies.failures.failure import (
    UNLISTED,
    FailureKind,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import Output, VerifierSpec
from mulligan.policies.loops.draft import LOOP_DRAFT, DraftRules, authority_problems
from mulligan.policies.loops.spec import ItemSpec, item_problems
from mulligan.policies.problem import Problem
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.loops.spec_check import (
    CodeBase,
    SpecCheck,
    SpecFinding,
    item_findings,
    problem_finding,
    set_findings,
)
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.verifiers import Candidate, Verifier
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.workspace import git_trees
from mulligan.workers.verifiers.json_text import (
    coercion_warnings,
    extraction_of,
    parse_evidence,
    parse_finding,
)

_MOST_FINDINGS, _MOST_OF_ITEM = 100, 20


class _Registry(Protocol):
    """Builds the verifiers of a draft."""

    def build_named(self, spec: VerifierSpec, *, blobs: BlobStore | None) -> Verifier:
        """Build a verifier, with the argv of a command that it names. Raises BadInput."""


class LoopDraft:
    """Partial credit is items without a problem / items.

    Evidence: ``kind`` (``schema_invalid`` if the answer is no list of items), ``items``, ``good``,
    ``unlisted`` (the number of problems that are not listed).
    Codes: ``not_json``, ``not_a_spec``, ``unknown_dependency``, ``cycle``, ``duplicate_id``,
    ``cannot_run``, ``passes_already``, ``guard_fails``, and those of problems: ``not_allowed``…
    """

    id: ClassVar[str] = LOOP_DRAFT
    slow: bool = True
    needs_blobs: ClassVar[bool] = True
    needs_workspace: ClassVar[bool] = True
    #: Built with ``registry``: what builds the verifiers of the items.
    needs_registry: ClassVar[bool] = True

    class Options(DraftRules):
        pass

    def __init__(
        self,
        options: Options,
        *,
        registry: _Registry,
        blobs: BlobStore | None = None,
        limits: Limits | None = None,
        root: Path | None = None,
    ) -> None:
        del limits, root  # those of the verifiers that it builds
        self.options = options
        self._registry, self._blobs = registry, blobs

    @property
    def longest(self) -> float:
        # A run of pytest has up to three times its timeout.
        return 3 * self.options.seconds + 60.0

    def verify(self, candidate: Candidate) -> VerificationResult:
        started, extraction = perf_counter(), extraction_of(candidate)
        coercions = {"coercions": list(extraction.coercions)} if extraction.coercions else {}
        if not extraction.parsed:
            finding = parse_finding(extraction, code="not_json")
            evidence = parse_evidence(candidate, extraction)
            return self._result([finding], evidence, (), started)
        raws, problem = self._items(extraction.value)
        if problem is not None:
            return self._result([problem], coercions, coercion_warnings(extraction), started)
        found = [*self._findings(raws, candidate)]
        wrong = [each for each in found if not each.is_warning]
        good = len(raws) - len({each.path[0] for each in wrong})
        return self._result(
            [_as_finding(each) for each in wrong],
            {"kind": FailureKind.REASONING_ERROR.value, "items": len(raws), "good": good}
            | coercions,
            (*coercion_warnings(extraction), *(str(each) for each in found if each.is_warning)),
            started,
            score=100 * good / len(raws),
            count=sum(each.count for each in wrong),
        )

    def _items(self, value: Any) -> tuple[list[Any], Finding | None]:
        items = value.get("items") if isinstance(value, dict) else None
        message = ""
        if not isinstance(items, list) or not items:
            message = 'the answer must be an object with a list of items: {"items": […]}'
        elif len(items) > self.options.max_items:
            message = f"there are {len(items)} items; at most {self.options.max_items} are allowed"
        if message:
            return [], Finding(message=message, code="not_a_spec", path="$.items")
        assert isinstance(items, list)  # noqa: S101 - without a message it is one
        return items, None

    def _findings(self, raws: Sequence[Any], candidate: Candidate) -> Iterator[SpecFinding]:
        """Yield what is wrong with the items. A malformed one is not run, but may be needed."""
        items: list[ItemSpec] = []
        sound: set[int] = set()
        for index, raw in enumerate(raws):
            item, found = self._read(index, raw)
            items.append(item)
            yield from found
            if not found:
                sound.add(index)
        yield from set_findings(items)
        base = self._code_base(candidate)
        check = SpecCheck(base)
        for index in sorted(sound):
            yield from item_findings(index, items[index], base.files)
            yield from check.run(index, items[index])

    def _read(self, index: int, raw: Any) -> tuple[ItemSpec, list[SpecFinding]]:
        """Return an item and what it may not be; for a malformed one, another with its id."""
        try:
            item = ItemSpec.model_validate(raw)
        except ValidationError as error:
            stub = _stub(index, raw)
            problems = problems_of(error, ItemSpec, show_values=True, most=_MOST_OF_ITEM)
            found = [problem_finding(index, stub.id, each) for each in problems]
            if (more := error.error_count() - _MOST_OF_ITEM) > 0:
                last = problem_finding(index, stub.id, Problem(f"and {more:,} more problems"))
                found.append(replace(last, count=more))
            return stub, found
        rules = (
            *authority_problems(item, self.options.programs),
            *item_problems(self.options.loop, item),
        )
        return item, [problem_finding(index, item.id, each) for each in rules]

    def _code_base(self, candidate: Candidate) -> CodeBase:
        space = candidate.workspace
        if space is None or space.git is None or space.commit is None:
            raise BadInput(f"{self.id} needs a workspace in git, whose commit is known")
        commit = space.commit
        base = Candidate(
            output=Output(text="", commit=commit, base=commit), text="", workspace=space
        )
        return CodeBase(
            build=lambda spec: self._registry.build_named(spec, blobs=self._blobs),
            candidate=lambda _item: base,
            files=git_trees(self._blobs).tree(space.git, commit).keys(),
            seconds=self.options.seconds,
        )

    def _result(
        self,
        findings: Sequence[Finding],
        evidence: dict[str, Any],
        warnings: Sequence[str],
        started: float,
        score: float = 0.0,
        count: int = 0,
    ) -> VerificationResult:
        count, items = count or len(findings), evidence.get("items", 0)
        first = f"{findings[0].path}: {findings[0].message}" if findings else ""
        if unlisted := count - len(findings[:_MOST_FINDINGS]):
            evidence = {**evidence, UNLISTED: unlisted}
        return VerificationResult(
            status=VerificationStatus.FAIL if findings else VerificationStatus.PASS,
            verifier_id=self.id,
            summary=f"{count} problem{'s' * (count != 1)}; first {first}"
            if findings
            else f"{items} item{'s' * (items != 1)}, each with a check that fails before the work",
            evidence={"kind": FailureKind.SCHEMA_INVALID.value, **evidence},
            errors=tuple(findings[:_MOST_FINDINGS]),
            warnings=tuple(warnings[:_MOST_FINDINGS]),
            elapsed_seconds=perf_counter() - started,
            score=score if findings else None,
        )


def _stub(index: int, raw: Any) -> ItemSpec:
    """Return a valid item in place of a malformed one, so that its id is known."""
    base = {"prompt": "-", "verifiers": ["json.object"]}
    try:
        return ItemSpec.model_validate({**base, "id": raw["id"]})
    except (ValidationError, TypeError, KeyError):
        return ItemSpec.model_validate({**base, "id": f"items.{index}"})


def _as_finding(found: SpecFinding) -> Finding:
    return Finding(message=str(found)[:2000], code=found.code, path=f"$.{found.place}"[:300])
