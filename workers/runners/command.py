"""The ``command`` runner: a program answers, for instance a coding agent.

It gets the prompt on stdin and runs in a private copy of the workspace. The answer is what it
prints plus what it changes there. Of an agent that prints events, the answer is its last message.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mulligan.policies.failures.command_output import first_error
from mulligan.policies.jobs.job import Message, Output
from mulligan.policies.loops.stuck import RULES, Rule, RuleName, StuckFinding
from mulligan.policies.value import Json
from mulligan.tasks.ports.blobs import BlobStore
from mulligan.tasks.ports.errors import (
    BadInput,
    OutOfCredits,
    RunnerError,
    TransportFault,
    VerifierError,
)
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.sessions import SilentSession
from mulligan.workers.runners.agent_session import AgentSession
from mulligan.workers.runners.agent_watch import AgentWatch
from mulligan.workers.runners.command_options import CommandOptions
from mulligan.workers.runners.runner_options import RunnerDefaults, read_options
from mulligan.workers.runners.sessions.session_formats import REFUSAL_EXIT_CODES, SESSION_FORMATS
from mulligan.workers.runners.sessions.session_parser import SessionSummary
from mulligan.workers.sandbox.confinement import STRICT, Confinement
from mulligan.workers.sandbox.diff import make_diff, read_diff
from mulligan.workers.sandbox.home_files import copy_home_files
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.programs import ProgramMissing
from mulligan.workers.sandbox.subprocesses import (
    Completed,
    check_start,
    clean_environment,
    run,
)
from mulligan.workers.sandbox.worker_paths import WorkerPaths
from mulligan.workers.sandbox.workspace import PrivateCopy, private_copy

_STDERR_TAIL = 2000
#: Characters of an error within a message.
_LONGEST_ERROR = 300
#: The limit of a job's answer; the middle of a longer output is left out.
_LONGEST_ANSWER = 4 << 20
_LARGEST_DIFF = 200 << 20
_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
#: What programs say when they miss a file, a right or a network.
_MISSES_SOMETHING = re.compile(
    r"no such file|not found|enoent|permission|eacces|eperm|not permitted|denied|read-only"
    r"|connect|network|resolve|resolution|unreachable|enotfound|eai_again|fetch failed|getaddrinfo"
    r"|log ?in|logged in|credential|unauthorized",
    re.IGNORECASE,
)
_CONFINED = (
    "programs see no home directory and no network unless the profile allows them"
    " (docs/runners.md#command)"
)


class CommandRunner:
    """Runs one program per answer and removes its files and processes afterwards."""

    Options = CommandOptions
    needs_blobs = True

    def __init__(
        self,
        options: CommandOptions,
        *,
        blobs: BlobStore | None = None,
        confinement: Confinement = STRICT,
        heartbeat_seconds: float | None = None,
        stuck: Mapping[RuleName, Rule] = RULES,
    ) -> None:
        """``heartbeat_seconds``: as in Limits. ``stuck``: the rules that end an agent."""
        self._options, self._stuck = options, stuck
        self._blobs = blobs
        self._limits = Limits(
            **options.limits.model_dump(),
            heartbeat_seconds=heartbeat_seconds,
            confinement=confinement.model_copy(
                update={"network": options.network, "read": (*confinement.read, *options.read)}
            ),
        )
        #: Without its directory: what is said about it may enter prompts.
        self._name = Path(options.argv[0]).name
        self.provider = options.provider or f"command:{self._name}"
        self.defaults = RunnerDefaults(timeout=options.timeout)

    @classmethod
    def from_options(
        cls,
        options: Mapping[str, Json],
        *,
        blobs: BlobStore | None = None,
        confinement: Confinement = STRICT,
        heartbeat_seconds: float | None = None,
        stuck: Mapping[RuleName, Rule] = RULES,
    ) -> CommandRunner:
        """Raise BadInput with every problem, except a missing program, which only a run reveals."""
        read = read_options(CommandOptions, options)
        return cls(
            read,
            blobs=blobs,
            confinement=confinement,
            heartbeat_seconds=heartbeat_seconds,
            stuck=stuck,
        )

    def answer(self, request: Request) -> Output:
        with private_copy(request.workspace, self._blobs) as copy:
            output = self.work_in(request, copy.directory)
            diff = self._store_diff(copy) if request.workspace is not None else None
            return output.model_copy(update={"diff": diff})

    def work_in(self, request: Request, directory: Path, read: Sequence[Path] = ()) -> Output:
        """Run the program in a directory that is only for it, and keep what it leaves there.

        The directories beside it become its home and its place for temporary files. It may read
        ``read`` besides what its profile names. Raise as ``answer`` does.
        """
        variables, paths = self._variables(), WorkerPaths(directory)
        with self._session(request, directory, variables, paths) as session:
            completed = self._run(request, directory, read, variables, session)
            summary = session.relay.finish()
            failed = completed.timed_out or completed.exit_code != 0 or summary.failed is not False
            stuck = session.watch.ended if failed else None
            session.relay.note(f"{self._name} {_describe_exit(completed, stuck)}")
        self._raise_refusal(completed, summary)
        is_plain = self._options.format == "text"
        told = stuck or session.watch.unheard
        output = Output(
            text=_redact(completed.stdout, variables) if is_plain else summary.answer,
            usage=summary.usage,
            model=summary.model,
            elapsed_seconds=completed.elapsed,
            stuck=told.told if told is not None else None,
            start_over=stuck is not None and stuck.action == "change_strategy",
        )
        if stuck is not None:
            raise self._stuck_error(completed, stuck, output)
        if failed:
            stderr = paths.clean(_redact(completed.stderr, variables))
            raise self._failure(completed, summary, stderr, output)
        return output

    @contextmanager
    def _session(
        self, request: Request, directory: Path, variables: Mapping[str, str], paths: WorkerPaths
    ) -> Iterator[AgentSession]:
        """Pass on what the program does, however it ends, and watch it."""
        options = self._options
        parser = SESSION_FORMATS[options.format](
            redact=lambda text: _redact(text, variables), clean=paths.clean
        )
        watch = AgentWatch(
            directory,
            rules=self._stuck,
            most_processes=options.limits.processes,
            has_events=options.format != "text",
            show=request.progress,
        )
        prompt = prompt_text(request.messages)
        session = AgentSession(
            parser, request, watch, prompt, can_hear=options.nudge == "stream-json"
        )
        try:
            yield session
        finally:
            session.relay.finish()

    def _variables(self) -> dict[str, str]:
        missing = [name for name in self._options.env if name not in os.environ]
        if missing:
            names = ", ".join(missing)
            raise self._error(
                f"not set in the worker's environment: {names}; export it and restart the worker,"
                f" or remove it from the runner's env",
                cause="missing_variable",
            )
        return {name: os.environ[name] for name in self._options.env}

    def _run(
        self,
        request: Request,
        directory: Path,
        read: Sequence[Path],
        variables: Mapping[str, str],
        session: AgentSession,
    ) -> Completed:
        options = self._options
        env = clean_environment(directory.parent, variables)
        is_plain, is_unheard = options.format == "text", isinstance(request.session, SilentSession)
        try:
            never = self._limits.confinement.never_read
            copy_home_files(options.home_files, Path(env["HOME"]), never)
            return run(
                options.argv,
                cwd=directory,
                timeout=min(request.timeout, options.timeout or request.timeout),
                env=env,
                limits=self._limits,
                stdin=session.stdin,
                max_output_bytes=_LONGEST_ANSWER if is_plain else None,
                read=read,
                on_output=session.watch.hear_output if is_plain and is_unheard else session.feed,
                on_stderr=session.watch.hear_output,
                watch=session.watch.running,
            )
        except ProgramMissing as error:
            raise self._error(str(error), cause="program_missing") from None
        except VerifierError as error:
            raise self._error(str(error), cause="not_confined") from None

    def _failure(
        self, completed: Completed, summary: SessionSummary, stderr: str, output: Output
    ) -> RunnerError:
        """Return the program's failure; not final, because another prompt may succeed."""
        error = self._session_error(completed, summary) or first_error(stderr)
        evidence = {
            "kind": "command_failed",
            "argv": list(self._options.argv),
            "exit_code": completed.exit_code,
            "signal": completed.signal,
            "timed_out": completed.timed_out,
            "stderr_tail": stderr[-_STDERR_TAIL:],
            "error": error,
        }
        if summary.error:
            evidence["stdout_tail"] = summary.error[-_STDERR_TAIL:]
        reason = error or ("" if completed.timed_out else "nothing on stderr")
        message = ": ".join(filter(None, (f"{self._name} {_describe_exit(completed)}", reason)))
        told = f"{stderr[-_STDERR_TAIL:]}\n{summary.error}"
        if completed.is_confined and _MISSES_SOMETHING.search(told):
            message += f"; {_CONFINED}"
        return RunnerError(message, evidence, final=False, output=output)

    def _stuck_error(
        self, completed: Completed, stuck: StuckFinding, output: Output
    ) -> RunnerError:
        """Return the failure of a program that was ended because it was stuck."""
        evidence: dict[str, Any] = {
            "kind": "command_failed",
            "class": f"stuck.{stuck.rule}",
            "argv": list(self._options.argv),
            "stuck": stuck.told,
            "start_over": output.start_over,
        }
        message = f"{self._name} {_describe_exit(completed, stuck)}"
        return RunnerError(message, evidence, final=stuck.action == "escalate", output=output)

    def _session_error(self, completed: Completed, summary: SessionSummary) -> str:
        """Return what the session says is wrong, or that it has no end, on one line."""
        if summary.failed:
            return " ".join(summary.error.split())[:_LONGEST_ERROR]
        if completed.exit_code == 0 and summary.failed is None:
            return (
                f"it printed no result in the format {self._options.format};"
                " correct `argv` or `format` of its profile if it never does"
            )
        return ""

    def _raise_refusal(self, completed: Completed, summary: SessionSummary) -> None:
        """Raise a fault if the program's provider refused it.

        Only its exit code and structured codes of its events count. Texts may quote anything.
        """
        if completed.timed_out:
            return
        said = f"{self._name} {_describe_exit(completed)}"
        if completed.exit_code in self._options.out_of_credits_exit_codes:
            raise OutOfCredits(f"{said}: out of credits or quota", provider=self.provider)
        refused = summary.refused
        if refused is None and summary.failed:
            codes = REFUSAL_EXIT_CODES.get(self._options.format, {})
            refused = codes.get(completed.exit_code or 0)
        if refused is None:
            return
        if refused == "key":
            # The provider's own text is not repeated: it may quote part of the key.
            raise self._error(
                f"{said}: its provider refused its key: check it in the worker's environment"
                " (`env`), or its login (`home_files`)",
                cause="key_refused",
            )
        until = summary.resets_at
        fault = OutOfCredits if refused == "credits" else TransportFault
        raise fault(
            ": ".join(filter(None, (said, summary.code, summary.error[:_LONGEST_ERROR]))),
            provider=self.provider,
            retry_after=None if until is None else max(0.0, until - time.time()),
            maybe_served=True,
        )

    def check_here(self) -> None:
        """Raise VerifierError if the program cannot be started on this computer.

        It is not started itself: another one is, confined in the same way.
        """
        options = self._options
        for path in options.read:
            if not path.exists():
                raise VerifierError(f"there is no {path} (`read`)")
        check_start(options.argv, self._limits)
        with private_directory() as work:
            copy_home_files(options.home_files, work, self._limits.confinement.never_read)

    def _store_diff(self, copy: PrivateCopy) -> str | None:
        """Store what the program changed and return its address, or None if nothing changed."""
        try:
            data = make_diff(copy.snapshot, copy.directory, max_bytes=_LARGEST_DIFF)
            diff = read_diff(data)
            return self._store(data) if diff.changed or diff.deleted else None
        except BadInput as error:
            message = f"{self._name}: its changes cannot be stored: {error}"
            raise self._error(message, cause="diff_refused", final=False) from error

    def _store(self, data: bytes) -> str:
        if self._blobs is None:
            raise BadInput("there is no blob store")
        return self._blobs.put(data, paid=True)

    def _error(self, message: str, *, cause: str, final: bool = True) -> RunnerError:
        evidence: dict[str, Any] = {
            "kind": "tool_error",
            "provider": self.provider,
            "class": cause,
        }
        return RunnerError(message, evidence, final=final)


def prompt_text(messages: Sequence[Message]) -> str:
    """Return the text for stdin: the system prompt, then the turns, with roles if several."""
    system = [message.content for message in messages if message.role == "system"]
    turns = [message for message in messages if message.role != "system"]
    if len(turns) == 1:
        return "\n\n".join([*system, turns[0].content])
    named = [f"{message.role.capitalize()}: {message.content}" for message in turns]
    return "\n\n".join([*system, *named])


def _describe_exit(completed: Completed, stuck: StuckFinding | None = None) -> str:
    if stuck is not None:
        return f"was ended as stuck: it {stuck.said}"
    if completed.timed_out:
        return f"did not end within {completed.elapsed:.1f} s and was killed"
    if completed.signal is not None:
        return f"was killed by signal {completed.signal}"
    return f"exited with code {completed.exit_code}"


def _redact(text: str, variables: Mapping[str, str]) -> str:
    """Replace the values of variables that are named like secrets."""
    for name, value in variables.items():
        if value and any(word in name.upper() for word in _SECRET_NAMES):
            text = text.replace(value, "***")
    return text
