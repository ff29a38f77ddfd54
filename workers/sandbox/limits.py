"""What one program may use, and what it may see."""

from __future__ import annotations

from pydantic import Field

from mulligan.policies.value import Value
from mulligan.workers.sandbox.confinement import STRICT, Confinement


class ResourceLimits(Value):
    """What one program may use; None means no limit."""

    #: Processor time of each process.
    cpu_seconds: int | None = Field(default=300, ge=1)
    #: Address space of each process.
    memory_bytes: int | None = Field(default=2 << 30, ge=1 << 20)
    #: Memory of all its processes together.
    total_memory_bytes: int | None = Field(default=4 << 30, ge=1 << 20)
    #: The largest file it may write.
    file_bytes: int | None = Field(default=64 << 20, ge=0)
    #: All files together in the directories that it may write to.
    disk_bytes: int | None = Field(default=1 << 30, ge=1 << 20)
    #: Files, pipes and sockets that each process may have open.
    open_files: int | None = Field(default=4096, ge=64)
    #: Processes and threads at one time.
    processes: int | None = Field(default=512, ge=1)
    #: Bytes to keep of stdout and of stderr; the middle of more is left out.
    output_bytes: int = Field(default=256 << 10, ge=1024)


class Limits(ResourceLimits):
    """What one program may use, and how it is confined."""

    confinement: Confinement = STRICT
    #: The program is ended when its worker shows no sign of life for so many seconds, because its
    #: lease is lost then; None: only when the worker dies.
    heartbeat_seconds: float | None = Field(default=None, gt=0)

    def reaching(self, network: tuple[str, ...]) -> Limits:
        """Return the limits of a program that may connect to these places only."""
        confinement = self.confinement.model_copy(update={"network": network})
        return self.model_copy(update={"confinement": confinement})
