"""Rendering: the templates, the static files, and what every page shares."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from importlib import resources
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Query
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Caller, csrf_token
from mulligan.console.page import elements
from mulligan.console.page.visible_controls import with_visible_controls
from mulligan.console.reports import charts
from mulligan.policies.figures import format as formatter
from mulligan.policies.figures.waiting_words import waiting_words
from mulligan.workers.settings.model import Settings

#: Query parameters of pages.
Text = Annotated[str, Query(max_length=200)]
ShortText = Annotated[str, Query(max_length=10)]
#: The navigation: path and name.
PAGES = (
    ("/", "Overview"),
    ("/jobs", "Jobs"),
    ("/loops", "Loops"),
    ("/failures", "Failures"),
    ("/cycles", "Cycles"),
    ("/escalations", "Escalations"),
    ("/edits", "Edits"),
    ("/operations", "Operations"),
)
#: Pages that need the role ops.
_FOR_OPS = frozenset({"/escalations", "/operations"})
#: Pages that need a token without a tenant.
_UNBOUND = frozenset({"/edits"})
#: The header of a request for a page without its frame.
FRAGMENT_HEADER = "X-Fragment"
_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def _load_static() -> dict[str, tuple[bytes, str]]:
    folder = resources.files("mulligan.console.page") / "static"
    return {
        file.name: (file.read_bytes(), _MEDIA_TYPES[suffix])
        for file in folder.iterdir()
        if (suffix := file.name.rpartition(".")[2]) in _MEDIA_TYPES
    }


#: Name → content and media type, read once.
STATIC = _load_static()
#: Part of every static address, so that browsers can cache the files and never mix two releases.
VERSION = sha256(b"".join(STATIC[name][0] for name in sorted(STATIC))).hexdigest()[:12]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mulligan.console.page"),
        autoescape=True,
        finalize=with_visible_controls,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        ago=elements.ago,
        amount=formatter.amount,
        clock=elements.clock,
        count=formatter.count,
        address=address,
        duration=formatter.duration,
        failure_url=partial(_signature_url, "/failures"),
        group_url=partial(_signature_url, "/escalations"),
        legend=charts.legend,
        mark=elements.mark,
        money=formatter.money,
        ms=lambda value: formatter.duration(None if value is None else value / 1000),
        percent=formatter.percent,
        rate=formatter.rate,
        score=formatter.score,
        share=charts.share_bar,
        spark=_spark,
        time_only=elements.time_only,
        version=VERSION,
        waiting_words=waiting_words,
        words=formatter.words,
    )
    return environment


def address(path: str, **choice: str | None) -> str:
    """Return a path with the choices that are set as its query."""
    query = urlencode({name: value for name, value in choice.items() if value})
    return f"{path}?{query}" if query else path


def _signature_url(path: str, signature: str, **choice: str | None) -> str:
    return address(f"{path}/{quote(signature, safe='')}", **choice)


def _spark(values: Any, label: str, high: float | None = None) -> Markup:
    return charts.sparkline(values, label=label, high=high)


_TEMPLATES = _environment()


def page(
    request: Request,
    template: str,
    *,
    caller: Caller | None,
    status: int = 200,
    **values: Any,
) -> HTMLResponse:
    """Render a page, or only its inner part if the script requests it."""
    settings: Settings = request.app.state.context.settings
    ops = caller is not None and caller.role in ("ops", "admin")
    text = _TEMPLATES.get_template(template).render(
        caller=caller,
        csrf=csrf_token(request),
        flower=(settings.flower_url or "").rstrip("/"),
        fragment=FRAGMENT_HEADER in request.headers,
        here="/" + request.url.path.strip("/").partition("/")[0],
        may_act=ops,
        # Pauses and metrics affect all tenants.
        for_all=ops and caller is not None and caller.tenant is None,
        pages=[
            each
            for each in PAGES
            if (ops or each[0] not in _FOR_OPS)
            and (caller is None or caller.tenant is None or each[0] not in _UNBOUND)
        ],
        **values,
    )
    return HTMLResponse(text, status)
