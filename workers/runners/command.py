"""The ``command`` runner: a program answers, a coding agent for instance.

The prompt goes to its stdin, its working directory is a private copy of the workspace, and the
answer is what it prints plus what it changed there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mulligan.policies.jobs.job import Message, Output, Seconds
from mulligan.policies.value import Json, Value
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import BadInput, RunnerError
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners.runner_options import RunnerDefaults, read_options
from mulligan.workers.sandbox.diff import read_diff
from mulligan.workers.sandbox.subprocesses import (
    Completed,
    Limits,
    ProgramMissing,
    clean_environment,
    run,
)
from mulligan.workers.sandbox.workspace import make_diff, private_directory, snapshot_of, unpack

#: An agent is configured by whoever runs the workers, not by a job: it may use the machine.
_AGENT_LIMITS = Limits(cpu_seconds=None, memory_bytes=None, file_bytes=1 << 30)
_STDERR_TAIL = 2000
#: As much as a job's answer may have; the middle of anything longer is left out.
_LONGEST_ANSWER = 4 << 20
_LARGEST_DIFF = 200 << 20
_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")


class CommandOptions(Value):
    """Options of ``kind: command``."""

    #: The program and its arguments; never a shell.
    argv: tuple[Annotated[str, Field(pattern=r"^[^\x00]*$")], ...] = Field(min_length=1)
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    #: Names of variables that it gets besides PATH, the locale and a home of its own.
    env: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], ...] = ()
    limits: Limits = _AGENT_LIMITS


@dataclass(frozen=True)
class _Workplace:
    directory: Path
    #: The packed workspace as the program found it; None if there is no workspace.
    snapshot: bytes | None


class CommandRunner:
    """Runs one program per answer and leaves nothing of it behind."""

    Options = CommandOptions
    needs_blobs = True

    def __init__(self, options: CommandOptions, *, blobs: BlobStore | None = None) -> None:
        self._options = options
        self._blobs = blobs
        self.provider = f"command:{Path(options.argv[0]).name}"
        self.defaults = RunnerDefaults(timeout=options.timeout)

    @classmethod
    def from_options(
        cls, options: Mapping[str, Json], *, blobs: BlobStore | None = None
    ) -> CommandRunner:
        """BadInput names every problem. Whether the program exists is the worker's to see."""
        return cls(read_options(CommandOptions, options), blobs=blobs)

    def answer(self, request: Request) -> Output:
        passed = self._environment()
        with self._workplace(request) as place:
            completed = self._run(request, place, passed)
            if completed.timed_out or completed.exit_code != 0:
                raise self._failed(completed, passed)
            return Output(
                text=_without(passed, completed.stdout),
                elapsed_seconds=completed.elapsed,
                diff=self._diff(place),
            )

    def _environment(self) -> dict[str, str]:
        missing = [name for name in self._options.env if name not in os.environ]
        if missing:
            names = ", ".join(missing)
            raise self._error(
                f"not set in the worker's environment: {names}; export it and start the worker"
                f" again, or take it out of the runner's env",
                cause="missing_variable",
            )
        return {name: os.environ[name] for name in self._options.env}

    @contextmanager
    def _workplace(self, request: Request) -> Iterator[_Workplace]:
        workspace = request.workspace
        snapshot = snapshot_of(workspace, self._blobs) if workspace is not None else None
        with private_directory() as directory:
            if snapshot is not None:
                unpack(snapshot, directory)
            yield _Workplace(directory, snapshot)

    def _run(self, request: Request, place: _Workplace, passed: Mapping[str, str]) -> Completed:
        options = self._options
        try:
            return run(
                options.argv,
                cwd=place.directory,
                timeout=min(request.timeout, options.timeout or request.timeout),
                env=clean_environment(place.directory.parent, passed),
                limits=options.limits,
                stdin=prompt_text(request.messages),
                max_output_bytes=_LONGEST_ANSWER,
            )
        except ProgramMissing as error:
            fix = "install it where the workers run, or name its full path in argv"
            raise self._error(f"{error}; {fix}", cause="program_missing") from None

    def _failed(self, completed: Completed, passed: Mapping[str, str]) -> RunnerError:
        """How the program failed. Another prompt may well succeed, so it is not final."""
        stderr = _without(passed, completed.stderr)[-_STDERR_TAIL:]
        evidence = {
            "kind": "command_failed",
            "argv": list(self._options.argv),
            "exit_code": completed.exit_code,
            "signal": completed.signal,
            "timed_out": completed.timed_out,
            "stderr_tail": stderr,
        }
        said = stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
        message = f"{self._options.argv[0]} {_ending(completed)}: {said[0][:300]}"
        return RunnerError(message, evidence, final=False)

    def _diff(self, place: _Workplace) -> str | None:
        """The address of what the program changed, or None if it changed nothing."""
        if place.snapshot is None:
            return None
        try:
            data = make_diff(place.snapshot, place.directory, max_bytes=_LARGEST_DIFF)
            diff = read_diff(data)
            return self._keep(data) if diff.changed or diff.deleted else None
        except BadInput as error:
            said = f"{self._options.argv[0]}: its changes cannot be kept: {error}"
            raise self._error(said, cause="diff_refused", final=False) from error

    def _keep(self, data: bytes) -> str:
        if self._blobs is None:
            raise BadInput("there is no blob store for them")
        return self._blobs.put(data)

    def _error(self, message: str, *, cause: str, final: bool = True) -> RunnerError:
        evidence: dict[str, Any] = {
            "kind": "tool_error",
            "provider": self.provider,
            "class": cause,
        }
        return RunnerError(message, evidence, final=final)


def prompt_text(messages: Sequence[Message]) -> str:
    """What goes to stdin: the system's text, then the user's; several turns under their roles."""
    system = [message.content for message in messages if message.role == "system"]
    turns = [message for message in messages if message.role != "system"]
    if len(turns) == 1:
        return "\n\n".join([*system, turns[0].content])
    named = [f"{message.role.capitalize()}: {message.content}" for message in turns]
    return "\n\n".join([*system, *named])


def _ending(completed: Completed) -> str:
    if completed.timed_out:
        return f"did not end within {completed.elapsed:.1f} s and was killed"
    if completed.signal is not None:
        return f"was ended by signal {completed.signal}"
    return f"ended with exit code {completed.exit_code}"


def _without(passed: Mapping[str, str], text: str) -> str:
    """A text without the secrets that the program was given."""
    for name, value in passed.items():
        if value and any(word in name.upper() for word in _SECRET_NAMES):
            text = text.replace(value, "***")
    return text
