"""Numbers and times as people read them. Unknown is a dash, never 0."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup

NOTHING = "–"
_DASH = Markup("–")
#: A mark and a word for each state: colour is never the only sign.
MARKS = {
    "queued": "○",
    "running": "◔",
    "verifying": "◑",
    "waiting": "◷",
    "settled": "●",
    "succeeded": "✓",
    "escalated": "▲",
    "cancelled": "✕",
    "completed": "✓",
    "pending_immediate_retry": "◔",
    "pending_delayed_verification": "◷",
    "pass": "✓",
    "fail": "✗",
    "warn": "!",
    "skipped": "–",
    "open": "▲",
    "half_open": "◐",
    "closed": "✓",
    "resolved": "✓",
    "requeued": "↻",
    "paused": "‖",
    "flows": "✓",
}


def mark(state: str) -> Markup:
    """A state's mark: an ornament to a screen reader, which hears the word beside it."""
    return Markup('<span class="mark {}" aria-hidden="true">{}</span>').format(
        state, MARKS.get(state, "·")
    )


def words(name: str | None) -> str:
    """``pending_immediate_retry`` as words."""
    return (name or NOTHING).replace("_", " ")


def count(value: float | None) -> str:
    """A whole number, short once it is long: ``9,120``, ``48.1k``, ``2.3M``."""
    if value is None:
        return NOTHING
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            divisor = 1e3 if unit == "k" else limit
            return f"{value / divisor:.1f}{unit}"
    return f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share of 1. Never rounded up to 100 or down to 0, which would be another message."""
    if share is None:
        return NOTHING
    value = share * 100
    if 0 < value < 1:
        return f"{value:.1f}%" if value >= 0.05 else "<0.1%"
    if 99 < value < 100:
        return f"{min(value, 99.9):.1f}%"
    return f"{value:.1f}%" if value < 10 and round(value, 1) != round(value) else f"{value:.0f}%"


def span(seconds: float | None) -> str:
    """A duration in its largest unit: ``40 ms``, ``4 s``, ``3 min``, ``2.5 h``, ``4 d``."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds > 0 else "0 s"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h".replace(".0 h", " h")
    return f"{seconds / 86400:.0f} d"


def money(amount: float | None) -> str:
    """Money without a currency's name: prices are in whatever the configuration means."""
    if amount is None:
        return NOTHING
    return f"${amount:,.2f}" if amount >= 0.01 or amount == 0 else f"${amount:.4f}"


def score(value: float | None) -> str:
    """A score without its fraction: cut, so that 69.9 never looks like a pass."""
    return NOTHING if value is None else str(int(value))


def rate(per_minute: float | None) -> str:
    """How many a minute: one digit more where there are few."""
    if per_minute is None:
        return NOTHING
    return count(per_minute) if per_minute >= 10 else f"{per_minute:.1f}".removesuffix(".0")


def time_only(at: float | None) -> Markup:
    """A moment of today."""
    if at is None:
        return _DASH
    moment = datetime.fromtimestamp(at, UTC)
    return Markup('<time datetime="{}" data-time>{}</time>').format(
        moment.isoformat(timespec="milliseconds"), moment.strftime("%H:%M:%S")
    )


def clock(at: float | None) -> Markup:
    """A moment: today's as hours and minutes, in the reader's own time once the script ran."""
    if at is None:
        return _DASH
    moment = datetime.fromtimestamp(at, UTC)
    return Markup('<time datetime="{}" data-clock>{} UTC</time>').format(
        moment.isoformat(timespec="milliseconds"), moment.strftime("%Y-%m-%d %H:%M:%S")
    )


def ago(at: float | None, now: float) -> Markup:
    """How long ago; the script keeps it true."""
    if at is None:
        return _DASH
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    return Markup('<time datetime="{}" data-ago>{} ago</time>').format(
        moment, span(max(0.0, float(round(now - at))))
    )
