"""``edits.plan``: the answer is a plan of edits that apply to the workspace one after the other.

The edits are tried on a private copy, so that the next prompt tells an author who cannot see the
tree what was expected, what is there and which lines are nearest.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

from pydantic import Field, ValidationError

from mulligan.extras import EDIT_PACKAGES, find_missing
from mulligan.policies.edits.edit import Edit, EditPlan
from mulligan.policies.failures.failure import (
    FailureKind,
    Finding,
    VerificationResult,
    VerificationStatus,
)
from mulligan.policies.jobs.job import Output, Workspace, escapes
from mulligan.policies.problem import spell_path
from mulligan.policies.value import Json, Value
from mulligan.tasks.jobs.validation_errors import problem_of
from mulligan.tasks.ports.appliers import ApplyContext, EditRefused
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput, TooCostly, VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.killable.pool import call_killable
from mulligan.workers.sandbox.file_tree import write_tree
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.workspace import git_trees, private_copy
from mulligan.workers.verifiers.json_text import coercion_warnings, extraction_of

_FENCE = re.compile(r"^```[\w-]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
#: A longer text is not read as a plan.
_MAX_CHARACTERS = 2_000_000
#: A text of this length is read in a fraction of a second, whatever is in it.
_CHEAP_CHARACTERS = 10_000
#: For reading it, and for all edits together: below ``longest``, with the time of a last edit.
_SECONDS = 30.0
_EDIT_SECONDS = 150.0


class EditsPlan:
    """Evidence: ``kind`` (``schema_invalid``: not a plan; ``missing_context``: an edit does not
    apply), ``edits``, ``applied`` and ``refused`` (the operations). Codes: ``not_a_plan``,
    ``schema``, ``operation``, ``payload``, ``does_not_apply``, ``no_op``."""

    id: ClassVar[str] = "edits.plan"
    slow: bool = True
    needs_blobs: ClassVar[bool] = True
    needs_workspace: ClassVar[bool] = True
    #: In seconds: a plan has at most a thousand edits, and each is quick.
    longest: ClassVar[float] = 300.0

    class Options(Value):
        #: The folder of the configuration tree, relative to the workspace.
        config: str = "."
        #: Operations that the plan may use; all if empty.
        operations: tuple[str, ...] = ()
        max_edits: int = Field(default=100, ge=1, le=1000)

    def __init__(
        self,
        options: Options,
        *,
        blobs: BlobStore | None = None,
        limits: Limits | None = None,
        root: Path | None = None,
    ) -> None:
        del limits  # no code of the answer runs
        if options.config != "." and escapes(options.config):
            raise BadInput.at("config", "must stay inside the workspace")
        self.options = options
        self._blobs = blobs
        self._root = root

    def verify(self, candidate: Candidate) -> VerificationResult:
        """Judge the plan by trying it; raise VerifierError if the workspace cannot be read."""
        if candidate.workspace is None:
            raise BadInput(f"{self.id} needs a workspace")
        if problem := find_missing(*EDIT_PACKAGES):
            raise VerifierError(problem)
        started = perf_counter()
        plan, findings, warnings = read_answer(candidate)
        if plan is None:
            evidence: dict[str, Json] = {"kind": FailureKind.SCHEMA_INVALID.value}
            return self._result(findings, evidence, warnings, 0.0, started)
        with self._copy(candidate.workspace, candidate.output) as directory:
            found = self._try_edits(plan, directory)
        refused = [index for index, finding in found.items() if finding.code != "no_op"]
        applied = len(plan.edits) - len(refused)
        evidence = {
            "kind": FailureKind.MISSING_CONTEXT.value,
            "edits": len(plan.edits),
            "applied": applied,
            "refused": sorted({plan.edits[i].op for i in refused}),
        }
        points = 100 * applied / len(plan.edits)
        return self._result(list(found.values()), evidence, warnings, points, started)

    @contextlib.contextmanager
    def _copy(self, workspace: Workspace, output: Output) -> Iterator[Path]:
        """Make a private copy of what the plan was made for."""
        if workspace.git is None or output.base is None:
            with private_copy(workspace, self._blobs, root=self._root) as copy:
                yield copy.directory
            return
        with private_directory(self._root) as work:
            write_tree(git_trees(self._blobs).tree(workspace.git, output.base), work)
            yield work

    def apply(self, text: str, work: Path) -> None:
        """Apply those edits of an answer that apply. ``verify`` says which do not."""
        output = Output(text=text)
        plan, _, _ = read_answer(Candidate(output=output, text=text))
        if plan is not None:
            self._try_edits(plan, work)

    def _try_edits(self, plan: EditPlan, work: Path) -> dict[int, Finding]:
        """Apply the edits in order and return the findings by the edit's index."""
        # Imported here: no other verifier needs libcst, tomlkit and git.
        from mulligan.workers.edits.applier_registry import default_registry

        if len(plan.edits) > self.options.max_edits:
            count, limit = len(plan.edits), self.options.max_edits
            message = f"the plan has {count} edits; at most {limit} are allowed"
            return {count - 1: _finding(count - 1, plan.edits[-1], message, "schema")}
        registry = default_registry()
        ctx = ApplyContext(root=work, config=Path(self.options.config))
        deadline = perf_counter() + _EDIT_SECONDS

        def try_edit(index: int, edit: Edit) -> Finding | None:
            if perf_counter() > deadline:
                message = f"the edits before it took longer than {_EDIT_SECONDS:g} s"
                return _finding(index, edit, message, "does_not_apply")
            return self._try_edit(registry, index, edit, ctx)

        found = ((index, try_edit(index, edit)) for index, edit in enumerate(plan.edits))
        return {index: finding for index, finding in found if finding is not None}

    def _try_edit(self, registry: Any, index: int, edit: Edit, ctx: ApplyContext) -> Finding | None:
        from mulligan.workers.edits.tree import write_changes

        allowed = self.options.operations or tuple(registry.names())
        if edit.op not in allowed or not registry.is_supported(edit.op):
            message = f"unknown operation {edit.op!r}; use one of: {', '.join(allowed)}"
            return _finding(index, edit, message, "operation")
        try:
            applier = registry.get(edit.op)
            validation = applier.validate(edit, ctx)
            if not validation.ok:
                return _finding(index, edit, validation.reason, "payload")
            changes = applier.changes(edit, ctx)
            if all(change.unchanged for change in changes):
                notes = [change.note for change in changes if change.note]
                return _finding(index, edit, "; ".join(notes) or "it changes nothing", "no_op")
            write_changes.perform(ctx.root, changes)
        except EditRefused as error:
            return _finding(index, edit, str(error), "does_not_apply")
        return None

    def _result(
        self,
        findings: list[Finding],
        evidence: dict[str, Json],
        warnings: tuple[str, ...],
        points: float,
        started: float,
    ) -> VerificationResult:
        wrong = [finding for finding in findings if finding.code != "no_op"]
        idle = tuple(f"{f.path}: {f.message}" for f in findings if f.code == "no_op")
        if not wrong:
            evidence = {name: value for name, value in evidence.items() if name != "kind"}
        return VerificationResult(
            status=VerificationStatus.FAIL if wrong else VerificationStatus.PASS,
            verifier_id=self.id,
            summary=wrong[0].message if wrong else "a plan of edits that apply",
            evidence=evidence,
            errors=tuple(wrong),
            warnings=warnings + idle,
            elapsed_seconds=perf_counter() - started,
            score=points if wrong else None,
        )


