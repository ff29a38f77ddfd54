"""Find and build verifiers by id: the built-in ones and plug-ins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, cast

from pydantic import BaseModel, ValidationError

from mulligan.policies.jobs.job import VerifierSpec, Workspace
from mulligan.policies.problem import Problem, until_costly
from mulligan.policies.suggestions import name_hint
from mulligan.tasks.jobs.validation_errors import problems_of
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.verifiers import Verifier
from mulligan.workers.contract_models import ContractModels
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.protection import Protection
from mulligan.workers.verifiers.command_subprocess import CommandSubprocess
from mulligan.workers.verifiers.contract_schema import ContractSchema
from mulligan.workers.verifiers.edits_plan import EditsPlan
from mulligan.workers.verifiers.external_score import ExternalScore
from mulligan.workers.verifiers.git_changes import GitDiff, GitMerge
from mulligan.workers.verifiers.json_object import JsonObject
from mulligan.workers.verifiers.loop_draft import LoopDraft
from mulligan.workers.verifiers.pytest.pytest_subprocess import PytestSubprocess
from mulligan.workers.verifiers.text_match import TextMatch

GROUP = "mulligan.verifiers"
_BUILT_IN: tuple[Any, ...] = (
    JsonObject,
    ContractSchema,
    TextMatch,
    PytestSubprocess,
    CommandSubprocess,
    ExternalScore,
    EditsPlan,
    GitDiff,
    GitMerge,
    LoopDraft,
)
#: Verifiers without state, which are kept because jobs of one type share their options.
_SHARED = frozenset(cls.id for cls in _BUILT_IN if not cls.slow)
_MAX_SHARED = 1024


class VerifierClass(Protocol):
    """The class that an entry point of the group ``mulligan.verifiers`` names; its name is the id.

    It has a pydantic model ``Options`` (which should refuse unknown options) and is called with
    an instance of it. If ``needs_blobs`` is true it also gets ``blobs``, ``limits`` and ``root``
    (the parent of private copies); if ``needs_workspace`` is true, a job without one is refused.
    """

    Options: type[BaseModel]
    slow: bool

    def __call__(self, options: Any, **resources: Any) -> Verifier: ...


class VerifierRegistry:
    """Builds verifiers from specs and finds every problem in a job's specs."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        root: Path | None = None,
        models: ContractModels | None = None,
        plugins: Callable[[], Iterable[EntryPoint]] = lambda: entry_points(group=GROUP),
        resolve: Callable[[VerifierSpec], VerifierSpec] = lambda spec: spec,
    ) -> None:
        """``models`` are the pydantic models that contracts may name; by default none.

        ``resolve``: fills in the argv of a command that a verifier of a drafted loop names.

        Plug-ins are looked up at first use and loaded only when a job names one.
        """
        self.models = models or ContractModels()
        self._limits = limits or Limits()
        self._root = root
        self._resolve = resolve
        self._find_plugins = plugins
        self._classes: dict[str, VerifierClass] = {cls.id: cls for cls in _BUILT_IN}
        self._shared = lru_cache(maxsize=_MAX_SHARED)(self._build_shared)

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in self._find_plugins()}

    def names(self) -> list[str]:
        """Return every id that a job may name, sorted."""
        return sorted({cls.id for cls in _BUILT_IN} | self._plugins.keys())

    def option_models(self) -> dict[str, type[BaseModel] | None]:
        """Return the model of each verifier's options; None for a plug-in that cannot be loaded."""
        found: dict[str, type[BaseModel] | None] = {cls.id: cls.Options for cls in _BUILT_IN}
        for name in self._plugins.keys() - found.keys():
            try:
                found[name] = self._class(name).Options
            except BadInput:
                found[name] = None
        return found

    def build(self, spec: VerifierSpec, *, blobs: BlobStore | None = None) -> Verifier:
        """Build a spec's verifier, or raise BadInput with every problem, each naming its option.

        Equal specs share a fast built-in verifier.
        """
        if spec.id in _SHARED:
            return self._shared(spec.id, _canonical(spec))
        cls = self._class(spec.id)
        resources: dict[str, Any] = {}
        if getattr(cls, "needs_blobs", False):
            resources = {"blobs": blobs, "limits": self._limits, "root": self._root}
        if getattr(cls, "needs_registry", False):
            resources["registry"] = self
        return cls(_options(cls, spec.options), **resources)

    def build_named(self, spec: VerifierSpec, *, blobs: BlobStore | None) -> Verifier:
        """Build a verifier that may name a command of the configuration. Raises BadInput."""
        return self.build(self._resolve(spec), blobs=blobs)

    def _build_shared(self, verifier_id: str, options: str) -> Verifier:
        cls = self._class(verifier_id)
        resources = {"models": self.models} if getattr(cls, "needs_models", False) else {}
        return cls(_options(cls, json.loads(options)), **resources)

    def check(self, specs: Sequence[VerifierSpec], workspace: Workspace | None) -> list[Problem]:
        """Return all problems of a job's verifiers; none means that all can be built."""
        problems = until_costly(
            problem.below("verifiers", index)
            for index, spec in enumerate(specs)
            for problem in self.check_one(spec, workspace)
        )
        return problems + _protected_output(workspace)

    def check_one(self, spec: VerifierSpec, workspace: Workspace | None) -> list[Problem]:
        """Return all problems of one verifier."""
        try:
            cls = self._class(spec.id)
        except BadInput as error:
            return list(error.problems)
        problems = []
        if getattr(cls, "needs_workspace", False) and workspace is None:
            message = f"{spec.id} needs a workspace; give the job workspace: {{path: …}}"
            problems.append(Problem(message, code="missing"))
        try:
            self.build(spec)
        except BadInput as error:
            problems += error.problems
        return problems

    def _class(self, verifier_id: str) -> VerifierClass:
        if verifier_id not in self._classes:
            self._classes[verifier_id] = self._load(verifier_id)
        return self._classes[verifier_id]

    def _load(self, verifier_id: str) -> VerifierClass:
        entry = self._plugins.get(verifier_id)
        if entry is None:
            hint = name_hint(verifier_id, self.names())
            raise BadInput.at("id", f"unknown verifier {verifier_id!r}{hint}", "unknown_name")
        try:
            loaded = entry.load()
        except Exception as error:  # a plug-in may fail in any way; the message names it
            reason = f"{type(error).__name__}: {error}"
            message = f"the plug-in {entry.name} ({entry.value}) cannot be loaded: {reason}"
            raise BadInput.at("id", message) from error
        options = getattr(loaded, "Options", None)
        if not (isinstance(options, type) and issubclass(options, BaseModel)):
            message = (
                f"the plug-in {entry.name} ({entry.value}) is not a verifier: it has no pydantic"
                " model Options"
            )
            raise BadInput.at("id", message)
        return cast(VerifierClass, loaded)


def _protected_output(workspace: Workspace | None) -> list[Problem]:
    """Refuse an output file that is protected: it would be restored before any check."""
    if workspace is None or workspace.output_file is None:
        return []
    if not Protection(workspace.protect).covers(workspace.output_file):
        return []
    message = (
        f"{workspace.output_file} is a protected file; choose another one or change"
        " workspace.protect"
    )
    return [Problem.at("workspace.output_file", message, "not_allowed")]


def _canonical(spec: VerifierSpec) -> str:
    try:
        return json.dumps(spec.options, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise BadInput(f"the options are not JSON: {error}") from error


def _options(cls: VerifierClass, options: dict[str, Any]) -> BaseModel:
    try:
        return cls.Options.model_validate(options)
    except ValidationError as error:
        # A misspelt field that all verifiers share ends up here too, so suggest those as well.
        shared = [name for name in VerifierSpec.model_fields if name != "id"]
        found = problems_of(error, cls.Options, what="option", also=shared, list_known=True)
        raise BadInput(*found) from error
