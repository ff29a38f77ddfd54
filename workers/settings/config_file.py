"""The configuration file: which one is in force, and what it says."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from mulligan.tasks.ports.errors import BadInput

CONFIG_VARIABLE = "MULLIGAN_CONFIG"
#: Variables that are no settings: they are read where they are used.
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
    """Where the configuration file is, if there is one: MULLIGAN_CONFIG, or ./mulligan.toml."""
    return Path(os.environ.get(CONFIG_VARIABLE) or "mulligan.toml")


def config_path() -> Path | None:
    """The configuration file in force."""
    place = config_place()
    if place.is_file():
        return place
    if os.environ.get(CONFIG_VARIABLE):
        raise BadInput(f"{CONFIG_VARIABLE}: there is no file {place}")
    return None


def read_file() -> dict[str, Any]:
    """What the configuration file says, unchecked."""
    path = config_path()
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}") from None
