"""The attacks again, with a worker that is an ordinary user: it has no powers to confine with."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
UID = 61_200
#: Two parts, of which the first one takes about as long as the second.
PARTS = {
    "programs": ["test_escapes.py", "test_profiles.py", "test_exploding_trees.py"],
    "inputs": ["test_exploding_inputs.py", "test_exploding_edits.py", "test_body_rights.py"],
}
#: These take long, and a user's rights do not matter to them.
LEFT_OUT = ("real_console", "nearly_everywhere", "too_costly", "bounded_time", "page_shows")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("part", PARTS)
def test_all_of_it_as_an_ordinary_user(part: str) -> None:
    """Run these files again in a mount namespace in which an ordinary user can reach this Python
    and this repository."""
    with tempfile.TemporaryDirectory(prefix="u-", dir="/tmp") as folder:  # short, for sockets
        os.chown(folder, UID, UID)
        done = run_as_user(PARTS[part], Path(folder))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def run_as_user(files: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    arguments = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}",
        "-c", str(ROOT / "pyproject.toml"), f"--basetemp={folder / 'base'}",
        "-k", " and ".join(f"not {each}" for each in LEFT_OUT),
        *(str(HERE / name) for name in files),
    ]  # fmt: skip
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "workers" / "sandbox")!r})
from launcher import confine
confine.change_user({UID}, {[sys.prefix, sys.base_prefix, str(ROOT), str(folder)]!r})
os.execv(sys.executable, {arguments!r})
"""
    env = {
        **{name: os.environ[name] for name in ("PATH", "LANG", "CI") if name in os.environ},
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
