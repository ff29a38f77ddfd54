"""The runbook as a page: its Markdown rendered with anchors, and without raw HTML."""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

#: Links of these kinds lead somewhere. Files of the repository have no address here.
_ADDRESSES = ("#", "/", "https://", "http://")


def text() -> str | None:
    """The runbook: packaged with the page, or in the documentation beside it."""
    packaged = resources.files("mulligan.console.page") / "runbook.md"
    beside = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"
    for place in (packaged, beside):
        if place.is_file():
            return place.read_text(encoding="utf-8")
    return None


@cache
def rendered() -> Markup | None:
    found = text()
    return None if found is None else render(found)


def render(markdown: str) -> Markup:
    """HTML of Markdown. Raw HTML in it stays text."""
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_RunbookRenderer)
    parser.enable("table").disable("image")
    return Markup(parser.render(markdown))  # noqa: S704 - html is off


class _RunbookRenderer(RendererHTML):
    """Headings have anchors, tables scroll, and links to files are plain text."""

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
        env["linked"] = target.startswith(_ADDRESSES)
        return self.renderToken(tokens, idx, options, env) if env["linked"] else ""

    def link_close(
        self, tokens: Sequence[Token], idx: int, options: Any, env: MutableMapping[str, Any]
    ) -> str:
        return self.renderToken(tokens, idx, options, env) if env["linked"] else ""


def _anchor(title: str) -> str:
    """As the links of alerts spell it: lower case, hyphens for blanks."""
    return re.sub(r"[^\w-]", "", title.strip().lower().replace(" ", "-"))
