"""Analyse why an item failed: the pattern of its attempts, what differs, and what was tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mulligan.policies.figures.format import counted
from mulligan.policies.loops.heal_record import HealRecord
from mulligan.policies.loops.stuck import RULES, Rule, RuleName, finding_of, no_improvement
from mulligan.policies.repair.instruction import one_line
from mulligan.policies.repair.retry import score_in_full
from mulligan.policies.terminal_text import terminal_text

#: ``same``: every attempt failed alike. ``alternates``: two failures take turns.
#: ``no_improvement``: the score does not rise. ``different``: each attempt failed in its own way.
#: ``lost``: no worker came back from it. ``blocked``: it ended before an agent worked.
Pattern = Literal["same", "alternates", "no_improvement", "different", "lost", "blocked"]
WORKER_LOST = "worker_lost"
#: Characters of a failure's message in a sentence.
_LONGEST_MESSAGE = 200
_MOST_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class AttemptFacts:
    """What is known of an attempt that failed."""

    number: int
    score: float | None = None
    #: `kind.cause`; empty if it did not come so far.
    failure: str = ""
    #: The strict signature.
    signature: str = ""
    message: str = ""
    #: How it was asked: what was changed since the attempt before.
    technique: str = ""
    worker: str = ""
    seconds: float | None = None
    #: Whether its agent broke off.
    broke_off: bool = False


@dataclass(frozen=True, kw_only=True)
class FailureAnalysis:
    """Why an item failed, for whoever heals it. It may quote texts of its attempts."""

    item: str
    pattern: Pattern
    #: One sentence, which may quote the attempts.
    summary: str
    #: What the attempts differ in.
    differences: tuple[str, ...] = ()
    #: What was changed between them, and what healed nothing.
    tried: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The pattern for everybody: without quotations."""
        return _PLAIN[self.pattern]

    @property
    def text(self) -> str:
        """All of it, in a few sentences."""
        parts = [self.summary]
        if self.differences:
            parts.append(f"The attempts differ in {_listed(self.differences)}.")
        if self.tried:
            parts.append(f"Tried so far: {_listed(self.tried)}.")
        return " ".join(parts)


def analyse(
    item: str,
    reason: str,
    attempts: Sequence[AttemptFacts],
    heals: Sequence[HealRecord] = (),
    rules: Mapping[RuleName, Rule] = RULES,
) -> FailureAnalysis:
    """Analyse the attempts of an item's last run. ``reason``: why that run ended."""
    failed = [each for each in attempts if each.failure]
    pattern = _pattern(reason, failed, rules)
    return FailureAnalysis(
        item=item,
        pattern=pattern,
        summary=_summary(pattern, reason, failed),
        differences=tuple(_differences(failed)),
        tried=tuple(_tried(attempts, heals)),
    )


def _pattern(
    reason: str, failed: Sequence[AttemptFacts], rules: Mapping[RuleName, Rule]
) -> Pattern:
    if reason.startswith(WORKER_LOST):
        return "lost"
    if not failed:
        return "blocked"
    signatures = [each.signature for each in failed]
    if len(set(signatures)) == 1:
        return "same"
    if len(signatures) >= 3 and _take_turns(signatures):
        return "alternates"
    scores = [each.score for each in failed if each.score is not None]
    # The first attempt has nothing to improve on.
    found = finding_of("no_improvement", no_improvement(scores) + 1, rules)
    return "different" if found is None else "no_improvement"


def _take_turns(signatures: Sequence[str]) -> bool:
    first, second = signatures[:2]
    turns = zip(signatures, [first, second] * len(signatures), strict=False)
    return first != second and all(found == expected for found, expected in turns)


_WORDS: dict[Pattern, str] = {
    "same": "All {count} failed in the same way: {failure}.",
    "alternates": "Two failures take turns in {count}: {failures}.",
    "no_improvement": "The score does not rise in {count}: {scores}.",
    "different": "Each of {count} failed in its own way: {failures}.",
    "lost": "No worker came back from it: {reason}.",
    "blocked": "It ended before an answer could be checked: {reason}.",
}


_PLAIN: dict[Pattern, str] = {
    "same": "every attempt failed alike",
    "alternates": "two failures take turns",
    "no_improvement": "the score does not rise",
    "different": "each attempt failed in its own way",
    "lost": "no worker came back from it",
    "blocked": "it ended before an answer could be checked",
}


def _summary(pattern: Pattern, reason: str, failed: Sequence[AttemptFacts]) -> str:
    labels = [each.failure for each in failed]
    if pattern == "same" and len(failed) == 1:
        return f"Its only attempt failed: {_described(failed[0])}."
    return _WORDS[pattern].format(
        count=counted(len(failed), "attempt"),
        failure=_described(failed[-1]) if failed else "",
        failures=_listed(list(dict.fromkeys(labels))),
        scores=", ".join(score_in_full(each.score) for each in failed[-10:]),
        reason=reason or "unknown",
    )


def _described(attempt: AttemptFacts) -> str:
    message = terminal_text(one_line(attempt.message))[:_LONGEST_MESSAGE].rstrip(".")
    return f"{attempt.failure} ({message})" if message else attempt.failure


def _differences(failed: Sequence[AttemptFacts]) -> list[str]:
    """Say in what the attempts differ, with the values."""
    if len(failed) < 2:
        return []
    found = []
    for name, values in (
        ("score", [score_in_full(each.score) for each in failed]),
        ("failure", [each.failure for each in failed]),
        ("worker", [each.worker for each in failed if each.worker]),
        ("end", ["broke off" if each.broke_off else "ended by itself" for each in failed]),
    ):
        if len(set(values)) > 1:
            found.append(f"{name} ({_listed(list(dict.fromkeys(values)))})")
    return found


def _tried(attempts: Sequence[AttemptFacts], heals: Sequence[HealRecord]) -> list[str]:
    techniques = Counter(each.technique for each in attempts if each.technique)
    found = [f"{name} ×{times}" if times > 1 else name for name, times in techniques.items()]
    return found + [
        f"{each.action} ({each.parameter})" if each.parameter else each.action
        for each in heals
        if each.outcome in ("failed", "refused")
    ]


def _listed(values: Sequence[str]) -> str:
    more = f" and {len(values) - _MOST_NAMED} more" if len(values) > _MOST_NAMED else ""
    return ", ".join(values[:_MOST_NAMED]) + more
