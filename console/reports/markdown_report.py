"""Reports as text: Markdown for files, aligned columns for terminals."""

from __future__ import annotations

from mulligan.console.reports.report_view import ReportTable, ReportView


def markdown(view: ReportView) -> str:
    """A whole document."""
    parts = [f"# {_cell(view.title)}", _cell(view.about)]
    parts.append("\n".join(f"- {_cell(name)}: {_cell(value)}" for name, value in view.facts))
    for table in view.tables:
        parts += [f"## {_cell(table.title)}", _table(table)]
    return "\n\n".join(parts) + "\n"


def _table(table: ReportTable) -> str:
    if not table.rows:
        return table.empty
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    """Text of jobs, as text: no cell, tag, link or code of its own."""
    flat = " ".join(text.split())
    for mark in ("\\", "|", "`", "*", "_", "[", "]", "<", ">"):
        flat = flat.replace(mark, f"\\{mark}")
    return flat


def plain(view: ReportView) -> str:
    """For a terminal."""
    lines = [view.about]
    lines += [f"{name}: {value}" for name, value in view.facts]
    for table in view.tables:
        lines += ["", table.title, *_aligned(table)]
    return "\n".join(lines)


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
