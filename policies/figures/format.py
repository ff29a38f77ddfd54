"""Formats of numbers and times, for the page, the terminal and reports.

Unknown is a dash, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

UNKNOWN = "–"
_UNITS = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
_BLOCKS = "▁▂▃▄▅▆▇█"


def number(value: float | None) -> str:
    """Format a whole number in full: ``48,120``."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def amount(value: float) -> str:
    """Write tokens, money or seconds: ``1,000,000`` and ``0.25``."""
    return f"{value:,.2f}".removesuffix(".00")


def count(value: float | None) -> str:
    """Format a whole number, abbreviated from 10,000 on: ``9,120``, ``48.1k``, ``2.3M``."""
    if value is None:
        return UNKNOWN
    for limit, divisor, unit in _UNITS:
        if abs(value) >= limit:
            return f"{value / divisor:.1f}{unit}"
    return number(value)


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: ``1 job``, ``2,000 jobs``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def percent(share: float | None) -> str:
    """Format a share as a percentage. Only 1 is 100% and only 0 is 0%."""
    if share is None:
        return UNKNOWN
    value = share * 100
    if 0 < value < 1:
        return f"{value:.1f}%" if value >= 0.05 else "<0.1%"
    if 99 < value < 100:
        return f"{min(value, 99.9):.1f}%"
    return f"{value:.1f}%" if value < 10 and round(value, 1) != round(value) else f"{value:.0f}%"


def score(value: float | None) -> str:
    """Format a score without its fraction, rounded down, so that 69.9 never looks like a pass."""
    return UNKNOWN if value is None else str(int(value))


def change(value: float) -> str:
    """Format a change of a score with its sign: ``+0.200``, ``−0.050``, ``±0``."""
    text = f"{value:+.3f}"
    return "±0" if text in ("+0.000", "-0.000") else text.replace("-", "−")


def money(amount: float | None) -> str:
    """Format an amount of money without a currency: the configured prices imply it."""
    if amount is None:
        return UNKNOWN
    return f"{amount:,.2f}" if amount >= 0.01 or amount == 0 else f"{amount:.4f}"


def rate(per_minute: float | None) -> str:
    """Format a number per minute, with one decimal below 10."""
    if per_minute is None:
        return UNKNOWN
    return count(per_minute) if per_minute >= 10 else f"{per_minute:.1f}".removesuffix(".0")


def duration(seconds: float | None) -> str:
    """Format a duration in one unit: ``1.5 ms``, ``40 ms``, ``4 s``, ``3 min``, ``2.5 h``."""
    if seconds is None:
        return UNKNOWN
    if seconds <= 0:
        return "0 s"
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms".replace(".0 ms", " ms")
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h".replace(".0 h", " h")
    return f"{seconds / 86400:.0f} d"


def timestamp(at: float, zone: tzinfo | None = UTC) -> str:
    """Format a time: ``2026-11-16 21:24:05 UTC``. None is the host's zone, which is not named."""
    text = datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M:%S")
    return f"{text} {zone}" if zone is not None else text


def iso_time(at: float, precision: str = "auto") -> str:
    """Format a time for programs: ``2026-11-16T21:24:05+00:00``."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec=precision)


def day(at: float) -> str:
    """Format a date in UTC: ``2026-11-16``."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def minute(at: float) -> str:
    """Format a time in UTC without its year: ``11-16 21:24``."""
    return f"{datetime.fromtimestamp(at, UTC):%m-%d %H:%M}"


def time_of_day(at: float) -> str:
    """Format a time in UTC without its date: ``21:24:05``."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def words(name: str | None) -> str:
    """Write a name as words: ``pending_immediate_retry`` as ``pending immediate retry``."""
    return (name or UNKNOWN).replace("_", " ")


def shortened(text: str, length: int) -> str:
    """Cut a text to a length, with an ellipsis at the end."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def sparkline(series: Sequence[float], length: int = 24) -> str:
    """Draw a series as blocks: ``▁▃█``."""
    values = condense(series, length)
    top = max(values, default=0) or 1
    return "".join(_BLOCKS[min(7, int(8 * value / top))] for value in values)


def condense(series: Sequence[float], length: int) -> list[float]:
    """Add up neighbours until at most ``length`` values remain."""
    factor = max(1, -(-len(series) // length))
    first = len(series) % factor
    head = [sum(series[:first])] if first else []
    return head + [sum(series[i : i + factor]) for i in range(first, len(series), factor)]
