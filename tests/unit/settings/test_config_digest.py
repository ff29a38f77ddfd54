from __future__ import annotations

import os
import subprocess
import sys

_PROGRAM = """
from mulligan.workers.ledger.stores.config_changes import config_digest
from mulligan.workers.settings.model import Settings
print(config_digest(Settings(exempt_task_types=list("abcdef"))))
"""


def test_two_processes_with_the_same_settings_have_one_digest() -> None:
    """Given two seeds of Python's hash, which order a set differently, the digest is the same."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1
