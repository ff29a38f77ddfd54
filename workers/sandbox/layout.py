"""An answer laid out in a private copy of the workspace, for verifiers that run programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mulligan.policies.repair.free_repair import Coercion
from mulligan.policies.value import Json
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.subprocesses import Limits
from mulligan.workers.sandbox.workspace import (
    apply_diff,
    place_answer,
    private_directory,
    restore_protected,
    snapshot_of,
    unpack,
)


@dataclass(frozen=True, kw_only=True)
class LaidOutAnswer:
    """A private copy with an answer in it, ready to be run."""

    work: Path
    #: The packed workspace without the answer.
    snapshot: bytes = b""
    #: Files that the answer became or touched, relative to the workspace.
    touched: tuple[str, ...] = ()
    #: Protected files that had to be put back or removed.
    restored: tuple[str, ...] = ()
    #: What was taken off the answer to make its file: free repairs, which the score penalises.
    coercions: tuple[Coercion, ...] = ()

    @property
    def evidence(self) -> dict[str, Json]:
        """What every verifier of the copy has to tell: the free repairs, if there were any."""
        return {"coercions": list(self.coercions)} if self.coercions else {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One for each free repair."""
        return tuple(f"coerced: {coercion}" for coercion in self.coercions)


@dataclass(frozen=True, kw_only=True)
class AnswerLayout:
    """Where private copies come from and what programs in them may use."""

    blobs: BlobStore | None
    limits: Limits
    #: Where private copies are made; the system's temporary directory if None.
    root: Path | None = None

    @contextlib.contextmanager
    def laid_out(self, candidate: Candidate) -> Iterator[LaidOutAnswer]:
        """Snapshot, then the runner's diff, then the answer's file; protected files come last.

        A runner that edited the output file itself meant that, not what it printed.
        """
        workspace = candidate.workspace
        with private_directory(self.root) as work:
            if workspace is None:
                yield LaidOutAnswer(work=work)
                return
            snapshot = snapshot_of(workspace, self.blobs)
            unpack(snapshot, work)
            edited = self._apply_diff(work, candidate)
            coercions: tuple[Coercion, ...] = ()
            if workspace.output_file not in edited:
                coercions = place_answer(work, workspace, candidate.text)
            restored = tuple(restore_protected(work, workspace, snapshot))
            touched = sorted({*edited, *filter(None, [workspace.output_file])})
            yield LaidOutAnswer(
                work=work,
                snapshot=snapshot,
                touched=tuple(touched),
                restored=restored,
                coercions=coercions,
            )

    def _apply_diff(self, work: Path, candidate: Candidate) -> tuple[str, ...]:
        """The files that the runner's own edits touched."""
        if candidate.output.diff is None:
            return ()
        if self.blobs is None:
            raise VerifierError("the answer is a diff and there is no blob store to read it")
        return apply_diff(work, self.blobs.get(candidate.output.diff)).paths
