"""One warm child process: start it, give it calls, kill it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from mulligan.tasks.ports.errors import TooCostly, VerifierError
from mulligan.workers.killable.value_pickle import read_value

_PROGRAM = Path(__file__).with_name("child.py")
#: Seconds in which a child must start and import the function's module, also on a busy machine.
_START_SECONDS = 60.0
#: Seconds in which a child that has closed its socket ends.
_EXIT_SECONDS = 2.0
#: Nothing else of this process's environment reaches a child.
_ALLOWED = ("PATH", "LD_LIBRARY_PATH", "LANG", "TZ")
#: What a program writes that cannot get memory, and has no other way to say it.
_NO_MEMORY = (b"memory allocation of", b"MemoryError", b"bad_alloc", b"out of memory")


class Call(NamedTuple):
    """A function with its arguments, and what it may use."""

    module: str
    name: str
    arguments: bytes
    seconds: float
    memory_bytes: int
    what: str


class ChildProcess:
    """A child that runs one call at a time."""

    def __init__(self) -> None:
        """Start it, in a thread that lives as long as this process: see ``die_with_parent``."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-X", "utf8", str(_PROGRAM)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                env={name: os.environ[name] for name in _ALLOWED if name in os.environ},
                # Ctrl-C at a terminal ends a whole group, and a child belongs to its parent alone.
                process_group=0,
            )
        self._socket = ours
        #: What it has written to its standard error, after its end.
        self._written = b""
        #: False after a call that ended it, or that left too much behind.
        self.usable = True
        path = [str(Path(each).absolute()) for each in sys.path]
        self._send(pickle.dumps({"parent": os.getpid(), "path": path}), _START_SECONDS)

    def run(self, call: Call) -> Any:
        """Return the result. Raises TooCostly after killing a child that uses more than allowed."""
        request = pickle.dumps(call._asdict())
        try:
            self._send(request, _START_SECONDS)
            answer = self._receive(_START_SECONDS, call)
            if answer[0] == "begun":
                answer = self._receive(call.seconds, call)
        except TimeoutError:
            self.kill()
            raise TooCostly(f"{call.what} takes longer than {call.seconds:g} s") from None
        except OSError:
            raise self._ended(call) from None
        except BaseException:
            self.kill()
            raise
        return self._read(answer, call)

    def _read(self, answer: tuple[str, Any, bool], call: Call) -> Any:
        kind, value, self.usable = answer
        match kind:
            case "result":
                return value
            case "error":
                raise value
            case "memory":
                self.usable = False
                raise TooCostly(_needs_memory(call))
            case "depth":
                raise TooCostly(f"{call.what} is nested too deeply")
        raise VerifierError(f"{call.what} failed: {value}")

    def _ended(self, call: Call) -> TooCostly:
        """Return the error for a child that has ended by itself."""
        self.kill()
        if any(sign in self._written for sign in _NO_MEMORY):
            return TooCostly(_needs_memory(call))
        code = self._process.returncode
        if code == -signal.SIGXCPU:
            return TooCostly(f"{call.what} takes longer than {call.seconds:g} s")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return TooCostly(f"{call.what} ends the process that does it ({how})")

    def _send(self, body: bytes, seconds: float) -> None:
        self._socket.settimeout(seconds)
        self._socket.sendall(struct.pack(">Q", len(body)) + body)

    def _receive(self, seconds: float, call: Call) -> tuple[str, Any, bool]:
        deadline = monotonic() + seconds
        length = struct.unpack(">Q", self._receive_bytes(8, deadline))[0]
        if length > call.memory_bytes:
            raise TooCostly(_needs_memory(call))
        body = self._receive_bytes(length, deadline)
        try:
            kind, value, keep = read_value(body)
        except Exception as error:  # whatever a damaged child has sent
            raise VerifierError(f"{call.what} has no readable result: {error}") from error
        return kind, value, keep

    def _receive_bytes(self, number: int, deadline: float) -> bytearray:
        found = bytearray()
        while len(found) < number:
            self._socket.settimeout(max(deadline - monotonic(), 0.001))
            part = self._socket.recv(min(number - len(found), 1 << 20))
            if not part:
                raise ConnectionResetError
            found += part
        return found

    def alive(self) -> bool:
        """Whether it waits for a call."""
        return not _is_closed(self._socket)

    def kill(self) -> None:
        """End it at once, and leave no zombie."""
        self.usable = False
        # A child that has ended by itself keeps its own exit code.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_SECONDS if _is_closed(self._socket) else 0)
        self._process.kill()
        self._process.wait()
        self._socket.close()
        stream = self._process.stderr
        if stream is not None and not stream.closed:
            self._written = stream.read()
            stream.close()

    def forget(self) -> None:
        """Let go of a child of the process from which this one was forked."""
        self._socket.close()
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._process.returncode = 0


def _needs_memory(call: Call) -> str:
    return f"{call.what} needs more than {call.memory_bytes >> 20} MB"


def _is_closed(connection: socket.socket) -> bool:
    try:
        connection.settimeout(0)
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
