"""The runbook as a page: Markdown rendered with anchors and without raw HTML."""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

#: Links that start like this are kept. Files of the repository have no address here.
_LINKS = ("#", "/", "https://", "http://")


@cache
def rendered() -> Markup | None:
    """Return the packaged runbook as HTML, or None if this installation has none."""
    file = resources.files("mulligan.console.page") / "runbook.md"
    return render(file.read_text(encoding="utf-8")) if file.is_file() else None


def render(markdown: str) -> Markup:
    """Render Markdown as HTML. Raw HTML in it stays text."""
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_RunbookRenderer)
    parser.enable("table").disable("image")
    return Markup(parser.render(markdown))  # noqa: S704 - html is off


class _RunbookRenderer(RendererHTML):
    """A renderer with anchors at headings, scrolling tables, and no links to files."""

    def heading_open(
        self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]
    ) -> str:
        tokens[idx].attrSet("id", _anchor(tokens[idx + 1].content))
        return self.renderToken(tokens, idx, options, env)

    def table_open(self, *_: Any) -> str:
        return '<div class="scroll"><table>\n'

    def table_close(self, *_: Any) -> str:
        return "</table></div>\n"

    def link_open(
        self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]
    ) -> str:
        target = str(tokens[idx].attrGet("href"))
        env["linked"] = target.startswith(_LINKS)
        return self.renderToken(tokens, idx, options, env) if env["linked"] else ""

    def link_close(
        self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]
    ) -> str:
        return self.renderToken(tokens, idx, options, env) if env["linked"] else ""


def _anchor(title: str) -> str:
    """Return the anchor as the links of alerts spell it: lower case with hyphens."""
    return re.sub(r"[^\w-]", "", title.strip().lower().replace(" ", "-"))