def _finding(index: int, edit: Edit, message: str, code: str) -> Finding:
    return Finding(message=message, code=code, path=f"edits[{index}] ({edit.id}) {edit.target}")


#: A plan, or the findings that say why there is none.
_ReadPlan = tuple[EditPlan | None, list[Finding]]


def read_answer(candidate: Candidate) -> tuple[EditPlan | None, list[Finding], tuple[str, ...]]:
    """Return the plan in an answer, or the findings that say why not; and the warnings."""
    extraction = extraction_of(candidate)
    data: Any = extraction.value if extraction.parsed else None
    if isinstance(data, dict | list):
        return *_plan_of(data), coercion_warnings(extraction)
    text = candidate.output.text
    if len(text) > _MAX_CHARACTERS:
        return None, [_not_a_plan(f"it has more than {_MAX_CHARACTERS:,} characters")], ()
    if len(text) <= _CHEAP_CHARACTERS:
        return *_yaml_plan(text), ()
    try:
        return *call_killable(_yaml_plan, text, seconds=_SECONDS, what="reading it as YAML"), ()
    except TooCostly as error:
        return None, [_not_a_plan(str(error))], ()


def _yaml_plan(text: str) -> _ReadPlan:
    """Read a text, or the only fence in it, as YAML. Open fences take quadratic time."""
    from ruamel.yaml import YAML  # an extra: not every worker has it
    from ruamel.yaml.error import YAMLError

    from mulligan.workers.yaml_expansion import check_expansion

    fences = _FENCE.findall(text)
    yaml = YAML(typ="safe", pure=True)
    data = None
    try:
        root = yaml.compose(fences[0] if len(fences) == 1 else text)
        check_expansion(root)
        data = None if root is None else yaml.constructor.construct_document(root)
    except (YAMLError, ValueError, TypeError, RecursionError):
        pass
    return _plan_of(data)


def _plan_of(data: Any) -> _ReadPlan:
    if isinstance(data, list):
        data = {"edits": data}
    if not isinstance(data, dict):
        return None, [_not_a_plan("write YAML or JSON with a list of `edits`")]
    try:
        return EditPlan.model_validate(data), []
    except ValidationError as error:
        return None, [_schema_finding(item) for item in error.errors(include_url=False)]


def _not_a_plan(why: str) -> Finding:
    return Finding(
        message=f"the answer is not a plan: {why}",
        code="not_a_plan",
        path="$",
        expected="a plan: {edits: [{id, op, target, payload}]}",
    )


def _schema_finding(item: Any) -> Finding:
    problem = problem_of(item)
    return Finding(message=problem.message, code="schema", path=spell_path(("$", *problem.path)))
