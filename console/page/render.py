"""Templates in, pages out: what every page shares."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from mulligan.console.http.access import Caller, csrf_token
from mulligan.console.page import elements
from mulligan.console.reports import charts
from mulligan.policies.figures import format as formatter
from mulligan.workers.settings.model import Settings

#: The one navigation: path and name.
PAGES = (
    ("/", "Overview"),
    ("/jobs", "Jobs"),
    ("/failures", "Failures"),
    ("/cycles", "Cycles"),
    ("/escalations", "Escalations"),
    ("/edits", "Edits"),
    ("/operations", "Operations"),
)
#: Pages that a producer's token does not open.
_FOR_OPS = frozenset({"/escalations", "/operations"})
#: Pages about what belongs to no tenant.
_UNBOUND = frozenset({"/edits"})
#: A request for a page without its frame.
FRAGMENT_HEADER = "X-Fragment"
_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def _load_static() -> dict[str, tuple[bytes, str]]:
    folder = resources.files("mulligan.console.page") / "static"
    return {
        file.name: (file.read_bytes(), _KINDS[file.name.rpartition(".")[2]])
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in _KINDS
    }


#: Name → content and type: a handful of small files, read once.
STATIC = _load_static()
#: Part of every static address, so that browsers may keep the files and never mix two releases.
VERSION = sha256(b"".join(STATIC[name][0] for name in sorted(STATIC))).hexdigest()[:12]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mulligan.console.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        ago=elements.ago,
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
        share=_share,
        spark=_spark,
        time_only=elements.time_only,
        version=VERSION,
        words=formatter.words,
    )
    return environment


def address(path: str, **choice: str | None) -> str:
    """A path with what was chosen, as far as anything was."""
    chosen = urlencode({name: value for name, value in choice.items() if value})
    return f"{path}?{chosen}" if chosen else path


def _signature_url(path: str, signature: str, **choice: str | None) -> str:
    return address(f"{path}/{quote(signature, safe='')}", **choice)


def _spark(values: Any, label: str, high: float | None = None) -> Markup:
    return charts.sparkline(values, label=label, high=high)


def _share(value: float, label: str, limit: bool = False) -> Markup:
    return charts.share_bar(value, label=label, limit=limit)


_TEMPLATES = _environment()


def flower_url(settings: Settings) -> str | None:
    """Where people reach Flower; None if nobody can know."""
    if settings.flower_url:
        return settings.flower_url.rstrip("/")
    return f"http://127.0.0.1:{settings.flower_port}" if settings.flower_port else None


def page(
    request: Request,
    template: str,
    *,
    caller: Caller | None,
    status: int = 200,
    **values: Any,
) -> HTMLResponse:
    """A page, or only its inner part if the script asks for it."""
    settings: Settings = request.app.state.context.settings
    ops = caller is not None and caller.role in ("ops", "admin")
    text = _TEMPLATES.get_template(template).render(
        caller=caller,
        csrf=csrf_token(request),
        flower=flower_url(settings),
        fragment=FRAGMENT_HEADER in request.headers,
        here="/" + request.url.path.strip("/").partition("/")[0],
        may_act=ops,
        # Pauses and metrics are everybody's.
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


def only(caller: Caller, wanted: str | None) -> str | None:
    """The tenant a list is about: a bound caller's own, whatever was asked for."""
    return caller.tenant if caller.tenant is not None else (wanted or None)
