"""Write loop files and spec files as people do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from mulligan.policies.problem import Problem
from mulligan.tasks.ports.errors import BadInput, refuse

#: The folder of spec files beside a loop.yaml.
SPECS = "specs"


def refuse_existing(paths: Iterable[Path]) -> None:
    """Raise BadInput with each path that exists: nothing is overwritten."""
    refuse(Problem(f"{path} exists; nothing was written") for path in paths if path.exists())


def write_files(texts: Mapping[Path, str]) -> list[Path]:
    """Write new files and return their paths. Raises BadInput."""
    refuse_existing(texts)
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from None
    return list(texts)


def yaml_text(data: dict[str, Any], about: Iterable[str] = ()) -> str:
    """Write YAML that reads as the same data."""
    yaml = YAML()
    yaml.width = 100
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    yaml.dump(_styled(data), stream)
    words = (" ".join(each.split()) for each in about)
    comments = [f"# {''.join(filter(str.isprintable, each))}\n" for each in words]
    return "".join(comments) + stream.getvalue()


def _styled(value: Any) -> Any:
    """Write texts with several lines as blocks, as people do, if a block can hold them."""
    if isinstance(value, dict):
        return {key: _styled(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_styled(each) for each in value]
    if isinstance(value, str) and not value.isprintable():
        lines = value.split("\n")
        plain = all(each.isprintable() and each == each.strip() for each in lines) and lines[0]
        return LiteralScalarString(value) if plain else DoubleQuotedScalarString(value)
    return value
