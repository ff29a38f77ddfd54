"""The ports and limits for running loops, passed in by the composition root."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mulligan.policies.coordination.file_index import ComparedFiles
from mulligan.policies.jobs.breaker import Breaker
from mulligan.policies.jobs.job import RunnerSpec
from mulligan.policies.loops.spec import LoopConfig
from mulligan.policies.loops.stuck import RULES, Rule, RuleName
from mulligan.policies.problem import Problem
from mulligan.policies.value import Json
from mulligan.tasks.jobs.submit import Intake
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.ledger import Ledger, Publication
from mulligan.tasks.ports.repositories import Repository, no_repository


@dataclass(frozen=True, kw_only=True)
class LoopContext:
    """The ports of one process that plans or changes loops."""

    ledger: Ledger
    #: The rules for items, which are ordinary jobs, and what completes and packs them.
    intake: Intake
    publish: Callable[[Sequence[Publication]], None]
    #: Returns the slots that all loops share, unless a person set another number in the ledger.
    slots: Callable[[], int]
    #: Returns the highest price of one token of a runner; None if it has no price.
    price: Callable[[RunnerSpec], float | None]
    #: Returns the state of a provider; None if it is not known.
    provider: Callable[[str], Breaker | None] = lambda _: None
    #: Returns the names of the pools that no worker of the fleet serves.
    missing_pools: Callable[[], Collection[str]] = tuple
    #: Returns whether `mulligan up` serves this ledger; None if other supervisors run the workers.
    up: Callable[[], bool | None] = lambda: None
    #: The label that names a job's tenant.
    tenant_label: str = "tenant"
    #: Stored workspaces and differences; None: this process stores none.
    blobs: BlobStore | None = None
    #: Keeps a stored workspace from expiring.
    keep: Callable[[str], None] = lambda _: None
    #: Opens the repository of a loop, or raises BadInput.
    repository: Callable[[str], Repository] = no_repository
    #: Finds what a loop names that it may not: a command that delivers, a branch that it writes.
    check_config: Callable[[LoopConfig], Iterable[Problem]] = lambda _: ()
    #: Runs the command that delivers a loop, in a checkout of a commit. Returns its problem.
    run_delivery: Callable[[LoopConfig, str], str] = lambda _config, _commit: ""
    #: Returns how many seconds that may take.
    delivery_time: Callable[[LoopConfig], float] = lambda _config: 0.0
    #: Returns the hosts of the workers that run and verify items.
    worker_hosts: Callable[[], Collection[str]] = tuple
    #: The host of this process, and whether a repository is named by a path of it.
    host: str = ""
    is_local_path: Callable[[str], bool] = lambda _: False
    #: Read the files of a transcript, and the last events of one that is being written.
    parse_transcript: Callable[[Mapping[str, bytes]], Iterable[Mapping[str, Json]]] = lambda _: ()
    live_transcript: Callable[[str, int], Iterable[Mapping[str, Json]]] = lambda _job, _attempt: ()
    #: Returns the rules that tell what is stuck.
    stuck_rules: Callable[[], Mapping[RuleName, Rule]] = lambda: RULES
    #: Returns the seconds after which a waiting loop is overdue, times its priority: see admission.
    ageing: Callable[[], float] = lambda: 600.0
    #: Which files of items were compared, so that each plan goes on where the last one stopped.
    compared: ComparedFiles = field(default_factory=ComparedFiles)
    #: Seconds for which an item without a slot keeps the files that it declares.
    lock_ttl: float = 600.0
    #: Seconds for which the work of attempts is kept after their items have ended.
    work_retention: float = 14 * 86400.0
    #: Returns the files of a commit of a repository. Raises RepositoryUnavailable.
    files: Callable[[str, str], Mapping[str, bytes]] = lambda _git, _commit: {}
    #: The commands of the configuration that a drafted verifier may name.
    commands: Collection[str] = ()
    #: Called at named steps, where crash tests kill a process.
    step: Callable[[str, str], None] = lambda _name, _loop: None
