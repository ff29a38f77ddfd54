"""Read figures: the buckets of a window in one round trip, the totals in another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from mulligan.policies.failures.failure import FailureRecord
from mulligan.policies.figures.facts import HOUR, MINUTE, Figure, parse
from mulligan.policies.jobs.job import parse_duration
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.figures.fold import MINUTES_KEPT, START
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.partitions import Partitioned
from mulligan.workers.ledger.stored.rows import read_verdict

LONGEST_WINDOW = 365 * 86400


@dataclass(frozen=True)
class Bucket:
    """The figures of one time step, over all partitions."""

    start: int
    rows: Counter[Figure] = field(default_factory=Counter)


@dataclass(frozen=True)
class Window:
    """A window's buckets, oldest first, and those of the window before it."""

    seconds: int
    step: int
    now: float
    buckets: tuple[Bucket, ...]
    before: tuple[Bucket, ...]
    #: (signature, tenant) → the newest `<job>/<attempt>`.
    examples: Mapping[tuple[str, str], str] = field(default_factory=dict)


def parse_window(text: str, *, longest: float = LONGEST_WINDOW) -> int:
    """Read ``90m``, ``24h``, ``7d`` or seconds. Return seconds; raises BadInput."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise BadInput.at("window", f"{error}") from None
    if not isinstance(seconds, (int, float)) or not MINUTE <= seconds <= longest:
        raise BadInput.at("window", f"{text!r} is not between 1m and {longest / 86400:g}d")
    return round(seconds)


class FigureReader:
    """A reader of the figures that `Fold` writes."""

    def __init__(self, ledger: Partitioned) -> None:
        self._calls = ledger.calls
        self._key_prefix = ledger.settings.key_prefix
        self._prefixes = ledger.prefixes

    def window(self, seconds: int, *, now: float, compare: bool = True) -> Window:
        """Read a window: by the minute if those are kept for both windows, else by the hour.

        A window consists of whole steps; the last is the current one. Without ``compare``, the
        window before and the examples are not read.
        """
        step = MINUTE if 2 * seconds <= MINUTES_KEPT - MINUTE else HOUR
        count = max(1, -(-seconds // step))
        last = int(now) // step
        numbers = range(last - (2 if compare else 1) * count + 1, last + 1)
        key_of = keys.figures_of_minute if step == MINUTE else keys.figures_of_hour
        prefixes = self._prefixes()
        names = [key_of(prefix, number) for number in numbers for prefix in prefixes]
        hours = range(numbers[-count] * step // HOUR, int(now) // HOUR + 1 if compare else 0)
        examples = [keys.examples_of_hour(p, n) for n in hours for p in prefixes]
        found = self._calls.hashes(names + examples)
        buckets = tuple(
            Bucket(number * step, _sum(raw_rows))
            for number, raw_rows in zip(
                numbers, _chunks(found[: len(names)], len(prefixes)), strict=True
            )
        )
        return Window(
            seconds=count * step,
            step=step,
            now=now,
            buckets=buckets[-count:],
            before=buckets[:-count],
            examples=_examples(found[len(names) :]),
        )

    def failure(self, example: str) -> FailureRecord | None:
        """Return the classified failure of `<job>/<attempt>`, if it is still stored."""
        return self.failures([example])[0]

    def failures(self, examples: Sequence[str]) -> list[FailureRecord | None]:
        """Return the classified failures of several attempts, in one round trip."""
        names = []
        for example in examples:
            job_id, _, number = example.partition("/")
            names.append(keys.attempt(keys.prefix_of(self._key_prefix, job_id), job_id, number))
        stored = self._calls.fields(names, "verdict")
        verdicts = (read_verdict(text)[0] for text in stored)
        return [verdict.failure if verdict else None for verdict in verdicts]

    def totals(self) -> Counter[Figure]:
        return _sum(self._calls.hashes([keys.figures_total(p) for p in self._prefixes()]))

    def lag(self, *, now: float) -> float:
        """Return the age of the oldest event that is not folded; 0 if all are."""
        return max((self._lag(prefix, now) for prefix in self._prefixes()), default=0.0)

    def _lag(self, prefix: str, now: float) -> float:
        cursor = self._calls.run("GET", keys.folded(prefix)) or START
        found = self._calls.run("XRANGE", keys.events(prefix), f"({cursor}", "+", "COUNT", 1)
        if not found:
            return 0.0
        return max(0.0, now - int(found[0][0].partition("-")[0]) / 1000)


def _chunks(
    raw_rows: Sequence[Mapping[str, str]], size: int
) -> Iterable[Sequence[Mapping[str, str]]]:
    return (raw_rows[start : start + size] for start in range(0, len(raw_rows), size))


#: Cached, because the same few fields are in every bucket.
_figure = lru_cache(maxsize=20_000)(parse)


def _sum(hashes: Sequence[Mapping[str, str]]) -> Counter[Figure]:
    first, *others = hashes
    total = Counter({_figure(text): int(amount) for text, amount in first.items()})
    for raw_rows in others:
        for text, amount in raw_rows.items():
            total[_figure(text)] += int(amount)
    return total


def _examples(hashes: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], str]:
    """Return the newest example of each signature and tenant: later hours come last."""
    found = {}
    for raw_rows in hashes:
        for text, attempt in raw_rows.items():
            signature, tenant = parse(text).dims
            found[signature, tenant] = attempt
    return found
