"""Simulated agents that change files in a repository, and verifiers that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mulligan.policies.failures.failure import Finding, VerificationResult, VerificationStatus
from mulligan.policies.jobs.job import GIT_DIFF, GIT_MERGE, Output, VerifierSpec
from mulligan.policies.loops.draft import COMMAND, LOOP_DRAFT, PYTEST
from mulligan.tasks.jobs.merge import NOT_MERGED
from mulligan.tasks.ports.cancellation import current
from mulligan.tasks.ports.errors import (
    BadInput,
    CallCancelled,
    RepositoryUnavailable,
    RunnerError,
    VerifierError,
)
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.verifiers import Candidate, Verifier
from simulation.drafts import DraftVerifier
from simulation.providers import SimulatedRunner, SimulatedVerifier
from simulation.repositories import MARK, Files, SimulatedRepository, work_ref
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.world import World

#: What an item's own file must score.
_PASSING = 70.0
#: Seconds between two tries to save work in a repository that is away.
_PAUSE = 5.0


def own_path(loop: str, item: str) -> str:
    """Return the file that proves an item's work. Its content is ``score author attempt notes``."""
    return f"{loop}/items/{item}"


def score_in(content: str | None) -> float:
    """Return the score of an item's own file; 0 without one, or with a conflict in it."""
    return 0.0 if content is None or content.startswith(MARK) else float(content.split()[0])


@dataclass
class SimulatedWork:
    """Asks runners as a worker does: what an agent leaves in its checkout is its answer."""

    world: World
    process: Process

    def answer(self, runner: Any, request: Request) -> Output:
        space = request.workspace
        if space is None or space.branch is None:
            output: Output = runner.answer(request)
            return output
        runner.freezes = self.process.freezes  # nobody asks again before the model is asked
        repository = self.world.repositories.open(self.process, space.git or "")
        start = repository.resolve(space.ref)
        if start is None:
            raise BadInput(f"there is no {space.ref}")
        base = repository.begin_branch(space.branch, start)
        files = self._start(repository, request, base)
        work = _Work(repository, request, base, files)
        options = runner.spec.options
        if options.get("early"):
            work.note()
            work.save()
        if not request.may_ask():
            raise CallCancelled("the lease is lost, so the runner must not be asked")
        output, error = self._ask(runner, request)
        if request.attempt not in options.get("idle", ()):
            work.edit(options, output.text)
        commit = self._save_at_last(work)
        if error is not None and (commit is None or not _may_be_verified(error)):
            raise error
        ended = str(error) if error is not None else None
        return output.model_copy(update={"commit": commit or base, "base": base, "ended": ended})

    def _start(self, repository: SimulatedRepository, request: Request, base: str) -> Files:
        """Return what the attempt begins with: the branch, and the work that it goes on with."""
        kept = request.kept
        if kept is None:
            name = f"{request.job_id}/{request.attempt}"
            found = repository.saved(request.loop, request.item)
            kept = next((each.commit for each in reversed(found) if each.attempt == name), None)
        if kept is None:
            return repository.files(base)
        return repository.files(repository.merge(base, kept).tree)

    @staticmethod
    def _ask(runner: SimulatedRunner, request: Request) -> tuple[Output, Exception | None]:
        try:
            return runner.answer(request), None
        except Exception as error:  # whatever it is, what was done is saved first
            said = error.output if isinstance(error, RunnerError) else None
            return said or Output(text=""), error

    def _save_at_last(self, work: _Work) -> str | None:
        """Save the work. A repository that is away is waited for."""
        while True:
            try:
                return work.save()
            except RepositoryUnavailable:
                if current().cancelled:
                    raise
                self.world.scheduler.sleep(self.process, _PAUSE)


def _may_be_verified(error: Exception) -> bool:
    return isinstance(error, RunnerError) and not error.final


@dataclass
class _Work:
    """What an agent has changed so far."""

    repository: SimulatedRepository
    request: Request
    base: str
    files: Files

    def save(self) -> str | None:
        """Save the files, unless they are those of the base. Return their commit."""
        if self.files == self.repository.model.files(self.base):
            return None
        request = self.request
        name = f"{request.job_id}/{request.attempt}"
        ref = work_ref(request.loop, request.item, name, request.token)
        return self.repository.save(ref, self.files, self.base)

    def note(self) -> None:
        """Begin the work, unless it is there already."""
        if not self._is_done():
            path = f"{self.request.loop}/notes/{self.request.item}"
            self.files = {**self.files, path: self.request.token}

    def edit(self, options: Mapping[str, Any], text: str) -> None:
        """Do the work and resolve all conflicts. If the work is there, there is nothing to do."""
        if self._is_done():
            return
        request, before = self.request, self.repository.model.files(self.base)
        author = f"{request.loop}/{request.item} {request.job_id}/{request.attempt}"
        others = [each for each in options.get("apart", ()) if self._path(each) in before]
        edited = {path: before.get(path, "") for path in self.files if self._is_marked(path)}
        edited |= {f"shared/{each}": author for each in options.get("touches", ())}
        for each in options.get("eager", ()):
            edited[self._path(each)] = before.get(self._path(each), f"90 {author}")
        for each in options.get("breaks", ()):
            if own := before.get(self._path(each)):
                spoiled = f"10 {own.partition(' ')[2]}"
                edited[self._path(each)] = spoiled if request.attempt == 1 else own
        own = self._path(request.item)
        edited[own] = " ".join([text or "0", author, *(f"with:{each}" for each in others)])
        changed = {**self.files, **edited}
        self.files = {path: content for path, content in changed.items() if content}

    def _path(self, item: str) -> str:
        return own_path(self.request.loop, item)

    def _is_marked(self, path: str) -> bool:
        return self.files[path].startswith(MARK)

    def _is_done(self) -> bool:
        before = self.repository.model.files(self.base)
        own = before.get(self._path(self.request.item))
        return self.files == before and score_in(own) >= _PASSING


