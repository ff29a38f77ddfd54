"""A workspace with tests, whose answers pytest.subprocess verifies."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Output, Workspace
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.diff import make_diff
from mulligan.workers.sandbox.file_tree import Tree, TreeNode
from mulligan.workers.sandbox.workspace import pack
from mulligan.workers.verifiers.pytest.pytest_subprocess import PytestSubprocess
from support.doubles import fake_blobs

TESTS = """
import pytest
from bitcount import bitcount

def test_zero():
    assert bitcount(0) == 0

def test_one():
    assert bitcount(1) == 1

@pytest.mark.parametrize(("n", "expected"), [(3, 2), (255, 8)])
def test_more(n, expected):
    assert bitcount(n) == expected
"""


class Project:
    """A workspace on disk whose answers can be verified."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = fake_blobs()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def verify(
        self, answer: str, *, output_file: str | None = "bitcount.py", **options: Any
    ) -> VerificationResult:
        limits = options.pop("limits", None)
        diff = options.pop("diff", None)
        snapshot = self.blobs.put(pack(self.root, max_bytes=1 << 20))
        output = Output(text=textwrap.dedent(answer), diff=diff)
        verifier = PytestSubprocess(
            PytestSubprocess.Options.model_validate({"timeout": 60, **options}),
            blobs=self.blobs,
            limits=limits,
            root=self.root.parent / "copies",
        )
        workspace = Workspace(snapshot=snapshot, output_file=output_file)
        result = verifier.verify(Candidate(output=output, text=output.text, workspace=workspace))
        assert list((self.root.parent / "copies").iterdir()) == [], "no private copy is left"
        result.model_dump_json()
        return result

    def diff_of(self, **files: str) -> str:
        """Return the diff of a runner that wrote these files. Two underscores are a dot."""
        snapshot = pack(self.root, max_bytes=1 << 20)
        for name, text in files.items():
            (self.root / name.replace("__", ".")).write_text(text)
        diff = make_diff(snapshot, self.root)
        for name in files:
            (self.root / name.replace("__", ".")).unlink()
        return self.blobs.put(diff)


class Commits:
    """Commits of a repository in memory, as verifiers read them, and no blobs."""

    def __init__(self) -> None:
        self.trees = self
        self._trees: dict[str, Tree] = {}

    def commit(self, files: Mapping[str, str]) -> str:
        tree = {name: TreeNode("file", 0o644, text.encode()) for name, text in files.items()}
        name = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
        self._trees[name] = tree
        return name

    def tree(self, git: str, commit: str) -> Tree:
        del git
        return self._trees[commit]


def verify_attempt(
    root: Path, base: Mapping[str, str], attempt: Mapping[str, str | None], **options: Any
) -> VerificationResult:
    """Verify what an attempt wrote, or deleted (None), in a repository with the files of base."""
    commits: Any = Commits()
    after = {name: text for name, text in {**base, **attempt}.items() if text is not None}
    output = Output(text="", base=commits.commit(base), commit=commits.commit(after))
    chosen = PytestSubprocess.Options.model_validate({"timeout": 60, **options})
    verifier = PytestSubprocess(chosen, blobs=commits, root=root / "copies")
    result = verifier.verify(Candidate(output=output, text="", workspace=Workspace(git="shop")))
    assert list((root / "copies").iterdir()) == [], "no private copy is left"
    result.model_dump_json()
    return result
