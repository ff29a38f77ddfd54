"""The services of `mulligan up`, without starting them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan.console.cli.local_services import flower_service
from mulligan.workers.settings.model import Settings


@pytest.mark.parametrize("public", [None, "https://flower.example"])
def test_flower_announces_its_real_port_unless_a_public_address_is_set(
    tmp_path: Path, public: str | None
) -> None:
    service = flower_service(Settings(home=tmp_path, flower_port=0, flower_url=public))
    port = next(a.partition("=")[2] for a in service.argv if a.startswith("--port="))
    assert int(port) > 0
    announced = {} if public else {"MULLIGAN_FLOWER_URL": f"http://127.0.0.1:{port}"}
    assert service.announced == announced
