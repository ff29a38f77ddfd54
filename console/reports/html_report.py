"""Reports as one HTML page that needs nothing else: no script, no file, no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mulligan.console.reports.report_view import BarChart, ColumnChart, ReportTable, ReportView

_BAR, _GAP, _LABEL, _WIDTH = 18, 6, 260, 720
_HEIGHT, _FLOOR = 160, 22
#: Nothing may be loaded or run, whatever the text of a job says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #5b6470; --line: #d5dae1;
  --ground: #ffffff; --c0: #2a6f97; --c1: #e09f3e; --c2: #9e2a2b; --c3: #5c8a64; --c4: #7a5c91; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --dim: #9aa4b1; --line: #39414c;
  --ground: #14171b; --c0: #62a9d1; --c1: #f0bd6b; --c2: #e0696a; --c3: #8fc79a; --c4: #b79bd0; } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 3rem; background: var(--ground);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { color: var(--dim); margin: 0 0 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 0; }
dt { color: var(--dim); } dd { margin: 0; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--dim); font-weight: 600; }
svg { max-width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; } svg .dim { fill: var(--dim); }
svg .base { stroke: var(--line); }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); }
.c3 { fill: var(--c3); } .c4 { fill: var(--c4); }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .85rem; color: var(--dim);
  margin: 0 0 .4rem; padding: 0; list-style: none; }
.key svg { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
"""


def html(view: ReportView) -> str:
    """A whole page, readable in dark and light."""
    plots = "".join(map(_plot, view.plots))
    tables = "".join(map(_table, view.tables))
    facts = "".join(f"<dt>{_t(name)}</dt><dd>{_t(value)}</dd>" for name, value in view.facts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_t(view.title)} · mulligan</title><style>{_STYLE}</style></head><body>"
        f"<h1>{_t(view.title)}</h1><p>{_t(view.about)}</p><dl>{facts}</dl>{plots}{tables}"
        "</body></html>\n"
    )


def _t(text: str) -> str:
    return escape(text, quote=True)


def _table(table: ReportTable) -> str:
    if not table.rows:
        return f"<h2>{_t(table.title)}</h2><p>{_t(table.empty)}</p>"
    head = "".join(f'<th scope="col">{_t(name)}</th>' for name in table.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{_t(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    return (
        f'<h2>{_t(table.title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _plot(plot: BarChart | ColumnChart) -> str:
    if isinstance(plot, BarChart):
        return _bars(plot) if plot.bars else ""
    return _columns(plot) if any(sum(parts) for _, parts in plot.columns) else ""


def _bars(plot: BarChart) -> str:
    """Horizontal, each with its name and its number: nobody has to read an axis."""
    top = max(value for _, value in plot.bars)
    height = len(plot.bars) * (_BAR + _GAP) + _GAP
    drawn = []
    for place, (name, value) in enumerate(plot.bars):
        y = _GAP + place * (_BAR + _GAP)
        width = max(1.0, (_WIDTH - _LABEL - 90) * value / top)
        drawn.append(
            f"<g><title>{_t(name)}: {value:,g}{_t(plot.unit)}</title>"
            f'<text x="{_LABEL - 8}" y="{y + 14}" text-anchor="end">{_t(_short(name))}</text>'
            f'<rect class="c0" x="{_LABEL}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"/>'
            f'<text class="dim" x="{_LABEL + width + 6:.1f}" y="{y + 14}">{value:,g}</text></g>'
        )
    return _image(plot.title, height, drawn)


def _short(name: str) -> str:
    return name if len(name) <= 32 else name[:31] + "…"


def _columns(plot: ColumnChart) -> str:
    top = max(sum(parts) for _, parts in plot.columns)
    step = _WIDTH / len(plot.columns)
    drawn = [
        f'<line class="base" x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>',
        f'<text class="dim" x="0" y="12">{top:,g}</text>',
    ]
    for place, (label, parts) in enumerate(plot.columns):
        drawn.append(_stack(plot, label, parts, x=place * step, width=step, top=top))
    for place in _labelled(len(plot.columns)):
        anchor = "start" if place == 0 else "end" if place == len(plot.columns) - 1 else "middle"
        x = place * step + (0 if anchor == "start" else step if anchor == "end" else step / 2)
        drawn.append(
            f'<text class="dim" x="{x:.1f}" y="{_HEIGHT + 16}" text-anchor="{anchor}">'
            f"{_t(_short(plot.columns[place][0]))}</text>"
        )
    return _image(plot.title, _HEIGHT + _FLOOR, drawn, names=plot.names)


def _stack(
    plot: ColumnChart, label: str, parts: Sequence[float], *, x: float, width: float, top: float
) -> str:
    floor, drawn = float(_HEIGHT), []
    for place, part in enumerate(parts):
        tall = part / top * (_HEIGHT - 18)
        floor -= tall
        if part:
            drawn.append(
                f'<rect class="c{place}" x="{x + width * 0.1:.1f}" y="{floor:.1f}"'
                f' width="{max(1.0, min(width * 0.8, 60)):.1f}" height="{tall:.1f}"/>'
            )
    told = ", ".join(f"{name} {part:,g}" for name, part in zip(plot.names, parts, strict=True))
    return f"<g><title>{_t(label)}: {_t(told)}</title>{''.join(drawn)}</g>"


def _labelled(count: int) -> list[int]:
    """The first, the last and the middle: as many labels as never overlap."""
    return sorted({0, count // 2, count - 1} if count > 2 else set(range(count)))


def _image(title: str, height: float, drawn: Sequence[str], names: Sequence[str] = ()) -> str:
    keys = "".join(
        f'<li><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="c{place}" width="10"'
        f' height="10" rx="2"/></svg>{_t(name)}</li>'
        for place, name in enumerate(names)
    )
    key = f'<ul class="key">{keys}</ul>' if keys else ""
    return (
        f"<section><h2>{_t(title)}</h2>{key}"
        f'<svg viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" role="img"'
        f' aria-label="{_t(title)}">{"".join(drawn)}</svg></section>'
    )
