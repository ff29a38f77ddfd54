"""Watch an agent while it works: what shows its progress, and whether it is stuck.

Its events and its output come from the thread that reads them. Once a second, another thread looks
at its processes and its files, asks the rules, and says how it goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mulligan.policies.loops.progress import SIGNALS, AgentProgress, Signal, WaitsOn
from mulligan.policies.loops.session_event import SessionEvent
from mulligan.policies.loops.session_log import SessionLog
from mulligan.policies.loops.stuck import (
    RULES,
    Rule,
    RuleName,
    StuckFinding,
    Vitals,
    stuck_process,
    stuck_session,
)
from mulligan.workers.sandbox.process_watch import INTERVAL, ProcessLook, watching
from mulligan.workers.sandbox.tree_watch import TreeWatch

#: The share of one processor from which on CPU time shows work: a program that waits uses less.
_BUSY = 0.1
#: The share of the processes that it may have from which on there is a storm of them.
_STORM = 0.9
#: Looks at the processes for each look at the files.
_PER_TREE = 5
#: Looks within the shortest threshold.
_PER_THRESHOLD = 10
#: The rules about a few seconds.
_SHORT: tuple[RuleName, ...] = ("stopped", "storm", "silent", "tool", "busy")


class AgentWatch:
    """Collects the evidence of one agent's progress, and ends it if it is stuck."""

    def __init__(
        self,
        directory: Path,
        *,
        rules: Mapping[RuleName, Rule] = RULES,
        most_processes: int | None = None,
        has_events: bool = False,
        show: Callable[[AgentProgress | None], None] = lambda _progress: None,
    ) -> None:
        """``has_events``: whether it prints what it does. ``show`` gets its progress."""
        self._rules, self._most_processes, self._has_events = rules, most_processes, has_events
        self._show = show
        #: Tells it what it repeats, and returns whether it can hear that.
        self.nudge: Callable[[StuckFinding], bool] = lambda _finding: False
        self._tree = TreeWatch(directory)
        self._lock = threading.Lock()
        self._log = SessionLog()
        #: Seconds of looking, which a process that is stopped does not do.
        self._now = 0.0
        self._seen: dict[Signal, float] = {}
        self._looks = 0
        self._cpu: float | None = None
        self._processes = ProcessLook()
        #: The processes before its first action: the agent itself.
        self._own: frozenset[int] = frozenset()
        self._has_acted = False
        self._stopped_since: float | None = None
        self._storm_since: float | None = None
        self._end: Callable[[], None] = lambda: None
        self._last: StuckFinding | None = None
        self._nudged: set[RuleName] = set()
        #: Why it was ended.
        self.ended: StuckFinding | None = None
        #: What it was not told, because it cannot hear.
        self.unheard: StuckFinding | None = None
        times = [rules[name].threshold for name in _SHORT if rules[name].threshold > 0]
        self.interval = min([INTERVAL, *(each / _PER_THRESHOLD for each in times)])

    def hear(self, event: SessionEvent) -> None:
        """Note an event of its session."""
        with self._lock:
            self._seen["event"] = self._now
            self._has_acted = self._has_acted or event.kind == "action"
            self._log.add(event)

    def hear_output(self, _data: bytes) -> None:
        """Note that it printed something."""
        with self._lock:
            self._seen["output"] = self._now

    @contextmanager
    def running(self, launcher: int, end: Callable[[], None]) -> Iterator[None]:
        """Watch the program of a launcher. ``end`` is not called after the block."""
        self._end = end
        try:
            with watching(launcher, self):
                yield
        finally:
            with self._lock:
                self._end = lambda: None
            self._show(None)

    def look(self, processes: ProcessLook | None, seconds: float) -> None:
        """Look at it, as the thread does that watches all programs."""
        with self._lock:
            self._now += seconds
            self._looks += 1
            if processes is not None:
                self._see(processes, seconds)
            if self._looks % _PER_TREE == 0 and self._tree.look():
                self._seen["files"] = self._now
            finding = self._find()
            progress = self._progress(finding)
            self._judge(finding)
        self._show(progress)

    def _see(self, found: ProcessLook, seconds: float) -> None:
        if self._cpu is not None and found.cpu_seconds - self._cpu >= _BUSY * seconds:
            self._seen["cpu"] = self._now
        self._cpu, self._processes = found.cpu_seconds, found
        if not self._has_acted:
            self._own = found.pids
        elif not self._own:  # it acted before the first look
            self._own = found.first
        self._stopped_since = self._since(self._stopped_since, is_so=self._is_stopped(found))
        most = self._most_processes
        is_storm = most is not None and found.tasks >= _STORM * most
        self._storm_since = self._since(self._storm_since, is_so=is_storm)

    def _since(self, before: float | None, *, is_so: bool) -> float | None:
        if not is_so:
            return None
        return self._now if before is None else before

    def _is_stopped(self, found: ProcessLook) -> bool:
        """Whether a process is stopped for which the agent waits, or the agent itself.

        A tool may have left a stopped process behind, while the agent waits for its model.
        """
        if self._waits_on == "model":
            later = found.pids - self._own
            return bool(found.stopped - later)
        return bool(found.stopped)

    @property
    def _waits_on(self) -> WaitsOn:
        if self._log.open:
            return "tool"
        return "model" if self._has_events else ""

    def _find(self) -> StuckFinding | None:
        session = stuck_session(self._log, self._rules)
        process = stuck_process(self._vitals(), self._rules)
        if process is None or (session is not None and session.ends):
            return session
        return process

    def _vitals(self) -> Vitals:
        def age(since: float | None) -> float:
            return 0.0 if since is None else self._now - since

        waits_for = next(reversed(self._log.open.values()), None)
        return Vitals(
            ages={name: self._now - self._seen.get(name, 0.0) for name in SIGNALS},
            waits_on=self._waits_on,
            tool="" if waits_for is None else waits_for.text,
            stopped=age(self._stopped_since),
            storm=age(self._storm_since),
        )

    def _progress(self, finding: StuckFinding | None) -> AgentProgress:
        found = self._processes
        resting = "T" if self._stopped_since is not None else "S" if found.pids else ""
        return AgentProgress(
            at={name: self._now - each for name, each in self._seen.items()},
            waits_on=self._waits_on,
            state="R" if found.running else resting,
            processes=len(found.pids),
            # Many files are a remark for the agent, and no trouble.
            finding="" if finding is None or finding.rule == "files" else finding.said,
        )

    def _judge(self, finding: StuckFinding | None) -> None:
        """Act on a finding. It ends the agent if it still holds at the next look.

        Between two looks, the agent may have ended by itself, or gone on.
        """
        last, self._last = self._last, finding
        if self.ended is not None:
            self._end()  # again and again: somebody may have stopped its launcher meanwhile
        elif finding is None:
            self._nudged.clear()
            self.unheard = None
        elif finding.ends and last is not None and last.ends:
            self.ended = finding
            self._end()
        elif finding.action == "nudge" and finding.rule not in self._nudged:
            self._nudged.add(finding.rule)
            self.unheard = None if self.nudge(finding) else finding
