"""The watch of one agent, looked at by the test instead of a thread."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.waiting import wait_for

from mulligan.policies.loops.progress import AgentProgress
from mulligan.policies.loops.session_event import SessionEvent
from mulligan.policies.loops.stuck import StuckFinding
from mulligan.workers.runners.agent_watch import AgentWatch
from mulligan.workers.sandbox import process_watch
from mulligan.workers.sandbox.process_watch import ProcessLook, watching

IDLE = ProcessLook(pids=frozenset({2, 3}), tasks=2)


class Agent:
    """An agent that is watched with the thresholds of the release."""

    def __init__(self, directory: Path, *, has_events: bool = True) -> None:
        self.progress: AgentProgress | None = None
        self.ends = 0
        self.nudges: list[str] = []
        self.watch = AgentWatch(
            directory, has_events=has_events, most_processes=100, show=self._show
        )
        self.watch.nudge = self._hear
        self.watch._end = self._end

    def _show(self, progress: AgentProgress | None) -> None:
        self.progress = progress

    def _end(self) -> None:
        self.ends += 1

    def _hear(self, finding: StuckFinding) -> bool:
        self.nudges.append(finding.told)
        return False

    def look(self, seconds: int, processes: ProcessLook | None = IDLE) -> None:
        for _ in range(seconds):
            self.watch.look(processes, 1.0)

    def fails(self, command: str) -> None:
        action = SessionEvent(kind="action", name="Bash", ref="r", data={"command": command})
        self.watch.hear(action)
        self.watch.hear(SessionEvent(kind="observation", ref="r", text="error", failed=True))


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_with_the_defaults_a_stopped_agent_is_ended_after_31_seconds(agent: Agent) -> None:
    agent.look(5)
    stopped = ProcessLook(pids=frozenset({2, 3}), stopped=frozenset({3}))
    agent.look(31, stopped)
    assert agent.ends == 0
    assert agent.progress is not None
    assert (agent.progress.state, agent.progress.finding) == (
        "T",
        "was stopped by a signal for 30 s",
    )
    agent.look(1, stopped)
    assert agent.ends == 1
    assert agent.watch.ended is not None
    assert agent.watch.ended.rule == "stopped"
    # Again, because somebody may have stopped its launcher meanwhile.
    agent.look(2, stopped)
    assert agent.ends == 3


def test_an_agent_that_goes_on_is_not_ended(agent: Agent) -> None:
    stopped = ProcessLook(pids=frozenset({2, 3}), stopped=frozenset({3}))
    agent.look(29, stopped)
    agent.look(1)
    agent.look(29, stopped)
    assert agent.watch.ended is None


def test_with_the_defaults_an_agent_may_wait_ten_minutes_for_its_model(agent: Agent) -> None:
    agent.look(599)
    assert agent.progress is not None
    assert (agent.progress.waits_on, agent.progress.finding) == ("model", "")
    agent.look(2)
    assert agent.watch.ended is not None
    assert agent.watch.ended.rule == "silent"


def test_a_little_cpu_time_is_no_sign_of_work(agent: Agent) -> None:
    for second in range(700):
        agent.look(1, ProcessLook(pids=frozenset({2}), cpu_seconds=second * 0.02))
    assert agent.watch.ended is not None
    assert agent.watch.ended.rule == "silent"


def test_a_finding_that_goes_away_before_the_next_look_ends_nothing(agent: Agent) -> None:
    for _ in range(4):
        agent.fails("pytest -q")
    agent.look(1)
    agent.fails("ls")
    agent.look(5)
    assert agent.watch.ended is None


def test_a_nudge_is_given_once_and_forgotten_when_it_helped(agent: Agent) -> None:
    for _ in range(3):
        agent.fails("pytest -q")
    agent.look(5)
    said = "ran `Bash` 3 times, and it always failed. Do something else first"
    assert agent.nudges == [said]
    assert agent.watch.unheard is not None
    agent.fails("ls")
    agent.look(1)
    assert agent.watch.unheard is None


def test_without_a_view_of_processes_the_rest_still_works(agent: Agent) -> None:
    agent.look(602, None)
    assert agent.watch.ended is not None


def test_time_in_which_the_worker_did_not_run_does_not_count(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a worker that was stopped for an hour: it saw nothing of what its agent did."""
    times = iter([0.0, 1.0, 3601.0])
    looked: list[float] = []

    class Clock:
        monotonic = staticmethod(lambda: next(times))
        sleep = staticmethod(lambda _seconds: None)

    class Program:
        interval = 1.0

        def look(self, _processes: ProcessLook | None, seconds: float) -> None:
            looked.append(seconds)
            if len(looked) == 2:
                thread.remove(1)

    monkeypatch.setattr(process_watch, "time", Clock)
    thread = process_watch._WatchThread()
    thread._programs[1] = Program()
    thread._run()
    assert looked == [1.0, 5.0]


def test_a_program_that_cannot_be_watched_does_not_hide_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[float] = []

    class Failing:
        interval = 0.01

        def look(self, _processes: ProcessLook | None, _seconds: float) -> None:
            raise ValueError("it fails")

    class Seeing:
        interval = 0.01

        def look(self, _processes: ProcessLook | None, seconds: float) -> None:
            seen.append(seconds)

    with watching(-1, Failing()), watching(-2, Seeing()):
        wait_for(lambda: len(seen) >= 2, "two looks")
    assert "cannot be watched" in caplog.text
