"""The values of a confinement: what programs under test may see, and reach."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from mulligan.policies.value import Value

_PLACE = re.compile(r"(127\.0\.0\.1|[A-Za-z0-9.-]{0,200}[A-Za-z][A-Za-z0-9-]{0,62}\.?):(\d{1,5})")


def _check_place(text: str) -> str:
    found = _PLACE.fullmatch(text)
    if found is None or not 0 < int(found[2]) < 65_536:
        raise ValueError(
            f"{text!r} is not a host and a port, such as api.example.com:443 or localhost:11434;"
            " the only address that can be named is 127.0.0.1"
        )
    return text


#: A host by its name and a port. Of addresses, only this computer's own can be named.
Endpoint = Annotated[str, AfterValidator(_check_place)]
#: A path of the workers' computer; ``~`` is the home of their user.
VisiblePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


class Confinement(Value):
    """What the operator allows programs under test."""

    kind: Literal["auto", "bubblewrap", "landlock"] = "auto"
    #: Run programs even if they cannot be confined.
    unsafe: bool = False
    #: More files and directories that they may read.
    read: tuple[VisiblePath, ...] = ()
    #: The only places that they may connect to, as ``host:port``.
    network: tuple[Endpoint, ...] = ()
    #: Places that they may never connect to: the broker, the ledger and the console.
    never: tuple[str, ...] = ()
    #: Files and directories that they may never see: mulligan's home, and where the sockets of the
    #: broker and the ledger are.
    never_read: tuple[Path, ...] = ()


#: Confined in the best way that works, without a network.
STRICT = Confinement()
