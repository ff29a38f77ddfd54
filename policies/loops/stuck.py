"""Rules that tell an agent that is stuck from one that works: one function each, and one table.

A function measures something: how often an action was repeated, or for how many seconds nothing
happened. The table says from which number on the agent counts as stuck, and what follows. Only
failures count as repetitions, and waiting on purpose is no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

from mulligan.policies.figures.format import duration
from mulligan.policies.loops.progress import Signal, WaitsOn
from mulligan.policies.loops.session_log import SessionLog, Step

#: ``nudge``: tell the agent, or the next attempt if it cannot hear. ``end``: end it and try again.
#: ``change_strategy``: the same, and the next attempt begins anew. ``escalate``: end it and ask a
#: person. The worst comes last.
StuckAction = Literal["nudge", "end", "change_strategy", "escalate"]
_WORST: tuple[StuckAction, ...] = ("nudge", "end", "change_strategy", "escalate")

RuleName = Literal[
    "same_failure",
    "same_error",
    "alternation",
    "monologue",
    "files",
    "stopped",
    "silent",
    "tool",
    "busy",
    "storm",
    "consecutive_failures",
    "no_improvement",
    "no_pass",
]
#: Characters of a command within a sentence.
_LONGEST_QUOTE = 120


@dataclass(frozen=True, kw_only=True)
class Rule:
    """From which number on an agent is stuck, and what follows."""

    #: 0 switches the rule off. Rules about time count seconds.
    threshold: float
    action: StuckAction
    #: What follows one step later, if a nudge did not help.
    then: StuckAction | None = None
    #: What happened, as it follows "the last attempt".
    said: str
    #: What to do instead.
    advice: str = ""


RULES: Mapping[RuleName, Rule] = {
    # Of the session's events.
    "same_failure": Rule(
        threshold=4,
        action="change_strategy",
        said="ran {what} {count} times with the same error",
        advice="Do something else first",
    ),
    "same_error": Rule(
        threshold=3,
        action="nudge",
        then="end",
        said="ran {what} {count} times, and it always failed",
        advice="Do something else first",
    ),
    "alternation": Rule(
        threshold=6,
        action="end",
        said="went back and forth between {what}, {count} times, with errors",
        advice="Do something else first",
    ),
    "monologue": Rule(
        threshold=3,
        action="nudge",
        then="end",
        said="said something {count} times without doing anything",
        advice="Do the next step instead of describing it",
    ),
    "files": Rule(
        threshold=20,
        action="nudge",
        said="changed {count} files",
        advice="Change only the files that the task needs",
    ),
    # Of its processes and of the time since its last sign of work.
    "stopped": Rule(threshold=30, action="end", said="was stopped by a signal for {time}"),
    "silent": Rule(threshold=600, action="end", said="did nothing for {time}"),
    "tool": Rule(
        threshold=1800,
        action="end",
        said="waited {time} for {what}",
        advice="Give every command a time limit",
    ),
    "busy": Rule(
        threshold=1800,
        action="end",
        said="only used the processor for {time}",
        advice="Look for an endless loop first",
    ),
    "storm": Rule(
        threshold=30,
        action="end",
        said="ran as many processes as it may for {time}",
        advice="Start fewer processes",
    ),
    # Of the attempts of an item, and of a loop.
    "consecutive_failures": Rule(
        threshold=3, action="escalate", said="{count} items failed one after the other"
    ),
    "no_improvement": Rule(
        threshold=3,
        action="change_strategy",
        said="did not improve the score in {count} attempts",
    ),
    "no_pass": Rule(threshold=1800, action="escalate", said="no item has passed for {time}"),
}


def changed_rules(
    thresholds: Mapping[RuleName, float], actions: Mapping[RuleName, StuckAction]
) -> Mapping[RuleName, Rule]:
    """Return the table with other thresholds and actions. Nothing follows another action."""
    rules = dict(RULES)
    for name, threshold in thresholds.items():
        rules[name] = replace(rules[name], threshold=threshold)
    for name, action in actions.items():
        rules[name] = replace(rules[name], action=action, then=None)
    return rules


@dataclass(frozen=True, kw_only=True)
class StuckFinding:
    """A rule that applies."""

    rule: RuleName
    action: StuckAction
    #: What happened, as it follows "the last attempt".
    said: str
    #: What to do instead.
    advice: str = ""

    @property
    def told(self) -> str:
        """What happened, and what to do instead: ``ran … 4 times. Do something else first``."""
        return ". ".join(filter(None, (self.said, self.advice)))

    @property
    def ends(self) -> bool:
        return self.action != "nudge"


@dataclass(frozen=True, kw_only=True)
class Vitals:
    """An agent's signs of life: how many seconds ago each was last seen."""

    #: A sign that was never seen is as old as the agent.
    ages: Mapping[Signal, float]
    waits_on: WaitsOn = ""
    #: The tool that it waits for.
    tool: str = ""
    #: Seconds for which one of its processes is stopped.
    stopped: float = 0.0
    #: Seconds for which it has had as many processes as it may have.
    storm: float = 0.0


# -- the session's events --------------------------------------------------------------------------


def same_failure(log: SessionLog) -> int:
    """How often the last action was just repeated with the same error."""
    return len(_repeated(log, lambda step, last: step.result == last.result))


def same_error(log: SessionLog) -> int:
    """How often the last action was just repeated and failed, whatever the error was."""
    return len(_repeated(log, lambda _step, _last: True))


def alternation(log: SessionLog) -> int:
    """How many actions go back and forth between the last two, of which one always fails."""
    steps = list(reversed(log.steps))
    pair = steps[:2]
    if len(pair) < 2 or pair[0].key == pair[1].key or any(step.waits for step in pair):
        return 0
    keys = [step.key for step in pair]
    found = list(takewhile(lambda at: at[1].key == keys[at[0] % 2], enumerate(steps)))
    fails = any(all(step.failed for _, step in found[start::2]) for start in (0, 1))
    return len(found) if fails else 0


