"""A report as text: aligned columns for terminals, Markdown for files, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mulligan.console.reports.report_view import ChangeChart, LineChart, ReportTable, ReportView
from mulligan.policies.figures.format import change, minute, sparkline
from mulligan.policies.terminal_text import terminal_json

#: Half the width of a chart of changes, in characters.
_HALF = 20
_MARKDOWN_MARKS = ("\\", "|", "`", "*", "_", "[", "]", "<", ">")


def as_json(view: ReportView) -> str:
    return terminal_json(json.dumps(view.document, indent=2, ensure_ascii=False)) + "\n"


# -- terminals -------------------------------------------------------------------------------------


def as_text(view: ReportView) -> str:
    lines = [view.about]
    lines += [f"{name}: {value}" for name, value in view.facts]
    for table in view.tables:
        lines += ["", table.title, *_aligned(table)]
    for chart in view.charts:
        if isinstance(chart, ChangeChart):
            lines += ["", *_changes(chart)]
        elif isinstance(chart, LineChart) and chart.points:
            lines += ["", chart.title, f"  {_line(chart)}"]
    return "\n".join([*lines, *view.remarks])


def _aligned(table: ReportTable) -> list[str]:
    if not table.rows:
        return [f"  {table.empty}"]
    rows = [table.columns, *table.rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(table.columns))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _changes(chart: ChangeChart) -> Iterator[str]:
    yield f"{chart.title} (▒: not kept)"
    largest = max([0.01, *(abs(each.value) for each in chart.changes)])
    width = max((len(each.name) for each in chart.changes), default=0)
    for each in chart.changes:
        bar = ("█" if each.kept else "▒") * round(abs(each.value) / largest * _HALF)
        left, right = (bar, "") if each.value < 0 else ("", bar)
        middle = f"{left:>{_HALF}}│{right:<{_HALF}}"
        yield f"{each.name:<{width}} {middle} {change(each.value)} {each.note}".rstrip()


def _line(chart: LineChart) -> str:
    (start, first), (end, last) = chart.points[0], chart.points[-1]
    drawn = sparkline([value for _, value in chart.points], len(chart.points))
    return f"{minute(start)} {first:,g} {drawn} {last:,g} {minute(end)} UTC"


# -- Markdown --------------------------------------------------------------------------------------


def as_markdown(view: ReportView) -> str:
    parts = [f"# {_cell(view.title)}", _cell(view.about)]
    parts += ["\n".join(f"- {_cell(name)}: {_cell(value)}" for name, value in view.facts)]
    for table in view.tables:
        parts += [f"## {_cell(table.title)}", _table(table)]
    for chart in view.charts:
        if isinstance(chart, LineChart) and chart.points:
            parts += [f"## {_cell(chart.title)}", f"```text\n{_line(chart)}\n```"]
    parts += [_cell(remark) for remark in view.remarks]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(table: ReportTable) -> str:
    if not table.rows:
        return table.empty
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    """Escape text, so that it cannot create cells, tags, links or code."""
    flat = " ".join(text.split())
    for mark in _MARKDOWN_MARKS:
        flat = flat.replace(mark, f"\\{mark}")
    return flat
