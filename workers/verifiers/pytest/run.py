"""Run one pytest process in a private copy and collect its results from outside."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.file_tree import read_file
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.protection import PYTEST_CONFIGURATION
from mulligan.workers.sandbox.subprocesses import Completed, clean_environment, run
from mulligan.workers.sandbox.worker_paths import WorkerPaths
from mulligan.workers.verifiers.pytest.event_stream import EventReader, Transcript

_CHILD = Path(__file__).resolve().with_name("child.py")
#: What the child reads besides its Python and the workspace.
CHILD_FILES = (_CHILD, _CHILD.with_name("tamper_hooks.py"))
_NO_PYTEST = 97
_ENVIRONMENT = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
}


@dataclass(frozen=True, kw_only=True)
class PytestRun:
    """The events of a run, and how its process ended."""

    transcript: Transcript
    completed: Completed
    #: The JUnit file, written outside the workspace; None when collecting.
    junit: bytes | None = None

    @property
    def output_tail(self) -> str:
        """The end of its output, for messages."""
        text = "\n".join([self.completed.stdout.strip(), self.completed.stderr.strip()])
        return "\n".join(text.strip().splitlines()[-15:])[-1500:]


def run_pytest(
    work: Path,
    args: Sequence[str],
    *,
    timeout: float,
    limits: Limits,
    stubs: Sequence[str] | None = None,
    fill: Sequence[str] | None = None,
    answer: Sequence[str] = (),
    only: Sequence[str] | None = None,
    show_source: bool = False,
) -> PytestRun:
    """Run the tests, or only list them with ``stubs``; raise VerifierError without pytest.

    ``fill`` are the files whose modules get stubs for the names that they lack. ``answer`` are the
    files that are watched for interference with the run. ``only`` are the files and test functions
    that are run; other tests are only collected.
    """
    private = work.parent
    # The program sees only its copy, its home and this folder.
    (private / "tmp").mkdir(exist_ok=True)
    xml = private / "tmp" / "junit.xml"
    xml.unlink(missing_ok=True)
    paths = WorkerPaths(work)
    with EventReader(paths.clean) as reader:
        config = {
            "fd": reader.write_fd,
            "key": reader.key,
            "root": str(work),
            "answer": list(answer),
            "only": only,
            "args": _arguments(work, args, xml, collect=stubs is not None),
            "show_source": show_source,
            "stubs": _stub_config(fill if stubs is None else stubs, fill=stubs is None),
        }
        completed = run(
            [sys.executable, "-P", "-s", "-B", str(_CHILD)],
            cwd=work,
            timeout=timeout,
            env=clean_environment(private, _ENVIRONMENT),
            limits=limits,
            stdin=json.dumps(config),
            pass_fds=(reader.write_fd,),
            read=CHILD_FILES,
        )
    transcript = reader.transcript()
    completed = replace(
        completed, stdout=paths.clean(completed.stdout), stderr=paths.clean(completed.stderr)
    )
    if not transcript.started and completed.exit_code == _NO_PYTEST:
        raise VerifierError(completed.stderr.strip())
    return PytestRun(transcript=transcript, completed=completed, junit=_read(xml, limits))


def _stub_config(files: Sequence[str] | None, *, fill: bool) -> dict[str, Any] | None:
    if files is None:
        return None
    names = {name for file in files for name in module_names(file)}
    return {"files": list(files), "names": sorted(names), "fill": fill}


def module_names(file: str) -> list[str]:
    """Return the names a file may be imported by: src, src.a, src.a.b, a, a.b, b for src/a/b.py."""
    if not file.endswith(".py"):
        return []
    parts = list(PurePosixPath(file).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return [
        ".".join(parts[start:end])
        for start in range(len(parts))
        for end in range(start + 1, len(parts) + 1)
    ]


def _arguments(work: Path, args: Sequence[str], xml: Path, *, collect: bool) -> list[str]:
    ours = ["-p", "no:cacheprovider", f"--rootdir={work}", f"--confcutdir={work}"]
    ours += ["--color=no", "--tb=short"]
    if not any(path.name in PYTEST_CONFIGURATION for path in work.rglob("*")):
        # Otherwise pytest looks for configuration above the workspace, which is not the job's.
        empty = work.parent / "tmp" / "pytest.ini"
        empty.write_text("[pytest]\n")
        ours += ["-c", str(empty)]
    mode = (
        ["--collect-only", "-q"] if collect else [f"--junitxml={xml}", "-o", "junit_family=xunit2"]
    )
    return [*args, *ours, *mode]


def _read(xml: Path, limits: Limits) -> bytes | None:
    """Return the file, or None if it is missing, no file or too large."""
    try:
        return read_file(xml, max_bytes=limits.file_bytes)
    except OSError:
        return None
