"""Small HTML elements of the page: state marks, and times that the script keeps up to date."""

from __future__ import annotations

from markupsafe import Markup

from mulligan.policies.figures.format import UNKNOWN, duration, iso_time, time_of_day, timestamp

#: A mark for each state, shown beside its name, so that colour is never the only sign.
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
    "out_of_credits": "▲",
    "limited": "◔",
    "closed": "✓",
    "resolved": "✓",
    "requeued": "↻",
    "paused": "‖",
    "flows": "✓",
    "created": "○",
    "stopped": "✕",
    "blocked": "◷",
    "pending": "○",
    "ready": "◌",
    "passed": "✓",
    "failed": "✗",
    "quarantined": "▲",
    "healthy": "●",
    "degraded": "◐",
    "dead": "✗",
    "idle": "○",
}


def mark(state: str) -> Markup:
    """Return the mark of a state. Screen readers skip it and read the word beside it."""
    return Markup('<span class="mark {}" aria-hidden="true">{}</span>').format(
        state, MARKS.get(state, "·")
    )


def clock(at: float | None) -> Markup:
    """Return a time. The script shows it in the reader's time zone, without today's date."""
    return _time(at, "clock", "milliseconds", timestamp(at or 0.0))


def time_only(at: float | None) -> Markup:
    """Return a time without its date."""
    return _time(at, "time", "milliseconds", time_of_day(at or 0.0))


def ago(at: float | None, now: float) -> Markup:
    """Return the age of a time. The script keeps it up to date."""
    age = duration(max(0.0, float(round(now - (at or 0.0)))))
    return _time(at, "ago", "seconds", f"{age} ago")


def _time(at: float | None, kind: str, precision: str, text: str) -> Markup:
    if at is None:
        return Markup(UNKNOWN)  # noqa: S704 - a dash
    element = Markup('<time datetime="{}" data-{}>{}</time>')
    return element.format(iso_time(at, precision), kind, text)
