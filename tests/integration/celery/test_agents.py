"""An attempt that takes hours holds up nobody: agents have worker processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.fleet import CONTROL, WORK, Fleet, running_fleet
from support.jobs import GOOD, WRONG_TYPE, scripted
from support.settlements import retries_immediately
from support.waiting import wait_for

from mulligan.tasks.ports.ledger import Claim, ClaimRefused, Entry, Publication
from mulligan.workers.celery.broker.queues import pools
from mulligan.workers.settings.model import Settings

pytestmark = pytest.mark.real_models("command")
RUNNERS: dict[str, Any] = {
    "slow": {"kind": "command", "argv": ["sleep", "3000"], "timeout": "50m", "pool": "agent"},
    "coder": {"kind": "scripted", "answers": [WRONG_TYPE, GOOD], "pool": "agent"},
}
SIZES = Settings(agent_slots=1, agent_repair_slots=1)
AGENTS = [pool for pool in pools(SIZES) if pool.name.startswith("agent")]


@pytest.fixture
def fleet(tmp_path: Any) -> Iterator[Fleet]:
    """A fleet with one slot for agents and one for their retries."""
    with running_fleet(tmp_path, pools=[CONTROL, WORK, *AGENTS], runners=RUNNERS) as running:
        yield running
        for child in running.stack.children:  # nobody waits for its attempt
            if child.name == "agent" and child.process is not None:
                child.process.kill()


def test_an_attempt_of_hours_delays_neither_repairs_nor_retries_of_agents(fleet: Fleet) -> None:
    """Given a busy pool of agents, when a job of others needs a repair, another agent needs its
    mandatory retry, and the message of the running attempt is delivered again, then the jobs are
    repaired while the attempt goes on, and it is not started a second time."""
    (slow,) = fleet.submit(scripted(runner="slow"))
    wait_for(lambda: fleet.holder(slow) is not None, "the attempt of hours to run")
    (coder,) = fleet.submit(scripted(runner="coder"))  # waits: every slot of agents is busy
    first = fleet.ledger.claim(Entry("attempt", coder, 1), worker="one that had a slot")
    assert isinstance(first, Claim), first
    published = fleet.ledger.settle(first.lease, retries_immediately(first, verify_after=0.2))
    assert not isinstance(published, ClaimRefused)
    assert [each.queue for each in published] == ["agent.repair"]
    again = Publication(Entry("attempt", slow, 1), "agent.repair", 0)
    fleet.services.publish([again, *published])
    (other,) = fleet.submit(scripted(WRONG_TYPE, GOOD))
    repaired = fleet.wait_until_finished([coder, other])
    assert [(view.state, len(view.attempts)) for view in repaired] == [("succeeded", 2)] * 2
    view = fleet.ledger.job(slow)
    assert view is not None
    assert (view.state, view.attempts[0].claims) == ("running", 1)
