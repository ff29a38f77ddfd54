"""`mulligan config show`: each setting, its value, and where it comes from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mulligan.console.cli.options import Json
from mulligan.console.cli.output import screen
from mulligan.workers.settings.config_file import config_path, read_file
from mulligan.workers.settings.live_settings import LIVE
from mulligan.workers.settings.model import Settings, load_settings

_MASK = "***"
#: Not `api_key_env`, which names a variable and is no secret.
_SECRET_KEY = re.compile(
    r"(?<![a-z])(api_?key|key|token|secret|passwords?|passwd|authorization|credentials?|cookie)$",
    re.IGNORECASE,
)
_SECRET_PARAMETER = re.compile(
    r"([?&][^=&\s]*(?:key|token|secret|password|sig)[^=&\s]*=)[^&\s]+", re.I
)
_URL_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^/\s]*@")


def show(json: Json = False) -> None:
    """Print every setting with its value and origin.

    Secrets are masked.
    """
    settings, path = load_settings(), config_path()
    rows = {
        name: {"value": value, "from": origins(name, path), "read_again": name in LIVE}
        for name, value in shown(settings).items()
    }
    if json:
        screen.emit({"file": str(path) if path else None, "settings": rows})
        return
    width = max(map(len, rows))
    for name, row in rows.items():
        screen.say(f"{name:<{width}}  {_text(row['value'])}  ({', '.join(row['from'])})")


def shown(settings: Settings) -> dict[str, Any]:
    """Return every setting with secrets masked."""
    plain = settings.model_dump(mode="json")
    plain["webhooks"] = [{**hook, "url": _without_path(hook["url"])} for hook in plain["webhooks"]]
    masked: dict[str, Any] = _masked(plain)
    return masked


def _masked(value: Any, key: str = "") -> Any:
    """Mask secrets: values under keys that are named like one, and parts of URLs."""
    if isinstance(value, Mapping):
        return {name: _masked(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner, key) for inner in value]
    if value is not None and _SECRET_KEY.search(key.replace("-", "_")):
        return _MASK
    if isinstance(value, str):
        hidden = _URL_PASSWORD.sub(rf"\g<1>{_MASK}@", value)
        return _SECRET_PARAMETER.sub(rf"\g<1>{_MASK}", hidden)
    return value


def _without_path(url: str) -> str:
    """Mask the path of a webhook's URL, which is often a secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}/{_MASK}" if parts.path.strip("/") or parts.query else url


def origins(name: str, path: Path | None) -> list[str]:
    """Return where a value comes from; a table may come from several places."""
    variable = f"MULLIGAN_{name.upper()}"
    found = sorted(
        given
        for given in os.environ
        if given.upper() == variable or given.upper().startswith(f"{variable}__")
    )
    in_file = [str(path)] if path is not None and name in read_file() else []
    # A variable replaces a plain value, and adds to a table.
    if variable in (given.upper() for given in found) and not _is_table(name):
        in_file = []
    return found + in_file or ["default"]


def _is_table(name: str) -> bool:
    return isinstance(Settings.model_fields[name].get_default(call_default_factory=True), dict)


def _text(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
