"""A report as one HTML file in the style of the page, without scripts or external files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources

from markupsafe import Markup

from mulligan.console.reports import charts
from mulligan.console.reports.report_view import (
    BarChart,
    ChangeChart,
    Chart,
    ColumnChart,
    LineChart,
    ReportTable,
    ReportView,
)
from mulligan.policies.figures.format import change, minute, shortened

#: Loads and runs nothing, whatever the text of a job contains.
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_PAGE = Markup(
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta http-equiv="Content-Security-Policy" content="{policy}">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<title>{title} · mulligan</title><style>{style}</style></head><body>"
    '<main class="report"><h1>{title}</h1><p class="dim">{about}</p>{parts}</main></body></html>\n'
)
_SECTION = Markup('<section class="sheet"><h2 class="caps">{}</h2>{}</section>')
_CHART_ROW = Markup('<tr><th scope="row">{}</th><td>{}</td><td class="n">{}</td><td>{}</td></tr>')
_NAME_LENGTH = 60


def as_html(view: ReportView) -> str:
    """Return a complete page for light and dark mode."""
    parts = [_facts(view), *map(_chart, view.charts), *map(_table, view.tables)]
    parts += [Markup('<p class="dim">{}</p>').format(remark) for remark in view.remarks]
    return _PAGE.format(
        title=view.title,
        about=view.about,
        policy=Markup(CONTENT_POLICY),  # noqa: S704 - it has no character to escape in quotes
        style=_style(),
        parts=Markup("").join(parts),
    )


@cache
def _style() -> Markup:
    sheet = resources.files("mulligan.console.page") / "static" / "page.css"
    return Markup(sheet.read_text(encoding="utf-8"))  # noqa: S704 - a file of our own


def _facts(view: ReportView) -> Markup:
    if not view.facts:
        return Markup("")
    fact = Markup("<div><dt>{}</dt><dd>{}</dd></div>")
    facts = Markup("").join(fact.format(name, value) for name, value in view.facts)
    return Markup('<section class="sheet"><dl class="facts-list">{}</dl></section>').format(facts)


def _table(table: ReportTable) -> Markup:
    if not table.rows:
        return _SECTION.format(table.title, Markup("<p>{}</p>").format(table.empty))
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(c) for c in table.columns)
    rows = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(c) for c in row))
        for row in table.rows
    )
    whole = Markup(
        '<div class="scroll"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    )
    return _SECTION.format(table.title, whole.format(head, rows))


def _chart(chart: Chart) -> Markup:
    """Return a chart with its title, or nothing if it is empty."""
    match chart:
        case BarChart(bars=bars) if bars:
            return _SECTION.format(chart.title, _bars(chart))
        case ColumnChart(columns=columns) if any(sum(parts) for _, parts in columns):
            return _SECTION.format(chart.title, _columns(chart))
        case ChangeChart(changes=changes) if changes:
            return _SECTION.format(chart.title, _changes(chart))
        case LineChart(points=points) if points:
            return _SECTION.format(chart.title, _line(chart))
    return Markup("")


def _bars(chart: BarChart) -> Markup:
    top = max(value for _, value in chart.bars)
    return _chart_table(
        _CHART_ROW.format(
            shortened(name, _NAME_LENGTH),
            charts.share_bar(value / top, label=f"{name}: {value:,g}", width=320, height=12),
            f"{value:,g}",
            "",
        )
        for name, value in chart.bars
    )


def _changes(chart: ChangeChart) -> Markup:
    largest = max(abs(each.value) for each in chart.changes)
    return _chart_table(
        _CHART_ROW.format(
            shortened(each.name, _NAME_LENGTH),
            charts.change_bar(
                each.value,
                largest,
                label=f"{each.name}: {change(each.value)}",
                kept=each.kept,
                width=320,
            ),
            change(each.value),
            each.note,
        )
        for each in chart.changes
    )


def _chart_table(rows: Iterable[Markup]) -> Markup:
    return Markup(
        '<div class="scroll"><table class="chart"><tbody>{}</tbody></table></div>'
    ).format(Markup("").join(rows))


def _columns(chart: ColumnChart) -> Markup:
    labels = [label for label, _ in chart.columns]
    drawn = charts.stacked_bars(
        [charts.Column(title=label, parts=parts) for label, parts in chart.columns],
        label=chart.title,
        names=chart.names,
        height=160,
    )
    most = max(sum(parts) for _, parts in chart.columns)
    ends = [shortened(labels[0], 32), shortened(labels[-1], 32) if labels[1:] else ""]
    return Markup(
        '<div class="key">{}</div>{}<div class="axis"><span>{}</span><span>maximum: {:,g}</span>'
        "<span>{}</span></div>"
    ).format(charts.legend(chart.names), drawn, ends[0], most, ends[1])


def _line(chart: LineChart) -> Markup:
    (start, first), (now, last), ends = chart.points[0], chart.points[-1], chart.ends
    label = f"{chart.title}: {first:,g} at {minute(start)}, {last:,g} at {minute(now)} UTC"
    middle, right = "", f"{minute(now)} UTC: {last:,g}"
    if ends is not None:
        label += f"; {chart.floor:,g} between {minute(ends[0])} and {minute(ends[1])} UTC"
        middle, right = f"now, {right}", f"{minute(ends[1])} UTC: {chart.floor:,g}"
    drawn = charts.line_chart(chart.points, label=label, ends=ends, floor=chart.floor)
    axis = Markup(
        '{}<div class="axis"><span>{} UTC: {:,g}</span><span>{}</span><span>{}</span></div>'
    )
    return axis.format(drawn, minute(start), first, middle, right)
