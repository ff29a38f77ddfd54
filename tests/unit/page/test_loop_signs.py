"""The signs of life on the page, in words."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan.console.page.loops.loop_signs import HealthSign, item_sign, loop_sign
from mulligan.policies.loops.health import HealthCheck, ItemSigns, item_health
from mulligan.policies.loops.progress import AgentProgress

NOW = 1000.0


def sign(*, texts: bool = True, **fields: Any) -> HealthSign:
    given = {"item": "a", "since": 0.0, "held": True, "renewed_at": NOW - 5, **fields}
    return item_sign(item_health(ItemSigns(**given), NOW), NOW, texts=texts)


def silent(seconds: float, **fields: Any) -> AgentProgress:
    return AgentProgress(at={"event": NOW - seconds}, **fields)


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({}, "healthy", "healthy"),
        ({"progress": silent(59)}, "healthy", "healthy"),
        ({"progress": silent(61)}, "degraded", "there is no sign of progress for 61 s"),
        (
            {"progress": silent(400, waits_on="model")},
            "degraded",
            "there is no sign of progress for 7 min, waits for its model",
        ),
        ({"progress": silent(400)}, "dead", "there is no sign of progress for 7 min"),
        ({"renewed_at": NOW - 100}, "degraded", "its worker has not renewed its lease for 2 min"),
        ({"renewed_at": None}, "healthy", "verifying"),
        ({"renewed_at": None, "held": False}, "idle", "waits for a worker"),
        ({"progress": silent(1, finding="ran x 4 times")}, "degraded", "ran x 4 times"),
    ],
)
def test_an_item_is_as_its_worse_signal(fields: dict[str, Any], status: str, text: str) -> None:
    assert sign(**fields) == HealthSign(status=status, text=text)  # type: ignore[arg-type]


def test_what_an_agent_repeats_needs_the_right_to_read_texts() -> None:
    found = sign(progress=silent(1, finding="ran secret 4 times"), texts=False)
    assert found.text == "its agent repeats itself"


def test_a_loop_names_the_item_that_decides() -> None:
    check = HealthCheck(status="dead", missing="lease", since=NOW - 400, item="a")
    text = "a: its worker has not renewed its lease for 7 min"
    assert loop_sign(check, NOW) == HealthSign(status="dead", text=text)
    assert loop_sign(HealthCheck(status="healthy"), NOW).text == "healthy"
