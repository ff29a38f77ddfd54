"""What the page says about the health of an item that runs, and of its loop."""

from __future__ import annotations

import pytest

from mulligan.console.page.loops.loop_signs import item_sign, loop_sign
from mulligan.policies.loops.loop import ItemRecord, LoopRecord
from mulligan.policies.loops.progress import Progress
from mulligan.policies.loops.spec import LoopConfig
from mulligan.tasks.loops.registry import LoopSummary
from mulligan.tasks.ports.ledger import LiveItem

NOW = 1_000.0


def live(
    renewed: float | None = 5.0, progress: Progress | None = None, *, held: bool = True
) -> LiveItem:
    """``renewed``: seconds since the lease was renewed."""
    return LiveItem(
        loop="alpha",
        item="one",
        job_id="j1",
        worker="host:1",
        renewed_at=None if renewed is None else NOW - renewed,
        held=held,
        progress=progress,
    )


def seen(ago: float, waits_on: str = "", finding: str = "") -> Progress:
    return Progress(at={"event": NOW - ago}, waits_on=waits_on, finding=finding)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "status", "text"),
    [
        (live(), "healthy", "healthy"),
        (live(progress=seen(59)), "healthy", "healthy"),
        (live(progress=seen(61)), "degraded", "no progress for 61 s"),
        (
            live(progress=seen(240, "model")),
            "degraded",
            "no progress for 4 min, waits for its model",
        ),
        (live(progress=seen(300)), "dead", "no progress for 5 min"),
        (live(renewed=120), "degraded", "no heartbeat for 2 min"),
        (live(renewed=400, progress=seen(5)), "dead", "no heartbeat for 7 min"),
        (live(progress=seen(5, finding="A-B-A-B ×6")), "degraded", "A-B-A-B ×6"),
        (live(renewed=None), "healthy", "verifying"),
        (live(renewed=None, held=False), "idle", "waits for a worker"),
    ],
)
def test_an_item_is_as_its_worse_signal(item: LiveItem, status: str, text: str) -> None:
    sign = item_sign(item, NOW)
    assert (sign.status, sign.text) == (status, text)


def summary(*found: LiveItem, state: str = "running", planned_at: float = NOW) -> LoopSummary:
    loop = LoopRecord(
        name="alpha",
        config=LoopConfig(name="alpha"),
        state=state,  # type: ignore[arg-type]
        planned_at=planned_at,
    )
    items = {"one": ItemRecord(state="running", job_id="j1")}
    return LoopSummary(loop=loop, items=items, live={each.job_id: each for each in found})


def test_a_loop_is_as_the_worst_of_its_items() -> None:
    assert loop_sign(summary(live()), NOW).text == "healthy"
    assert loop_sign(summary(live(progress=seen(360))), NOW).text == "one: no progress for 6 min"
    assert loop_sign(summary(planned_at=NOW - 400), NOW).text == "no sign for 7 min"
    assert loop_sign(summary(state="paused", planned_at=0.0), NOW).status == "idle"
