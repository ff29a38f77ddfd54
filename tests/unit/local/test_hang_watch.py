"""When a silent server is reported, and when it counts as hung."""

from __future__ import annotations

import pytest

from mulligan.workers.local.hang_watch import HangWatch, ServerCheck
from mulligan.workers.local.server_probe import Reply

SILENT = ServerCheck(pid=7)
READY = ServerCheck(pid=7, reply=Reply.READY)
BUSY = ServerCheck(pid=7, reply=Reply.BUSY)
LOADING = ServerCheck(pid=7, reply=Reply.LOADING)
GONE = ServerCheck(pid=None)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def watch(said: list[str]) -> HangWatch:
    return HangWatch(30.0, said.append)


def test_silence_is_reported_and_ends_with_a_hung_server(watch: HangWatch, said: list[str]) -> None:
    looks = [watch.observe(SILENT, float(second)) for second in range(0, 31)]
    assert looks == [False] * 30 + [True]
    assert said == [
        "The embedded server (process 7) has not answered for 4 s.",
        "The embedded server (process 7) has not answered for 14 s.",
        "The embedded server (process 7) has not answered for 24 s.",
        "The embedded server (process 7) has not answered for 30 s: ending it.",
    ]


@pytest.mark.parametrize("answer", [READY, BUSY, LOADING])
def test_any_answer_ends_the_silence(watch: HangWatch, answer: ServerCheck) -> None:
    assert not watch.observe(SILENT, 0)
    assert not watch.observe(answer, 29)
    assert not watch.observe(SILENT, 30)
    assert not watch.observe(SILENT, 59)
    assert watch.observe(SILENT, 60)


def test_a_server_that_loads_is_reported_and_never_hung(watch: HangWatch, said: list[str]) -> None:
    assert not any(watch.observe(LOADING, float(second)) for second in range(0, 120))
    assert said[0] == "The embedded server has been loading its data for 4 s."
    assert len(said) == 12  # at 4 s, 14 s, … 114 s
    watch.observe(READY, 120)
    assert said[-1] == "The embedded server answers again."


def test_another_server_starts_with_no_silence(watch: HangWatch, said: list[str]) -> None:
    assert not watch.observe(SILENT, 0)
    assert not watch.observe(ServerCheck(pid=8), 40)
    assert watch.observe(ServerCheck(pid=8), 70)


@pytest.mark.parametrize("state", [READY, GONE])
def test_nothing_is_said_about_a_server_that_is_well_or_gone(
    watch: HangWatch, said: list[str], state: ServerCheck
) -> None:
    assert not any(watch.observe(state, float(second)) for second in range(0, 100))
    assert said == []
