"""Finding and reading the configuration file."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from mulligan.tasks.ports.errors import BadInput

CONFIG_VARIABLE = "MULLIGAN_CONFIG"
#: Variables that are not settings; they are read where they are used.
OTHER_VARIABLES = frozenset(
    {
        CONFIG_VARIABLE,
        "MULLIGAN_DEBUG",
        "MULLIGAN_NO_MODELS",
        "MULLIGAN_REPEAT",
        "MULLIGAN_RUNTIME_DIR",
        "MULLIGAN_SEED",
        "MULLIGAN_TOKEN",
        "MULLIGAN_TRACE",
        "MULLIGAN_CRASH_DIR",
    }
)


def config_place() -> Path:
    """Return where the configuration file may be: MULLIGAN_CONFIG, or ./mulligan.toml."""
    return Path(os.environ.get(CONFIG_VARIABLE) or "mulligan.toml")


def config_path() -> Path | None:
    """Return the configuration file, if it exists. Raises BadInput if MULLIGAN_CONFIG is wrong."""
    place = config_place()
    if place.is_file():
        return place
    if os.environ.get(CONFIG_VARIABLE):
        raise BadInput(f"{CONFIG_VARIABLE}: there is no file {place}")
    return None


def read_file() -> dict[str, Any]:
    """Return the unchecked content of the configuration file."""
    path = config_path()
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}") from None
