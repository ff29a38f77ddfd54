"""Simulated git repositories: commits, references and merges in memory, reached by port calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Literal, TypeVar

from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.repositories import (
    BranchCommit,
    ChangedFile,
    ConflictingFile,
    Fence,
    MergedTree,
    SavedWork,
)
from simulation.faults import PUSH
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.world import World

_Answer = TypeVar("_Answer")

#: A path → its content.
Files = Mapping[str, str]
#: What git puts around the sides of a conflict.
MARK = "<<<<<<<"
#: The branch that HEAD is.
MAIN = "main"
_ATTEMPTS = "refs/mulligan/attempts/"
_TRANSCRIPTS = "refs/mulligan/transcripts/"
#: Below it, by loop and group.
FENCES = "refs/mulligan/fence/"


@dataclass(frozen=True)
class Commit:
    """One commit of the model."""

    id: str
    tree: str
    parents: tuple[str, ...]
    at: float
    message: str

    @property
    def trailers(self) -> dict[str, str]:
        head, _, last = self.message.strip().rpartition("\n\n")
        lines = [line.partition(":") for line in last.splitlines()] if head else []
        if any(not colon or " " in name for name, colon, _ in lines):
            return {}
        return {name: value.strip() for name, _, value in lines}

    @property
    def subject(self) -> str:
        return self.message.partition("\n")[0]


class GitModel:
    """The objects and references of one repository. Nothing here is a port call."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.trees: dict[str, Files] = {}
        self.commits: dict[str, Commit] = {}
        self.refs: dict[str, str] = {}
        self._fences = 0
        first = self.make_commit(self.make_tree({"README": "first"}), (), "Begin\n")
        self.refs[f"refs/heads/{MAIN}"] = self.refs["refs/heads/release"] = first

    # -- objects ----------------------------------------------------------------------------------

    def make_tree(self, files: Files) -> str:
        text = "\n".join(f"{path}\0{files[path]}" for path in sorted(files))
        tree = _id(f"tree {text}")
        self.trees[tree] = dict(files)
        return tree

    def make_commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        """Make a commit. As in git, two with the same content in one second are one."""
        at = float(int(self._clock()))
        found = _id(f"commit {tree} {' '.join(parents)} {at:.0f} {message}")
        self.commits[found] = Commit(found, tree, tuple(parents), at, message)
        return found

    def files(self, commit: str) -> Files:
        """Return the files of a commit or tree."""
        return self.trees[self.commits[commit].tree if commit in self.commits else commit]

    def tip(self, branch: str) -> str | None:
        return self.refs.get(f"refs/heads/{branch}")

    def line(self, tip: str) -> list[Commit]:
        """Return a commit and those before it by first parents."""
        found, at = [], self.commits[tip]
        while True:
            found.append(at)
            if not at.parents:
                return found
            at = self.commits[at.parents[0]]

    def ancestors(self, *commits: str) -> set[str]:
        """Return these commits and all before them."""
        found, todo = set[str](), list(commits)
        while todo:
            each = todo.pop()
            if each not in found:
                found.add(each)
                todo += self.commits[each].parents
        return found

    def common(self, ours: str, theirs: str) -> str:
        """Return the best common ancestor; of several, one of them."""
        shared = self.ancestors(ours) & self.ancestors(theirs)
        behind = {parent for each in shared for parent in self.commits[each].parents}
        best = shared - self.ancestors(*behind) or shared
        return max(best, key=lambda each: (self.commits[each].at, each))

    def merge(self, ours: str, theirs: str, base: str | None) -> MergedTree:
        """Merge by path. A path that both sides changed differently is a conflict."""
        before = self.files(self.common(ours, theirs) if base is None else base)
        left, right = self.files(ours), self.files(theirs)
        merged, conflicts = dict[str, str](), list[ConflictingFile]()
        for path in sorted({*before, *left, *right}):
            was, mine, other = before.get(path), left.get(path), right.get(path)
            kept = mine
            if mine != other and mine == was:
                kept = other
            elif mine != other and other != was:
                kept = f"{MARK} {mine} ======= {other} >>>>>>>"
                conflicts.append(ConflictingFile(path=path, hunks=kept))
            if kept is not None:
                merged[path] = kept
        return MergedTree(tree=self.make_tree(merged), conflicts=tuple(conflicts))

    def unique(self) -> str:
        """Return an object that nobody else has."""
        self._fences += 1
        return _id(f"fence {self._fences}")

    def push(self, branch: str, path: str, content: str) -> str | None:
        """Let somebody else put a commit on a branch, without a fence. Return it."""
        tip = self.tip(branch)
        if tip is None:
            return None
        tree = self.make_tree({**self.files(tip), path: content})
        new = self.make_commit(tree, (tip,), f"Change {path}\n")
        self.refs[f"refs/heads/{branch}"] = new
        return new


