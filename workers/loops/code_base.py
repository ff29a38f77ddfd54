"""The code base that a spec is compared with, without a ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mulligan.policies.jobs.job import Output, VerifierSpec, Workspace
from mulligan.policies.loops.spec import LoopConfig
from mulligan.tasks.loops.spec_check import CodeBase
from mulligan.tasks.ports.errors import BadInput
from mulligan.tasks.ports.verifiers import Candidate, Verifier
from mulligan.workers.admission.intake import resolve_command, workspace_path
from mulligan.workers.contract_models import ContractModels
from mulligan.workers.ledger.stores.blobs import DirectoryBlobs
from mulligan.workers.loops.workspace_trees import BlobsAndTrees, workspace_trees
from mulligan.workers.sandbox.allowed import program_limits
from mulligan.workers.sandbox.workspace import pack
from mulligan.workers.settings.model import Settings
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry


@dataclass(frozen=True, kw_only=True)
class LocalCodeBase:
    """What the verifiers of a loop check, as they would before the first attempt of an item."""

    settings: Settings
    #: Where workspaces are packed to.
    folder: Path
    seconds: float
    on_run: Callable[[str], None] = lambda _label: None

    def of(self, config: LoopConfig) -> CodeBase:
        """Return the code base of a loop. Raises BadInput and RepositoryUnavailable."""
        limits = program_limits(self.settings)
        trees = workspace_trees(self.settings, limits)
        store = DirectoryBlobs(self.folder, cap=self.settings.workspace_cap)
        blobs = BlobsAndTrees(store, trees)
        registry = VerifierRegistry(
            limits=limits,
            models=ContractModels(self.settings.model_modules),
            resolve=lambda spec: resolve_command(spec, self.settings),
        )

        def build(spec: VerifierSpec) -> Verifier:
            return registry.build_named(spec, blobs=blobs)

        space = config.item_workspace()
        if space is None or space.git is None:
            return CodeBase(
                build=build,
                candidate=lambda item: self._of_workspace(item.workspace or space, blobs),
                seconds=self.seconds,
                on_run=self.on_run,
            )
        base = space.model_copy(update={"branch": None, "edits": False})
        commit = trees.repositories.open(space.git).resolve(space.ref)
        if commit is None:
            raise BadInput(f"{space.git} has no {space.ref}")
        candidate = Candidate(
            output=Output(text="", commit=commit, base=commit),
            text="",
            workspace=base.model_copy(update={"commit": commit}),
        )
        return CodeBase(
            build=build,
            candidate=lambda _item: candidate,
            files=trees.tree(space.git, commit).keys(),
            seconds=self.seconds,
            on_run=self.on_run,
        )

    def _of_workspace(self, space: Workspace | None, blobs: BlobsAndTrees) -> Candidate:
        path = workspace_path(space, self.settings) if space is not None else None
        if space is not None and path is not None:
            address = blobs.put(pack(path, max_bytes=self.settings.workspace_cap))
            changes = {"snapshot": address, "path": None, "profile": None}
            space = space.model_copy(update=changes)
        return Candidate(output=Output(text=""), text="", workspace=space)
