"""The command line as a real process, and the processes it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
from typer.testing import CliRunner, Result

from mulligan.console.cli.main import create_cli
from support.waiting import wait_for

_MARK = "MULLIGAN_TEST_MARK"


def invoke(
    *argv: str, code: int = 0, stdin: str | None = None, env: dict[str, str] | None = None
) -> Result:
    """Run a command in this process, which has imported everything, and check its exit code."""
    result = CliRunner().invoke(create_cli(), list(argv), input=stdin, env=env)
    assert result.exit_code == code, f"{argv}: {result.exit_code}: {result.output}{result.stderr}"
    return result


def write_file(path: str | Path, content: Any) -> str:
    """Write text, or anything else as JSON, and return the path."""
    Path(path).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@dataclass
class Shell:
    """A directory to run `mulligan` in. Every process started from it carries its mark."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid4().hex)

    def write(self, name: str, content: Any) -> str:
        write_file(self.folder / name, content)
        return name

    def start(self, *argv: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command of `mulligan`."""
        return self.spawn(
            [sys.executable, "-m", "mulligan.console", *argv], self.folder, environment
        )

    def spawn(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Start any program in any folder."""
        return subprocess.Popen(
            argv,
            cwd=folder,
            env={**os.environ, **self.environment, **environment, _MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *argv: str, code: int = 0, timeout: float = 180, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and check its exit code."""
        process = self.start(*argv, **environment)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{argv} did not end: {out}{err}") from None
        assert process.returncode == code, f"{argv} ended with {process.returncode}: {out}{err}"
        assert "Traceback" not in err
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def run_json(self, *argv: str, code: int = 0) -> Any:
        """Run a command with --json and return the document that it prints."""
        return json.loads(self.run(*argv, "--json", code=code).stdout)

    def invoke(self, *argv: str, code: int = 0) -> Result:
        """Run a quick command in this process, which has imported everything already."""
        with chdir(self.folder):
            return invoke(*argv, code=code, env=self.environment)

    def invoke_json(self, *argv: str, code: int = 0) -> Any:
        """Run a quick command in this process with --json and return the document."""
        return json.loads(self.invoke(*argv, "--json", code=code).stdout)

    def processes(self) -> list[psutil.Process]:
        """Return every living process that was started from here, directly or indirectly."""
        return [process for process in psutil.process_iter() if self._started(process)]

    def _started(self, process: psutil.Process) -> bool:
        try:
            marked = process.environ().get(_MARK) == self.mark
            return marked and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def all_ended(self, *, seconds: float = 20.0) -> bool:
        try:
            wait_for(lambda: not self.processes(), "the last process to end", seconds=seconds)
        except AssertionError:
            return False
        return True


@contextmanager
def new_shell(**environment: str) -> Iterator[Shell]:
    """Open a shell. Processes that a failed test left behind are killed at the end."""
    # Not tmp_path: the kernel allows 108 bytes for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="mulligan-cli-") as folder:
        shell = Shell(Path(folder), environment)
        try:
            yield shell
        finally:
            for process in shell.processes():
                process.kill()
            psutil.wait_procs(shell.processes(), timeout=5)