def _words(argv: Any) -> list[str]:
    return [str(each) for each in argv or ()]


def verifier_of(world: World, process: Process, spec: VerifierSpec) -> Verifier:
    """Return the verifier of a spec."""
    if spec.id == GIT_MERGE:
        return SimulatedMerge()
    if spec.id in (LOOP_DRAFT, "json.object", "contract.schema"):
        return DraftVerifier(world, process, spec)
    if spec.id in (GIT_DIFF, PYTEST, COMMAND, "simulated.tree", "simulated.guard"):
        return TreeVerifier(world, process, spec)
    return SimulatedVerifier(world, process, spec)


class SimulatedMerge:
    """Stands for the merge itself, which the verb makes."""

    slow = True
    longest = 60.0

    def verify(self, candidate: Candidate) -> VerificationResult:
        del candidate
        return NOT_MERGED


@dataclass
class TreeVerifier:
    """Judges the files of a commit.

    ``git.diff``: something was changed, and no conflict is left. ``simulated.tree``: the item's own
    file is there, with its score. ``simulated.guard``: no two items are there that do not know of
    each other although they must (``apart``). Checks of drafts are ``done LOOP ITEM``, as
    ``simulated.tree``, and ``done``, which always passes.
    """

    world: World
    process: Process
    spec: VerifierSpec
    longest = 60.0

    def __post_init__(self) -> None:
        self.slow = self.spec.id == GIT_DIFF or bool(self.spec.options.get("slow"))

    def verify(self, candidate: Candidate) -> VerificationResult:
        world, output, space = self.world, candidate.output, candidate.workspace
        assert space is not None, "an item of a repository has a workspace"
        repository = world.repositories.open(self.process, space.git or "")
        what = f"{candidate.job_id}/{candidate.attempt} {self.spec.label}"
        found = world.before(self.process, "verify", what)
        if any(fault.kind == "verifier_broken" for fault in found):
            raise VerifierError("simulated: the verifier is broken")
        if self.slow:
            world.scheduler.sleep(self.process, 0.3 if self.spec.id == GIT_DIFF else 1.5)
        files = repository.files(output.commit or "")
        base = repository.files(output.base or "") if self.spec.id == GIT_DIFF else {}
        world.after(self.process, found)
        return self.judge(files, base, candidate.attempt)

    def judge(self, files: Files, base: Files, attempt: int) -> VerificationResult:
        if self.spec.id == GIT_DIFF:
            if files == base:
                return self._failed("no_change", 0.0, attempt)
            marked = any(content.startswith(MARK) for content in files.values())
            return self._failed("conflict_markers", 0.0, attempt) if marked else self._passed(None)
        if self.spec.id == PYTEST:
            raise VerifierError("simulated: there are no tests")
        if self.spec.id == "simulated.guard":
            return self._failed("together", 0.0, attempt) if self._clash(files) else self._passed()
        options = self.spec.options
        _, *names = _words(options.get("argv")) or ["", options["loop"], options["item"]]
        score = score_in(files.get(own_path(*names))) if names else _PASSING
        return self._passed(score) if score >= _PASSING else self._failed("wrong", score, attempt)

    def _clash(self, files: Files) -> bool:
        loop = str(self.spec.options["loop"])
        pairs: Any = self.spec.options.get("apart", ())
        for one, other in pairs:
            found = {each: files.get(own_path(loop, each)) for each in (one, other)}
            if all(found.values()) and not any(
                f"with:{b}" in str(found[a]).split() for a, b in ((one, other), (other, one))
            ):
                return True
        return False

    def _passed(self, score: float | None = None) -> VerificationResult:
        status = VerificationStatus.PASS
        return VerificationResult(status=status, verifier_id=self.spec.id, score=score)

    def _failed(self, code: str, score: float, attempt: int) -> VerificationResult:
        return VerificationResult(
            status=VerificationStatus.FAIL,
            verifier_id=self.spec.id,
            score=score,
            summary=f"{code}: {score:g}",
            evidence={"kind": "reasoning_error"},
            errors=(Finding(message=f"{code} {attempt}", code=f"at{attempt}", path=f"$.{code}"),),
        )
