"""The runbook as a page: headings, paragraphs, lists and code of its Markdown, nothing more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from textwrap import dedent

from markupsafe import Markup, escape

_CODE = re.compile(r"`([^`]+)`")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_NUMBERED = re.compile(r"^\d+\. ")


def text() -> str | None:
    """The runbook: packaged with the page, or in the documentation beside it."""
    packaged = resources.files("mulligan.console.page") / "runbook.md"
    beside = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"
    for place in (packaged, beside):
        if place.is_file():
            return place.read_text(encoding="utf-8")
    return None


def rendered() -> Markup | None:
    found = text()
    return None if found is None else render(found)


def render(markdown: str) -> Markup:
    """HTML of a small Markdown; whatever is not known stays text."""
    return Markup("\n").join(_block(block) for block in _blocks(markdown))


def _blocks(markdown: str) -> Iterator[list[str]]:
    """Lines that belong together: up to an empty one, a heading alone, a fence to its end."""
    block: list[str] = []
    fenced = False
    for line in markdown.splitlines():
        fence = line.lstrip().startswith("```")
        if not fenced and (fence or not line.strip() or line.startswith("#")):
            if block:
                yield block
            block = []
        if fenced or line.strip():
            block.append(line)
        fenced = fenced != fence
        if not fenced and (fence or line.startswith("#")):
            yield block
            block = []
    if block:
        yield block


def _block(lines: list[str]) -> Markup:
    first = lines[0].lstrip()
    if first.startswith("```"):
        return Markup("<pre>{}</pre>").format(dedent("\n".join(lines[1:-1])))
    if first.startswith("#"):
        level = min(3, len(first) - len(first.lstrip("#")))
        title = first.lstrip("# ")
        return Markup('<h{0} id="{1}">{2}</h{0}>').format(level, _anchor(title), _inline(title))
    if first.startswith("|"):
        return _table(lines)
    if first.startswith(("- ", "* ")):
        return Markup("<ul>{}</ul>").format(_items(lines))
    if _NUMBERED.match(first):
        return Markup("<ol>{}</ol>").format(_items([_NUMBERED.sub("- ", li) for li in lines]))
    return Markup("<p>{}</p>").format(_inline(" ".join(lines)))


def _items(lines: list[str]) -> Markup:
    items: list[str] = []
    for line in lines:
        if line.startswith(("- ", "* ")) or not items:
            items.append(line.lstrip()[2:])
        else:
            items[-1] += " " + line.strip()
    return Markup("").join(Markup("<li>{}</li>").format(_inline(item)) for item in items)


def _table(lines: list[str]) -> Markup:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    body = [row for row in rows[1:] if not all(set(cell) <= set("-: ") for cell in row)]
    head = Markup("").join(Markup("<th>{}</th>").format(_inline(cell)) for cell in rows[0])
    cells = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(Markup("<td>{}</td>").format(_inline(cell)) for cell in row)
        )
        for row in body
    )
    return Markup(
        '<div class="scroll"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(head, cells)


def _inline(line: str) -> Markup:
    text = str(escape(line))
    text = _CODE.sub(r"<code>\1</code>", text)
    text = _BOLD.sub(r"<strong>\1</strong>", text)
    return Markup(_LINK.sub(_link, text))  # noqa: S704 - escaped above


def _link(match: re.Match[str]) -> str:
    """Links inside the page and to the web; files of the repository have no address here."""
    words, target = match[1], match[2]
    inside = target.startswith(("#", "https://", "http://", "/"))
    return f'<a href="{target}">{words}</a>' if inside else words


def _anchor(title: str) -> str:
    """As the alerts' links spell it: lower case, hyphens for blanks."""
    return re.sub(r"[^\w-]", "", title.strip().lower().replace(" ", "-"))