def monologue(log: SessionLog) -> int:
    """How many messages in a row the agent sent without doing anything."""
    return 0 if log.open else log.messages


def files(log: SessionLog) -> int:
    """How many files its tools were asked to change."""
    return len(log.files)


def _repeated(log: SessionLog, is_same: Callable[[Step, Step], bool]) -> list[Step]:
    if not log.steps:
        return []
    last = log.steps[-1]

    def counts(step: Step) -> bool:
        return step.key == last.key and step.failed and not step.waits and is_same(step, last)

    return list(takewhile(counts, reversed(log.steps)))


# -- processes and time ----------------------------------------------------------------------------


def stopped(vitals: Vitals) -> float:
    """For how long a process is stopped, and nothing else happens.

    While the agent itself is stopped, what its children print or write is no work of it.
    """
    if vitals.waits_on == "model":
        return min(vitals.stopped, vitals.ages.get("event", vitals.stopped))
    return min(vitals.stopped, _since(vitals))


def silent(vitals: Vitals) -> float:
    """For how long nothing happens, while no tool runs: it may wait for its model."""
    return 0.0 if vitals.waits_on == "tool" else _since(vitals)


def tool(vitals: Vitals) -> float:
    """For how long nothing happens while a tool runs: a wait on purpose, or a long test."""
    return _since(vitals) if vitals.waits_on == "tool" else 0.0


def busy(vitals: Vitals) -> float:
    """For how long there is nothing but CPU time; of an agent with events, nothing but output."""
    empty = ("cpu", "output") if vitals.waits_on else ("cpu",)
    return min((age for name, age in vitals.ages.items() if name not in empty), default=0.0)


def storm(vitals: Vitals) -> float:
    """For how long it has had as many processes as it may have."""
    return vitals.storm


def _since(vitals: Vitals) -> float:
    return min(vitals.ages.values(), default=0.0)


# -- attempts and loops ----------------------------------------------------------------------------


def consecutive_failures(passed: Sequence[bool]) -> int:
    """How many of the last items failed in a row; the oldest comes first."""
    return len(list(takewhile(lambda each: not each, reversed(passed))))


def no_improvement(scores: Sequence[float]) -> int:
    """How many of the last attempts did not improve on the best score before; oldest first."""
    best, since = float("-inf"), 0
    for score in scores:
        best, since = (score, 0) if score > best else (best, since + 1)
    return since


def no_pass(now: float, last_pass: float) -> float:
    """For how long no item has passed. Without one, the loop's start counts."""
    return max(0.0, now - last_pass)


_OF_SESSION: Mapping[RuleName, Callable[[SessionLog], int]] = {
    "same_failure": same_failure,
    "same_error": same_error,
    "alternation": alternation,
    "monologue": monologue,
    "files": files,
}
_OF_PROCESSES: Mapping[RuleName, Callable[[Vitals], float]] = {
    "stopped": stopped,
    "silent": silent,
    "tool": tool,
    "busy": busy,
    "storm": storm,
}
#: The rules whose threshold is the last number that is still allowed.
_MORE_THAN: frozenset[RuleName] = frozenset({"files"})


def stuck_session(log: SessionLog, rules: Mapping[RuleName, Rule] = RULES) -> StuckFinding | None:
    """Return the worst that the events of a session say."""
    what = _what(log)
    found = (
        finding_of(name, measure(log), rules, what=what) for name, measure in _OF_SESSION.items()
    )
    return _worst([each for each in found if each is not None])


def stuck_process(vitals: Vitals, rules: Mapping[RuleName, Rule] = RULES) -> StuckFinding | None:
    """Return the worst that the processes and the silence of an agent say."""
    found = (
        finding_of(name, measure(vitals), rules, what=quoted(vitals.tool))
        for name, measure in _OF_PROCESSES.items()
    )
    return _worst([each for each in found if each is not None])


def finding_of(
    name: RuleName, amount: float, rules: Mapping[RuleName, Rule] = RULES, *, what: str = ""
) -> StuckFinding | None:
    """Return what follows from a measure; None if it is below the threshold."""
    rule = rules[name]
    first = rule.threshold + 1 if name in _MORE_THAN else rule.threshold
    if rule.threshold <= 0 or amount < first:
        return None
    action = rule.then if rule.then and amount > first else rule.action
    said = rule.said.format(count=f"{amount:g}", time=duration(amount), what=what)
    return StuckFinding(rule=name, action=action, said=said, advice=rule.advice)


def _worst(found: Sequence[StuckFinding]) -> StuckFinding | None:
    return max(found, key=lambda each: _WORST.index(each.action), default=None)


def _what(log: SessionLog) -> str:
    """Name the last action, and the one before if it is another one."""
    last = list(log.steps)[-2:]
    texts = dict.fromkeys(quoted(step.text) for step in reversed(last))
    if alternation(log):
        return " and ".join(texts)
    return next(iter(texts), "")


def quoted(text: str) -> str:
    """Quote an agent's text in a sentence, which it cannot leave: one line, cut, in backticks."""
    # A semicolon with a space ends what a runner says of its program.
    line = " ".join(text[: 4 * _LONGEST_QUOTE].replace("`", "'").replace(";", "; ").split())
    line = "".join(c for c in line.replace("; ", ";") if c.isprintable())
    line = line if len(line) <= _LONGEST_QUOTE else f"{line[: _LONGEST_QUOTE - 1]}…"
    return f"`{line}`" if line else "a tool"
