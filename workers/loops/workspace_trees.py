"""Workspaces that are git repositories, for verifiers and runners."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mulligan.policies.jobs.job import Workspace
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput, RepositoryUnavailable
from mulligan.tasks.ports.repositories import ChangedFile
from mulligan.workers.repositories.checkouts import Checkouts
from mulligan.workers.repositories.git_repository import GitRepository
from mulligan.workers.repositories.repositories import GitRepositories
from mulligan.workers.repositories.setup_cache import SetupCache, SetupCommands
from mulligan.workers.sandbox.file_tree import Tree, encode_tree, read_tree
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.settings.model import Settings

#: Trees that are kept in memory, and the bytes that they have together at most.
_MOST_TREES = 16
_MOST_BYTES = 200 << 20


@dataclass
class WorkspaceTrees:
    """Reads commits. The last ones are kept: each verifier of an attempt reads the same two."""

    repositories: GitRepositories
    checkouts: Checkouts
    setups: SetupCache
    limits: Limits
    #: The commands of the configuration, by name.
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _read: OrderedDict[tuple[str, str], Tree] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def snapshot(self, workspace: Workspace) -> bytes:
        """Return a packed workspace without a branch."""
        resolved = workspace if workspace.commit else self.resolve(workspace)
        return encode_tree(self.tree(resolved.git or "", resolved.commit or ""))

    def resolve(self, workspace: Workspace) -> Workspace:
        """Return the workspace with the commit of its ref. Raises BadInput if there is none."""
        if workspace.git is None or workspace.branch is not None:
            return workspace
        commit = self.repositories.open(workspace.git).resolve(workspace.ref)
        if commit is None:
            raise BadInput.at("workspace.ref", f"{workspace.git} has no {workspace.ref}")
        return workspace.model_copy(update={"commit": commit})

    def open(self, git: str) -> GitRepository:
        """Open a repository that was accepted with its job. Raises RepositoryUnavailable."""
        try:
            return self.repositories.open(git)
        except BadInput as error:  # another worker may reach it
            raise RepositoryUnavailable(str(error)) from error

    def tree(self, git: str, commit: str) -> Tree:
        key = git, commit
        with self._lock:
            if key in self._read:
                self._read.move_to_end(key)
                return self._read[key]
        with private_directory() as directory:
            self.checkouts.files(self.open(git), commit, directory)
            left_out: list[str] = []  # links that lead out of it
            tree = read_tree(directory, refused=left_out)
        if sum(len(node.content) for node in tree.values()) <= _MOST_BYTES // _MOST_TREES:
            with self._lock:
                self._read[key] = tree
                while len(self._read) > _MOST_TREES:
                    self._read.popitem(last=False)
        return tree

    def changes(self, git: str, old: str, new: str) -> Sequence[ChangedFile]:
        return self.open(git).changes(old, new)

    def prepare(self, workspace: Workspace, work: Path, *, keep: bool) -> None:
        setup = workspace.setup
        if setup is None:
            return
        commands = tuple(
            tuple(self.commands[each]) if isinstance(each, str) else each for each in setup.run
        )
        wanted = SetupCommands(
            commands=commands, cache=setup.cache, key=setup.key, timeout=setup.timeout
        )
        # A branch has one loop, and a loop one tenant.
        owner = f"{self.open(workspace.git or '').identity} {workspace.branch or ''}"
        self.setups.prepare(work, wanted, owner=owner, limits=self.limits, keep=keep)


def workspace_trees(settings: Settings, limits: Limits) -> WorkspaceTrees:
    """Return what reads the repositories of these settings. Contacts nothing."""
    cache = settings.repository_folder
    return WorkspaceTrees(
        repositories=GitRepositories(cache=cache, profiles=settings.repositories),
        checkouts=Checkouts(),
        setups=SetupCache(cache, max_bytes=settings.repository_cache_cap),
        limits=limits,
        commands={name: each.get("argv", ()) for name, each in settings.commands.items()},
    )


class BlobsAndTrees:
    """A blob store that also reads workspaces in git repositories."""

    def __init__(self, blobs: BlobStore, trees: WorkspaceTrees) -> None:
        self._blobs = blobs
        self.trees = trees

    def put(self, data: bytes, *, paid: bool = False) -> str:
        return self._blobs.put(data, paid=paid)

    def get(self, address: str) -> bytes:
        return self._blobs.get(address)

    def keep(self, address: str) -> None:
        self._blobs.keep(address)
