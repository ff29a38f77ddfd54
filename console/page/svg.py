"""Small charts as inline SVG: no script, no style attribute; colours come from the style sheet.

Every chart is one image to a screen reader, with a sentence that says what it shows; nothing in
it is text that would shrink on a phone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

#: How many shades a heat map has, besides that of nothing.
SHADES = 5


def sparkline(
    values: Sequence[float | None],
    *,
    label: str,
    low: float = 0.0,
    high: float | None = None,
    width: int = 88,
    height: int = 20,
) -> Markup:
    """A line through the values; None leaves a gap. The newest one is dotted."""
    known = [value for value in values if value is not None]
    if not known:
        return Markup("")
    top = max([low + 1e-9, *known]) if high is None else high
    step = (width - 6) / max(1, len(values) - 1)

    def point(index: int, value: float) -> tuple[float, float]:
        share = min(1.0, max(0.0, (value - low) / (top - low)))
        return 3 + index * step, 3 + (1 - share) * (height - 6)

    lines = [
        _line([point(index, value) for index, value in run])
        for run in _runs(values)
        if len(run) > 1
    ]
    last = max(index for index, value in enumerate(values) if value is not None)
    x, y = point(last, values[last] or 0.0)
    dot = Markup('<circle cx="{}" cy="{}" r="2"/>').format(_number(x), _number(y))
    return _image("spark", label, width, height, Markup("").join([*lines, dot]))


def _runs(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """The stretches without a gap."""
    run: list[tuple[int, float]] = []
    for index, value in enumerate(values):
        if value is not None:
            run.append((index, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _line(points: Sequence[tuple[float, float]]) -> Markup:
    path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
    return Markup('<polyline points="{}"/>').format(path)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a stacked chart: its parts from the bottom up, and what to call it."""

    title: str
    parts: tuple[float, ...]
    #: Something happened here that may explain a change: drawn as a dashed line.
    mark: bool = False


def stacked_bars(
    columns: Sequence[Column], *, label: str, names: Sequence[str], height: int = 96
) -> Markup:
    """Columns of parts, stretched to the width there is. Hovering tells a column's numbers."""
    top = max([1.0, *(sum(column.parts) for column in columns)])
    drawn = [
        _column(column, index, top=top, height=height, names=names)
        for index, column in enumerate(columns)
    ]
    return Markup(
        '<svg class="bars" role="img" aria-label="{}" viewBox="0 0 {} {}" '
        'preserveAspectRatio="none" height="{}">{}</svg>'
    ).format(label, max(1, len(columns)) * 10, height, height, Markup("").join(drawn))


def _column(column: Column, index: int, *, top: float, height: int, names: Sequence[str]) -> Markup:
    pieces = [
        Markup('<rect class="ground" x="{}" y="0" width="10" height="{}"/>').format(
            index * 10, height
        )
    ]
    floor = float(height)
    for place, part in enumerate(column.parts):
        tall = part / top * (height - 2)
        floor -= tall
        if part:
            pieces.append(
                Markup('<rect class="part{}" x="{}" y="{}" width="8.4" height="{}"/>').format(
                    place, _number(index * 10 + 0.8), _number(floor), _number(tall)
                )
            )
    if column.mark:
        pieces.append(
            Markup('<line class="mark" x1="{0}" x2="{0}" y1="0" y2="{1}"/>').format(
                index * 10, height
            )
        )
    told = ", ".join(
        f"{name} {part:g}" for name, part in zip(names, column.parts, strict=True) if part
    )
    changed = "; settings changed" if column.mark else ""
    title = Markup("<title>{}</title>").format(f"{column.title}: {told or 'nothing'}{changed}")
    return Markup("<g>{}{}</g>").format(title, Markup("").join(pieces))


def share_bar(
    share: float, *, label: str, limit: bool = False, width: int = 88, height: int = 8
) -> Markup:
    """A share from 0 to 1; what is over stays full. A limit is drawn as one once it is near."""
    filled = min(1.0, max(0.0, share)) * width
    inner = Markup(
        '<rect class="ground" width="{}" height="{}" rx="2"/>'
        '<rect class="filled" width="{}" height="{}" rx="2"/>'
    ).format(width, height, _number(filled), height)
    name = "share full" if limit and share >= 0.9 else "share"
    return _image(name, label, width, height, inner)


def shade(value: float, most: float) -> int:
    """The shade of a heat map's cell: 0 for nothing, else 1 to SHADES."""
    if value <= 0 or most <= 0:
        return 0
    return min(SHADES, 1 + int((value / most) ** 0.5 * (SHADES - 1) + 0.5))


def _image(name: str, label: str, width: int, height: int, inner: Markup) -> Markup:
    return Markup(
        '<svg class="{0}" role="img" aria-label="{1}" width="{2}" height="{3}" '
        'viewBox="0 0 {2} {3}"><title>{1}</title>{4}</svg>'
    ).format(name, escape(label), width, height, inner)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
