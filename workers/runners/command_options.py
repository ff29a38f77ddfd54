"""The options of the ``command`` runner."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mulligan.policies.jobs.job import Seconds
from mulligan.policies.value import Value
from mulligan.workers.runners.sessions.session_formats import FormatName
from mulligan.workers.sandbox.confinement import Endpoint, VisiblePath
from mulligan.workers.sandbox.home_files import HomeFile
from mulligan.workers.sandbox.limits import ResourceLimits

#: The workers' operator configures the agent, never a job, because it may use the machine.
_AGENT_LIMITS = ResourceLimits(
    cpu_seconds=None,
    memory_bytes=None,
    total_memory_bytes=8 << 30,
    file_bytes=1 << 30,
    disk_bytes=10 << 30,
    processes=4096,
)


def _check_variable(name: str) -> str:
    if name in ("HOME", "TMPDIR"):
        raise ValueError(
            f"the variable {name} is private to each program; name the files that it needs in"
            " home_files, and directories that it may read in read"
        )
    if name == "PATH":
        raise ValueError(
            "the variable PATH is always passed on; name where programs are installed in read"
        )
    if name.upper().startswith("MULLIGAN_"):
        raise ValueError(
            f"the variable {name} is a setting of mulligan, which no program gets; use another name"
        )
    return name


_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$"), AfterValidator(_check_variable)]


class CommandOptions(Value):
    """Options of ``kind: command``."""

    #: The program and its arguments; never a shell.
    argv: tuple[Annotated[str, Field(pattern=r"^[^\x00]*$")], ...] = Field(min_length=1)
    timeout: Annotated[Seconds, Field(gt=0)] | None = None
    #: Names of variables to pass on, besides PATH, the locale and a private home.
    env: tuple[_Variable, ...] = ()
    limits: ResourceLimits = _AGENT_LIMITS
    #: The only places that the program may connect to, as `host:port`; none by default.
    network: tuple[Endpoint, ...] = Field(default=(), max_length=50)
    #: Files and directories that it may read, such as those that it is installed in.
    read: tuple[VisiblePath, ...] = ()
    #: Files and directories of the workers' home that are copied to its private home.
    home_files: tuple[HomeFile, ...] = Field(default=(), max_length=50)
    #: Whose limits and breaker count; several programs may use one account.
    provider: Annotated[str, Field(pattern=r"^[\w][\w.:/@+-]{0,199}$")] | None = None
    #: How it prints what it does: as plain text, or as the events of one of these agents.
    format: FormatName = "text"
    #: How it hears that it repeats itself: not at all, or as one more message of the user on
    #: stdin, from which it then reads all its messages as JSON.
    nudge: Literal["none", "stream-json"] = "none"
    #: Exit codes by which the program says that its credits or its quota are used up.
    out_of_credits_exit_codes: tuple[Annotated[int, Field(ge=1, le=255)], ...] = ()

    @model_validator(mode="after")
    def _can_hear(self) -> CommandOptions:
        if self.nudge == "stream-json" and self.format != "claude":
            raise ValueError('nudge = "stream-json" needs format = "claude"')
        return self
