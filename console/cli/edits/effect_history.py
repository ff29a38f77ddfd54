"""The history of measured effects: as lines, as a plot on the terminal, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mulligan.console.cli.edits.edit_backend import open_sessions
from mulligan.console.cli.output import screen
from mulligan.policies.edits.session import EditDelta
from mulligan.workers.settings.model import load_settings

#: Half the width of a plot, in characters and in pixels.
_HALF = 20
_PIXELS = 160
_ROW, _LABEL = 24, 340
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #5b6470; --line: #d5dae1;
  --ground: #ffffff; --up: #2f7d4f; --down: #9e2a2b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --dim: #9aa4b1; --line: #39414c;
  --ground: #14171b; --up: #7fc99a; --down: #e0696a; } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem; background: var(--ground);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
p { color: var(--dim); } svg { max-width: 100%; height: auto; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
.up { fill: var(--up); } .down { fill: var(--down); } .undone { opacity: .45; }
line { stroke: var(--line); }
"""


def find_deltas(*, session: str | None, cluster: str | None, limit: int) -> list[EditDelta]:
    """The newest first."""
    with open_sessions(load_settings()) as backend:
        found = backend.engine.sessions.deltas(limit=10_000)
    return [
        delta
        for delta in found
        if session in (None, delta.session) and (cluster is None or cluster in delta.cluster_deltas)
    ][:limit]


def show_deltas(deltas: Sequence[EditDelta]) -> None:
    for delta in deltas:
        parts = [f"{name} {value:+.3f}" for name, value in delta.cluster_deltas.items()]
        effect = ", ".join([f"overall {delta.benchmark_delta:+.3f}", *parts])
        at = delta.at.strftime("%Y-%m-%d %H:%M")
        name = f"{delta.session}/{delta.edit_id}"
        screen.say(f"{at}  {name}  {delta.op} {delta.target}: {delta.status} ({delta.reason})")
        screen.say(f"    {effect}", style="dim")
        for note in delta.notes:
            screen.say(f"    note: {note}", style="dim")
    if not deltas:
        screen.say("nothing was measured yet")


def show_plot(deltas: Sequence[EditDelta], cluster: str | None) -> None:
    """One bar per edit, from the middle: to the right is better."""
    if not deltas:
        screen.say("nothing was measured yet")
        return
    names = [f"{delta.session}/{delta.edit_id}" for delta in deltas]
    wide, most = max(map(len, names)), _most(deltas, cluster)
    screen.say(f"{cluster or 'overall'} score, change per edit; ▒ was not kept", style="dim")
    for name, delta in zip(names, deltas, strict=True):
        value = _value(delta, cluster)
        block = "█" if delta.status == "applied" else "▒"
        size = round(abs(value) / most * _HALF)
        left = (block * size).rjust(_HALF) if value < 0 else " " * _HALF
        right = (block * size).ljust(_HALF) if value > 0 else " " * _HALF
        screen.say(f"{name:<{wide}} {left}│{right} {value:+.3f} {delta.reason}")


def _value(delta: EditDelta, cluster: str | None) -> float:
    return delta.benchmark_delta if cluster is None else delta.cluster_deltas[cluster]


def _most(deltas: Sequence[EditDelta], cluster: str | None) -> float:
    return max(max(abs(_value(delta, cluster)) for delta in deltas), 0.01)


def page(deltas: Sequence[EditDelta], cluster: str | None) -> str:
    """A page that needs nothing else: no script, no file, no network."""
    title = f"Measured edits: {cluster or 'overall'} score"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    body = _plot(deltas, cluster) if deltas else "<p>nothing was measured yet</p>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · mulligan</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>Change per edit, the oldest first. What was not kept is"
        f" paler.</p>{body}</body></html>\n"
    )


def _plot(deltas: Sequence[EditDelta], cluster: str | None) -> str:
    most, middle = _most(deltas, cluster), _LABEL + _PIXELS
    height, width = len(deltas) * _ROW + 8, middle + _PIXELS + 130
    rows = "".join(
        _row(delta, _value(delta, cluster), index, most, middle)
        for index, delta in enumerate(deltas)
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="change per edit">'
        f'<line x1="{middle}" x2="{middle}" y1="0" y2="{height}"/>{rows}</svg>'
    )


def _row(delta: EditDelta, value: float, index: int, most: float, middle: int) -> str:
    size = abs(value) / most * _PIXELS
    x = middle if value >= 0 else middle - size
    top = index * _ROW + 4
    kind = ("up" if value >= 0 else "down") + ("" if delta.status == "applied" else " undone")
    name = f"{delta.session}/{delta.edit_id} {delta.op}"
    shown = name if len(name) < 46 else f"{name[:45]}…"
    return (
        f'<text x="{_LABEL - 8}" y="{top + 14}" text-anchor="end">{escape(shown)}</text>'
        f'<rect class="{kind}" x="{x:.1f}" y="{top}" width="{size:.1f}" height="{_ROW - 6}">'
        f"<title>{escape(f'{name}: {value:+.4f}, {delta.status} ({delta.reason})')}</title></rect>"
        f'<text x="{middle + _PIXELS + 8}" y="{top + 14}">{value:+.3f} {delta.reason}</text>'
    )
