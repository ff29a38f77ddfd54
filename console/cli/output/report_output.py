"""Write a report to the terminal or to files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mulligan.console.cli.output import screen
from mulligan.console.reports.html_report import as_html
from mulligan.console.reports.report_view import ReportView
from mulligan.console.reports.text_report import as_json, as_markdown, as_text


@dataclass(frozen=True, kw_only=True)
class ReportForm:
    """The requested forms of a report."""

    json: bool = False
    markdown: bool = False
    #: A file for JSON, or for Markdown with ``markdown``.
    output: Path | None = None
    html: Path | None = None


def deliver(view: ReportView, form: ReportForm) -> None:
    """Write the files; print the requested form, or text if there are no files."""
    if form.html is not None:
        write_report(form.html, as_html(view))
    if form.output is not None:
        write_report(form.output, as_markdown(view) if form.markdown else as_json(view))
    if form.json:
        screen.emit(view.document)
    elif form.markdown and form.output is None:
        screen.say(as_markdown(view).rstrip())
    elif form.output is None and form.html is None:
        screen.say(as_text(view))


def write_report(path: Path, text: str) -> None:
    """Write the whole file at once, so that no reader sees half a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    screen.note(f"wrote {path}")
