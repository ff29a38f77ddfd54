"""Lay an answer out in a private copy of the workspace, for verifiers that run programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mulligan.policies.jobs.job import Output, Workspace
from mulligan.policies.repair.free_repair import Coercion
from mulligan.policies.value import Json
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import SetupBroken, SetupFailed, VerifierError
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.diff import apply_diff
from mulligan.workers.sandbox.file_tree import write_tree
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.protection import Protection, same_file
from mulligan.workers.sandbox.worker_paths import WorkerPaths
from mulligan.workers.sandbox.workspace import (
    content_address,
    git_trees,
    place_answer,
    private_copy,
    restore_protected,
    unpack,
)


@dataclass(frozen=True, kw_only=True)
class LaidOutAnswer:
    """A private copy of the workspace with an answer in it, ready to run."""

    work: Path
    #: The workspace without the answer: its name, and how to write its files.
    base: str = ""
    write_base: Callable[[Path], None] = lambda _: None
    #: Files that the answer wrote, changed or deleted, relative to the workspace.
    touched: tuple[str, ...] = ()
    #: Protected files that had to be put back or removed.
    restored: tuple[str, ...] = ()
    #: Whether an answer may add any file; the new ones, which may contain further tests.
    may_add: bool = False
    added: tuple[str, ...] = ()
    #: Free repairs that made the answer's file; the score penalises them.
    coercions: tuple[Coercion, ...] = ()

    def clean(self, text: str) -> str:
        """Return a program's output without the paths of this worker."""
        return WorkerPaths(self.work).clean(text)

    @property
    def evidence(self) -> dict[str, Json]:
        """The evidence of every verifier that uses the copy: the free repairs, if any."""
        return {"coercions": list(self.coercions)} if self.coercions else {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One for each free repair."""
        return tuple(f"coerced: {coercion}" for coercion in self.coercions)


@dataclass(frozen=True, kw_only=True)
class AnswerLayout:
    """Makes private copies, and holds the limits of programs in them."""

    blobs: BlobStore | None
    limits: Limits
    #: The parent of private copies; by default the system's temporary directory.
    root: Path | None = None

    @contextlib.contextmanager
    def lay_out(self, candidate: Candidate) -> Iterator[LaidOutAnswer]:
        """Write the snapshot, the runner's diff, the answer's file and the protected files.

        If the runner edited the output file, that edit is the answer, not what it printed.
        """
        workspace = candidate.workspace
        if workspace is not None and candidate.output.commit is not None:
            with self._check_out(workspace, candidate.output) as laid_out:
                yield laid_out
            return
        with private_copy(workspace, self.blobs, root=self.root) as copy:
            work, snapshot = copy.directory, copy.snapshot
            if workspace is None:
                yield LaidOutAnswer(work=work)
                return
            edited = self._apply_diff(work, candidate)
            coercions: tuple[Coercion, ...] = ()
            if workspace.output_file not in edited:
                coercions = place_answer(work, workspace, candidate.text)
            restored = tuple(restore_protected(work, workspace, snapshot))
            touched = sorted({*edited, *filter(None, [workspace.output_file])})
            yield LaidOutAnswer(
                work=work,
                base=content_address(snapshot),
                write_base=partial(unpack, snapshot),
                touched=tuple(touched),
                restored=restored,
                coercions=coercions,
            )

    @contextlib.contextmanager
    def _check_out(self, workspace: Workspace, output: Output) -> Iterator[LaidOutAnswer]:
        """Write the files of the commit that an attempt made, with the protected ones of its base.

        If it changed a protected file, ``git.diff`` fails: what passes is exactly the commit.
        """
        git, commit, base = workspace.git or "", output.commit or "", output.base or ""
        trees = git_trees(self.blobs)
        before, after = trees.tree(git, base), trees.tree(git, commit)
        files = {
            name: node for name, node in {**before, **after}.items() if node.kind != "directory"
        }
        touched = sorted(name for name in files if before.get(name) != after.get(name))
        with private_directory(self.root) as work:
            write_tree(after, work)
            restored = Protection(workspace.protect).restore(work, before, may_add=True)
            restored += self._prepare(workspace, work, output)
            yield LaidOutAnswer(
                work=work,
                base=f"git:{base}",
                write_base=partial(self._write_base, workspace, base),
                touched=tuple(touched),
                restored=tuple(dict.fromkeys(restored)),
                may_add=True,
                added=tuple(name for name in touched if name not in before),
            )

    def _write_base(self, workspace: Workspace, base: str, into: Path) -> None:
        write_tree(git_trees(self.blobs).tree(workspace.git or "", base), into)
        self._prepare(workspace, into, Output(text="", commit=base, base=base))

    def _prepare(self, workspace: Workspace, work: Path, output: Output) -> list[str]:
        """Run the setup; return the protected files that had to be put back or removed.

        Raise SetupBroken if it fails because of the answer, and SetupFailed if it always does.

        It may run code of the answer. So it may add no protected file, unless it is in a directory
        of its cache, or the setup of the base makes the same one. If there is a cache, that is all
        that a setup may leave: where it is copied, there is nothing else.
        """
        setup, trees = workspace.setup, git_trees(self.blobs)
        if setup is None:
            return []
        base, is_base = output.base or "", output.commit == output.base

        def made_by_base(names: Sequence[str]) -> Collection[str]:
            if setup.cache or is_base:
                return () if setup.cache else names
            with private_directory(self.root) as beside:
                self._write_base(workspace, base, beside)
                return [name for name in names if same_file(name, work, beside)]

        def run() -> None:
            try:
                trees.prepare(workspace, work, keep=is_base)
            except SetupFailed as error:
                if not is_base:
                    with private_directory(self.root) as beside:
                        self._write_base(workspace, base, beside)  # raises if it fails there, too
                    raise SetupBroken(str(error), error.evidence) from error
                raise

        return Protection(workspace.protect).restore_after(
            run,
            work,
            trees.tree(workspace.git or "", base),
            anything_in=setup.cache,
            made_by_base=made_by_base,
        )

    def _apply_diff(self, work: Path, candidate: Candidate) -> tuple[str, ...]:
        """Apply the runner's edits and return the files that they touched."""
        if candidate.output.diff is None:
            return ()
        if self.blobs is None:
            raise VerifierError("the answer is a diff and there is no blob store to read it")
        return apply_diff(work, self.blobs.get(candidate.output.diff)).paths
