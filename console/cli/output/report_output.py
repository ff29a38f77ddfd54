"""Where a report goes: the terminal, or files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mulligan.console.cli.output import screen
from mulligan.console.reports.html_report import as_html
from mulligan.console.reports.report_view import ReportView
from mulligan.console.reports.text_report import as_json, as_markdown, as_text


@dataclass(frozen=True, kw_only=True)
class ReportForm:
    """The forms that were asked for."""

    json: bool = False
    markdown: bool = False
    #: A file for JSON, or for Markdown if that was asked for.
    output: Path | None = None
    html: Path | None = None


def deliver(view: ReportView, form: ReportForm) -> None:
    """Write the files; print text unless there are files, or what was asked for."""
    if form.html is not None:
        _write(form.html, as_html(view))
    if form.output is not None:
        _write(form.output, as_markdown(view) if form.markdown else as_json(view))
    if form.json:
        screen.emit(view.document)
    elif form.markdown and form.output is None:
        screen.say(as_markdown(view).rstrip())
    elif form.output is None and form.html is None:
        screen.say(as_text(view))


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a report."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    screen.note(f"wrote {path}")
