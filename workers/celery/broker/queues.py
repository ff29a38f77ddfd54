"""The queues and the worker pools, declared once.

`mulligan up`, `mulligan worker`, the factory, the console and the local threads read them here. The
Procfile, docker-compose.yml and deploy/kubernetes/ run `mulligan worker` for each pool;
tests/repository/test_pools.py compares them with this file, which does not import Celery.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.settings.profile_pools import has_agents

if TYPE_CHECKING:
    from mulligan.workers.settings.model import Settings
    from mulligan.workers.settings.pool_settings import PoolSettings

REPAIR_QUEUE = "repair"
VERIFY_QUEUE = "verify"
ATTEMPT_QUEUE = "attempt"
#: Attempts and mandatory retries of agents, which may take hours.
AGENT_QUEUE = "agent"
AGENT_REPAIR_QUEUE = "agent.repair"
EDIT_QUEUE = "edit"
#: Hints that a loop has to be planned.
LOOP_QUEUE = "loop"
#: Its workers run the periodic tasks by themselves. Beats of earlier versions send messages to it.
CONTROL_QUEUE = "control"
#: Jobs that Celery clients send. A message is the only copy of its job until it is accepted.
SUBMIT_QUEUE = "mulligan.submit"
#: The task of these messages.
SUBMIT_TASK = "mulligan.submit"

#: Where Celery sends a task without a queue. Other apps on the broker may own it, so no worker of
#: mulligan serves it: it would take and discard their messages.
DEFAULT_QUEUE = "celery"

#: Queues of attempts and verifications; only these can be paused. Work that has begun comes before
#: new work: retries, then checks, then first attempts, those that take hours last.
JOB_QUEUES = (REPAIR_QUEUE, AGENT_REPAIR_QUEUE, VERIFY_QUEUE, ATTEMPT_QUEUE, AGENT_QUEUE)
#: Queues whose messages are hints, in the order in which a worker must list them.
QUEUES = (*JOB_QUEUES, EDIT_QUEUE, CONTROL_QUEUE, LOOP_QUEUE)
#: Queues that some worker must serve, or jobs make no progress.
REQUIRED_QUEUES = (REPAIR_QUEUE, VERIFY_QUEUE, ATTEMPT_QUEUE, CONTROL_QUEUE)
#: Queues whose messages people see counted.
SHOWN_QUEUES = (*QUEUES, SUBMIT_QUEUE)

#: What a worker and Flower say when they end because of it.
NO_BROKER = "No broker: set MULLIGAN_BROKER_URL, or broker_url in mulligan.toml."


def edit_queue(host: str) -> str:
    """Return the queue for the trees of one host, which its worker of the edit queue adds."""
    return f"{EDIT_QUEUE}.{host}"


def main_queue(served: Collection[str]) -> str | None:
    """Return the queue that makes most of a worker's work; None if it serves none of mulligan's."""
    by_share = (ATTEMPT_QUEUE, *reversed(JOB_QUEUES), *QUEUES)
    return next((name for name in by_share if name in served), None)


def required_queues(settings: Settings, *, loops: bool = False) -> tuple[str, ...]:
    """Return the queues that some worker must serve.

    Those of agents are required if a profile uses them. ``loops``: whether there are loops, whose
    items are done there.
    """
    agents = (AGENT_REPAIR_QUEUE, AGENT_QUEUE) if loops or has_agents(settings) else ()
    return (*REQUIRED_QUEUES, *agents, *((LOOP_QUEUE,) if loops else ()))


def pause_name(what: str) -> str:
    """Return the name of a pause, or raise BadInput if nothing can have that name."""
    kind, _, name = what.partition(":")
    named = kind in ("task_type", "provider") and name and name.isprintable()
    if named or (kind == "queue" and name in JOB_QUEUES):
        return what
    queues = ", queue:".join(JOB_QUEUES)
    raise BadInput.at("what", f"use queue:{queues}, task_type:NAME or provider:NAME, not {what!r}")


# -- pools -----------------------------------------------------------------------------------------

PoolKind = Literal["threads", "solo", "prefork"]


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """A kind of worker: the queues it serves, in order, and the settings for its size."""

    name: str
    queues: tuple[str, ...]
    kind: PoolKind = "threads"
    #: The settings whose sum is its number of slots; without any it has one slot.
    slots: tuple[str, ...] = ()

    @property
    def size_setting(self) -> str:
        return f"{self.name.replace('-', '_')}_slots"

    @property
    def scalable(self) -> bool:
        """Whether its size can change, by KEDA or its autoscaler: it has a `<name>_slots`."""
        return self.slots == (self.size_setting,)


_CONTROL = PoolSpec(name="control", queues=(CONTROL_QUEUE, LOOP_QUEUE, SUBMIT_QUEUE), kind="solo")

#: The pools of `mulligan up`, the Procfile, docker-compose.yml and deploy/kubernetes/.
POOLS = (
    _CONTROL,
    # Its own slots, because even a first-listed queue waits while every slot is busy.
    PoolSpec(name="repair", queues=(REPAIR_QUEUE,), slots=("repair_slots",)),
    PoolSpec(name="attempt", queues=(REPAIR_QUEUE, ATTEMPT_QUEUE), slots=("attempt_slots",)),
    PoolSpec(name="verify", queues=(VERIFY_QUEUE,), slots=("verify_slots",)),
    # Of their own, because attempts that take hours would leave no slot for others.
    PoolSpec(name="agent-repair", queues=(AGENT_REPAIR_QUEUE,), slots=("agent_repair_slots",)),
    PoolSpec(name="agent", queues=(AGENT_REPAIR_QUEUE, AGENT_QUEUE), slots=("agent_slots",)),
    # One slot, because a tree has one writer.
    PoolSpec(name="edit", queues=(EDIT_QUEUE,)),
)
#: The pools of `mulligan run`: the queues of jobs in fewer processes.
RUN_POOLS = (
    _CONTROL,
    PoolSpec(name="work", queues=JOB_QUEUES, slots=("attempt_slots", "verify_slots")),
)


def missing_pools(served: Collection[str]) -> tuple[str, ...]:
    """Return the pools with a queue that no worker serves."""
    return tuple(pool.name for pool in POOLS if not set(pool.queues).issubset(served))


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A pool with its size, ready to start."""

    name: str
    queues: tuple[str, ...]
    slots: int = 1
    #: Maximum slots. With it, each slot is a process, and their number follows the load.
    most: int | None = None
    kind: PoolKind = "threads"

    def argv(self) -> list[str]:
        argv = [sys.executable, "-m", "celery", "-A", "mulligan.workers.app", "--quiet", "worker"]
        argv += ["-n", f"{self.name}@%h", "-Q", ",".join(self.queues), "-l", "warning"]
        if self.most is None:
            argv += ["-P", self.kind, "-c", str(self.slots)]
        else:  # only prefork can give a slot back (workers/celery/autoscale.py)
            argv += ["-P", "prefork", f"--autoscale={self.most},{self.slots}"]
        argv += ["--without-gossip", "--without-mingle"]
        return argv


def pools(settings: PoolSettings) -> list[Pool]:
    """Return the pools of one host, with the configured sizes."""
    return [_sized(spec, settings) for spec in POOLS]


def run_pools(settings: PoolSettings) -> list[Pool]:
    """Return the pools of `mulligan run`."""
    return [_sized(spec, settings) for spec in RUN_POOLS]


def _sized(spec: PoolSpec, settings: PoolSettings) -> Pool:
    slots = sum(getattr(settings, name) for name in spec.slots) or 1
    name = spec.size_setting
    most = getattr(settings, f"{name}_max") if spec.scalable else None
    if most is not None and most < slots:
        raise BadInput(f"{name}_max: {most} is less than {name} ({slots})")
    return Pool(name=spec.name, queues=spec.queues, slots=slots, most=most, kind=spec.kind)
