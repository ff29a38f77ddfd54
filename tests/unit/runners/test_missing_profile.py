"""A worker that was started before a profile was added to mulligan.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.inline_fleet import InlineFleet

from mulligan.policies.jobs.job import RunnerSpec
from mulligan.tasks.ports.errors import BadInput


def test_a_worker_without_a_profile_says_when_it_read_the_file(tmp_path: Path) -> None:
    fleet = InlineFleet(tmp_path / "home")
    with pytest.raises(BadInput, match="which this worker read when it started: restart it if"):
        fleet.services.context.runner(RunnerSpec(profile="fmt"))
