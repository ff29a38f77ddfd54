"""Charts as inline SVG, for the page and for HTML reports.

They have no script and no style attribute: colours come from the page's style sheet. For a screen
reader, a chart is one image with a description. Its labels are HTML beside it, because text inside
an image would shrink on a phone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

#: Shades of a heat map, not counting 0.
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
    """Draw a line through the values with a dot at the newest. None leaves a gap."""
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
    """Yield the runs without a gap."""
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
    return Markup('<polyline points="{}"/>').format(_path(points))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def line_chart(
    points: Sequence[tuple[float, float]],
    *,
    label: str,
    ends: tuple[float, float] | None = None,
    floor: float = 0.0,
    height: int = 160,
) -> Markup:
    """Draw a number over time across the whole width.

    ``ends``: when it may come down to the ``floor``, at the earliest and at the latest.
    """
    width, (start, _), (last, value) = 1000, points[0], points[-1]
    end = max(last, ends[1] if ends else last, start + 1e-9)
    top = max([1.0, *(each for _, each in points)])

    def place(at: float, value: float) -> tuple[float, float]:
        x = (min(at, end) - start) / (end - start) * width
        return x, 3 + (1 - value / top) * (height - 6)

    drawn = _line([place(*each) for each in points])
    if ends is not None:
        wedge = [place(last, value), place(ends[0], floor), place(ends[1], floor)]
        drawn = Markup('<polygon points="{}"/>').format(_path(wedge)) + drawn
    return Markup(
        '<svg class="line" role="img" aria-label="{0}" viewBox="0 0 {1} {2}" '
        'preserveAspectRatio="none" height="{2}"><title>{0}</title>{3}</svg>'
    ).format(label, width, height, drawn)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a stacked chart, with its parts from the bottom up."""

    title: str
    parts: tuple[float, ...]
    #: An event that may explain a change: drawn as a dashed line.
    mark: str = ""


def stacked_bars(
    columns: Sequence[Column], *, label: str, names: Sequence[str], height: int = 96
) -> Markup:
    """Draw stacked columns across the whole width. Hovering shows the numbers of a column."""
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
    numbers = ", ".join(
        f"{name} {part:,g}" for name, part in zip(names, column.parts, strict=True) if part
    )
    mark = f"; {column.mark}" if column.mark else ""
    title = Markup("<title>{}</title>").format(f"{column.title}: {numbers or 'nothing'}{mark}")
    return Markup("<g>{}{}</g>").format(title, Markup("").join(pieces))


def share_bar(
    share: float,
    *,
    label: str,
    limit: bool = False,
    reserved: float = 0.0,
    width: int = 88,
    height: int = 8,
) -> Markup:
    """Draw a share from 0 to 1. With ``limit``, 0.9 and more is drawn as a warning.

    ``reserved``: a share that follows it and may still be given back.
    """
    pieces = [Markup('<rect class="ground" width="{}" height="{}" rx="2"/>').format(width, height)]
    for name, end in (("reserved", share + reserved), ("filled", share)):
        if name == "filled" or reserved:
            filled = _number(min(1.0, max(0.0, end)) * width)
            bar = Markup('<rect class="{}" width="{}" height="{}" rx="2"/>')
            pieces.append(bar.format(name, filled, height))
    inner = Markup("").join(pieces)
    name = "share full" if limit and share >= 0.9 else "share"
    return _image(name, label, width, height, inner)


def change_bar(
    value: float,
    largest: float,
    *,
    label: str,
    limit: float = 0.0,
    kept: bool = True,
    width: int = 168,
    height: int = 12,
) -> Markup:
    """Draw a change as a bar from the middle; right is better. ``limit`` is the allowed loss."""
    middle = width / 2
    scale = middle / max(largest, 0.01)
    size = min(abs(value) * scale, middle)
    edge = middle - limit * scale
    drawn = _vertical("zero", middle, height)
    if limit and edge > 0:
        drawn += _vertical("limit", edge, height)
    drawn += Markup('<rect class="{}" x="{}" y="2" width="{}" height="{}" rx="1"/>').format(
        ("up" if value >= 0 else "down") + ("" if kept else " undone"),
        _number(middle if value >= 0 else middle - size),
        _number(size),
        height - 4,
    )
    return _image("change", label, width, height, drawn)


def _vertical(kind: str, x: float, height: int) -> Markup:
    return Markup('<line class="{0}" x1="{1}" x2="{1}" y1="0" y2="{2}"/>').format(
        kind, _number(x), height
    )


def legend(names: Sequence[str]) -> Markup:
    """Return the legend of a stacked chart, for an element of class ``key``."""
    swatch = Markup(
        '<span><svg width="11" height="11" aria-hidden="true"><rect class="part{}" width="11"'
        ' height="11" rx="2"/></svg>{}</span>'
    )
    return Markup("").join(swatch.format(place, name) for place, name in enumerate(names))


def shade(value: float, most: float) -> int:
    """Return the shade of a cell of a heat map: 0 for nothing, else 1 to SHADES."""
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
