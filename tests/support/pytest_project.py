"""A workspace with tests, whose answers pytest.subprocess verifies."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import Output, Workspace
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.sandbox.diff import make_diff
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
