"""Simulated drafts of loops: what a model writes, and the checks that a draft may use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mulligan.policies.failures.failure import VerificationResult
from mulligan.policies.jobs.job import RunnerSpec, VerifierSpec
from mulligan.policies.loops.draft import COMMAND, LOOP_DRAFT, PYTEST
from mulligan.policies.loops.spec import LoopDocument
from mulligan.tasks.loops.draft import DraftRequest
from mulligan.tasks.ports.errors import VerifierError
from mulligan.tasks.ports.verifiers import Candidate, Verifier
from mulligan.workers.verifiers.loop_draft import LoopDraft
from mulligan.workers.verifiers.verifier_registry import VerifierRegistry
from simulation.loop_scenario import make_loop
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.simulation import Simulation
    from simulation.world import World

#: The program of a drafted check: ``done LOOP ITEM``.
DONE = "done"
_REAL = VerifierRegistry(plugins=tuple)
_RUNNER = {"kind": "simulated", "provider": "alpha", "takes": 1.0, "uses": 10}


def drafted(loop: str, name: str, *depends_on: str, **fields: Any) -> dict[str, Any]:
    """Return an item as a model drafts it."""
    done = {"id": COMMAND, "argv": [DONE, loop, name]}
    item = {"id": name, "title": f"Make {name}", "prompt": "Do it.", "verifiers": [done]}
    return {**item, "depends_on": list(depends_on), **fields}


def defective_draft(loop: str) -> str:
    """Return a draft with a cycle, an unknown dependency, a check that cannot run, and one that
    passes before the work."""
    nowhere = {"id": PYTEST, "args": ["nowhere.py"]}
    passes = {"id": COMMAND, "argv": [DONE]}
    return json.dumps(
        {
            "items": [
                drafted(loop, "a", "b"),
                drafted(loop, "b", "a"),
                drafted(loop, "c", "z"),
                drafted(loop, "d", verifiers=[nowhere]),
                drafted(loop, "e", verifiers=[passes]),
            ]
        }
    )


def good_draft(loop: str) -> str:
    items = [drafted(loop, *names) for names in (("a",), ("b", "a"), ("c", "b"), ("d",), ("e",))]
    return json.dumps({"items": items})


def draft_request(loop: str, *answers: str) -> tuple[DraftRequest, LoopDocument]:
    """Return what somebody asks for, and the loop that must come of it."""
    agent = {**_RUNNER, "scores": [90]}
    made = make_loop(loop, *json.loads(answers[-1])["items"], repo="repo", runner=agent)
    asked = DraftRequest(
        goal="Make some files.",
        loop=made.loop,
        runner=RunnerSpec.model_validate({**_RUNNER, "answers": list(answers)}),
        programs=(DONE,),
        auto_start=True,
    )
    return asked, made


@dataclass(frozen=True)
class PlannedDraft:
    """Somebody asks for a draft of a loop, whose first answer has four defects."""

    at: float
    loop: str

    def __str__(self) -> str:
        return f"{self.at:6.1f} s: draft {self.loop}"

    def begin(self, simulation: Simulation) -> None:
        answers = defective_draft(self.loop), good_draft(self.loop)
        simulation.fleet.loops.draft(self.loop, *answers)


@dataclass
class DraftVerifier:
    """Runs the real `loop.draft` on a simulated repository, or what its contract requires."""

    world: World
    process: Process
    spec: VerifierSpec
    longest = 60.0

    def __post_init__(self) -> None:
        self.slow = self.spec.id == LOOP_DRAFT

    def verify(self, candidate: Candidate) -> VerificationResult:
        world, process = self.world, self.process
        what = f"{candidate.job_id}/{candidate.attempt} {self.spec.label}"
        found = world.before(process, "verify", what)
        if any(fault.kind == "verifier_broken" for fault in found):
            raise VerifierError("simulated: the verifier is broken")
        result = self._real().verify(candidate)
        world.after(process, found)
        return result

    def _real(self) -> Verifier:
        if self.spec.id != LOOP_DRAFT:
            return _REAL.build(self.spec)
        blobs: Any = SimpleNamespace(trees=SimpleNamespace(tree=self._tree))
        options = LoopDraft.Options.model_validate(self.spec.options)
        return LoopDraft(options, registry=self, blobs=blobs)

    def _tree(self, git: str, commit: str) -> Mapping[str, bytes]:
        files = self.world.repositories.open(self.process, git).files(commit)
        return {path: text.encode() for path, text in files.items()}

    def build_named(self, spec: VerifierSpec, *, blobs: Any) -> Verifier:
        """Build a check of the draft."""
        del blobs
        from simulation.agents import verifier_of

        return verifier_of(self.world, self.process, spec)