class SimulatedRepository:
    """The port of one process. Each method is a port call."""

    def __init__(self, world: World, process: Process, name: str, model: GitModel) -> None:
        self._world = world
        self._process = process
        self._name = name
        self.model = model

    def _call(self, call: str, detail: str, effect: Callable[[], _Answer]) -> _Answer:
        """Do something, unless the repository is not reached; the answer may be lost."""
        world, name = self._world, f"git_{call}"
        found = world.before(self._process, name)
        kinds = {fault.kind for fault in found}
        if PUSH in kinds:
            world.repositories.push_everywhere(self.model)
        if world.repositories.away or "lose_request" in kinds:
            world.record(self._process, name, detail, "not reached")
            raise RepositoryUnavailable("simulated: the repository was not reached")
        answer = effect()
        world.record(self._process, name, detail, _brief(answer))
        if "lose_reply" in kinds:
            world.scheduler.sleep(self._process, world.latency())
            raise RepositoryUnavailable("simulated: the answer of the repository was lost")
        world.after(self._process, found)
        return answer

    # -- reading ----------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        return self._name

    def resolve(self, ref: str) -> str | None:
        def effect() -> str | None:
            name = MAIN if ref == "HEAD" else ref.removeprefix("refs/heads/")
            return self.model.tip(name) or (ref if ref in self.model.commits else None)

        return self._call("resolve", ref, effect)

    def checked_out(self, branch: str) -> str | None:
        return self._call("checked_out", branch, lambda: None)

    def in_the_way(self, branch: str) -> str | None:
        return self._call("in_the_way", branch, lambda: None)

    def tree_of(self, commit: str) -> str:
        return self._call("tree_of", commit[:10], lambda: self.model.commits[commit].tree)

    def history(self, branch: str, *, until: str | None = None) -> Sequence[BranchCommit]:
        def effect() -> Sequence[BranchCommit]:
            tip = self.model.tip(branch)
            self._world.checker.repositories.looked(self.model, branch, self._process)
            if tip is None:
                return ()
            cut = until is not None and until in self.model.ancestors(tip)
            hidden = self.model.ancestors(until) if cut and until else set[str]()
            return [_shown(each) for each in self.model.line(tip) if each.id not in hidden]

        return self._call("history", branch, effect)

    def contains(self, branch: str, commit: str) -> bool:
        def effect() -> bool:
            tip = self.model.tip(branch)
            return tip is not None and commit in self.model.ancestors(tip)

        return self._call("contains", f"{branch} {commit[:10]}", effect)

    def changes(self, old: str, new: str) -> Sequence[ChangedFile]:
        def effect() -> Sequence[ChangedFile]:
            before, after = self.model.files(old), self.model.files(new)
            return [
                ChangedFile(path=path, kind=_kind(before.get(path), after.get(path)))
                for path in sorted({*before, *after})
                if before.get(path) != after.get(path)
            ]

        return self._call("changes", f"{old[:10]} {new[:10]}", effect)

    def diff(self, old: str, new: str, *, max_bytes: int) -> str:
        return "\n".join(str(each) for each in self.changes(old, new))[:max_bytes]

    def files(self, commit: str) -> Files:
        """Check out a commit, as verifiers and agents do."""
        return self._call("files", commit[:10], lambda: self.model.files(commit))

    def saved(self, loop: str, item: str | None = None) -> Sequence[SavedWork]:
        return self._kept("saved", f"{_ATTEMPTS}{loop}/{item}/" if item else f"{_ATTEMPTS}{loop}/")

    def transcripts(self, loop: str) -> Sequence[SavedWork]:
        return self._kept("transcripts", f"{_TRANSCRIPTS}{loop}/")

    def _kept(self, call: str, below: str) -> Sequence[SavedWork]:
        def effect() -> Sequence[SavedWork]:
            found = [
                _saved(ref, self.model.commits[commit])
                for ref, commit in self.model.refs.items()
                if ref.startswith(below)
            ]
            return sorted(found, key=lambda work: (work.at, work.ref))

        return self._call(call, below, effect)

    def transcript(self, loop: str, item: str, attempt: str) -> Mapping[str, bytes]:
        return self._call("transcript", f"{loop}/{item} {attempt}", dict)

    # -- writing ----------------------------------------------------------------------------------

    def begin_branch(self, branch: str, start: str) -> str:
        def effect() -> str:
            return self.model.refs.setdefault(f"refs/heads/{branch}", start)

        return self._call("begin_branch", branch, effect)

    def merge(self, ours: str, theirs: str, *, base: str | None = None) -> MergedTree:
        def effect() -> MergedTree:
            return self.model.merge(ours, theirs, base)

        return self._call("merge", f"{ours[:10]} {theirs[:10]}", effect)

    def commit(self, tree: str, parents: Sequence[str], message: str) -> str:
        def effect() -> str:
            return self.model.make_commit(tree, parents, message)

        return self._call("commit", message.partition("\n")[0], effect)

    def take_fence(self, loop: str, group: str = "") -> Fence:
        def effect() -> Fence:
            value = self.model.refs[_fence_ref(loop, group)] = self.model.unique()
            self._world.checker.repositories.fenced(loop, group, self._process)
            return Fence(loop=loop, group=group, value=value)

        return self._call("take_fence", f"{loop} {group}".strip(), effect)

    def land(self, branch: str, *, old: str, new: str, fence: Fence) -> Fence | None:
        def effect() -> Fence | None:
            refs, name = self.model.refs, _fence_ref(fence.loop, fence.group)
            if self.model.tip(branch) != old or refs.get(name) != fence.value:
                return None
            refs[f"refs/heads/{branch}"] = new
            refs[name] = self.model.unique()
            self._world.checker.repositories.landed(
                self.model,
                branch,
                old=old,
                new=new,
                fence=fence,
                kept=refs[name],
                process=self._process,
            )
            return replace(fence, value=refs[name])

        return self._call("land", f"{branch} {old[:10]} {new[:10]}", effect)

    def save(self, ref: str, files: Files, base: str) -> str:
        """Save the work of an attempt under its reference. Return its commit."""

        def effect() -> str:
            tree = self.model.make_tree(files)
            commit = self.model.make_commit(tree, (base,), f"Attempt {ref}\n")
            self.model.refs[ref] = commit
            self.model.refs[ref.replace(_ATTEMPTS, _TRANSCRIPTS)] = commit
            self._world.checker.repositories.saved(self.model, ref, commit)
            return commit

        return self._call("save", ref, effect)

    def forget(self, refs: Sequence[str]) -> None:
        def effect() -> None:
            for ref in refs:
                if not ref.startswith("refs/mulligan/"):
                    raise BadInput(f"{ref} is not ours")
                if ref in self.model.refs and ref.startswith(_ATTEMPTS):
                    self._world.checker.repositories.forgotten(ref)
                self.model.refs.pop(ref, None)

        if refs:
            self._call("forget", f"{len(refs)} references", effect)

    def export_work(self, loop: str, branch: str, base: str, into: IO[bytes]) -> Mapping[str, str]:
        raise AssertionError("no loop moves in the simulation")

    def import_work(
        self, loop: str, branch: str, base: str, refs: Mapping[str, str], pack: IO[bytes] | None
    ) -> None:
        raise AssertionError("no loop moves in the simulation")


@dataclass
class Repositories:
    """The repositories of a world, by name."""

    world: World
    by_name: dict[str, GitModel] = field(default_factory=dict)
    #: Whether nobody reaches any of them.
    away: bool = False

    def model(self, name: str) -> GitModel:
        if name not in self.by_name:
            self.by_name[name] = GitModel(lambda: self.world.scheduler.now)
        return self.by_name[name]

    def open(self, process: Process, name: str) -> SimulatedRepository:
        return SimulatedRepository(self.world, process, name, self.model(name))

    def push(self, model: GitModel, branch: str, path: str) -> None:
        """Let a person put a commit on a branch, which must stay there."""
        new = model.push(branch, path, f"{self.world.scheduler.now:.3f}")
        if new is not None:
            self.world.checker.repositories.pushed(model, branch, new)

    def push_everywhere(self, model: GitModel) -> None:
        """Let people put a commit on the branch of every loop in a repository."""
        for config in self.world.checker.repositories.configs.values():
            if self.by_name.get(config.repo or "") is model:
                self.push(model, config.target, "docs")

    def back(self) -> None:
        self.away = False
        self.world.note(None, "** the repositories are back")


def work_ref(loop: str, item: str, attempt: str, token: str) -> str:
    """Return the reference of the saved work of an attempt, named as commits name it."""
    return f"{_ATTEMPTS}{loop}/{item}/{attempt}-{token}"


def _fence_ref(loop: str, group: str) -> str:
    return f"{FENCES}{loop}/{group}"


def _id(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _shown(commit: Commit) -> BranchCommit:
    return BranchCommit(
        commit=commit.id,
        tree=commit.tree,
        parents=commit.parents,
        at=commit.at,
        subject=commit.subject,
        trailers=commit.trailers,
    )


def _saved(ref: str, commit: Commit) -> SavedWork:
    _, item, *attempt = ref.removeprefix(_ATTEMPTS).removeprefix(_TRANSCRIPTS).split("/")
    name = "/".join(attempt).rpartition("-")[0]
    return SavedWork(ref=ref, commit=commit.id, at=commit.at, item=item, attempt=name)


def _kind(before: str | None, after: str | None) -> Literal["added", "changed", "deleted"]:
    if before is None:
        return "added"
    return "deleted" if after is None else "changed"


def _brief(answer: object) -> str:
    match answer:
        case MergedTree():
            paths = [each.path for each in answer.conflicts]
            return f"conflicts in {paths}" if paths else answer.tree[:10]
        case Fence():
            return answer.value[:10]
        case str():
            return answer[:10]
        case list() | tuple() | dict():
            return f"{len(answer)} of them"
    return str(answer)
