"""Running untrusted programs, as real processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest
from support.waiting import wait_for

from mulligan.tasks.ports.errors import VerifierError
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.programs import ProgramMissing
from mulligan.workers.sandbox.streams import CappedOutput
from mulligan.workers.sandbox.subprocesses import Completed, clean_environment, run
from mulligan.workers.sandbox.visible_files import home_directory


def python(tmp_path: Path, code: str, **options: Any) -> Completed:
    """Run Python code in the sandbox."""
    limits = options.pop("limits", Limits())
    return run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        timeout=options.pop("timeout", 30),
        env=clean_environment(tmp_path, options.pop("env", None)),
        limits=limits,
        **options,
    )


def ends(pid: int) -> bool:
    """Return whether a killed process ends; the kernel may need a moment."""
    deadline = monotonic() + 20
    while monotonic() < deadline:
        try:
            if psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return True
        except psutil.NoSuchProcess:
            return True
    return False


# -- the end of a program --------------------------------------------------------------------------


def test_output_and_exit_code_are_returned(tmp_path: Path) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    completed = python(tmp_path, code)
    assert completed.exit_code == 3
    assert completed.signal is None
    assert not completed.timed_out
    assert completed.stdout == "out\n"
    assert completed.stderr == "err\n"
    assert completed.elapsed > 0


def test_a_signal_is_not_an_exit_code(tmp_path: Path) -> None:
    completed = python(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert completed.exit_code is None
    assert completed.signal == signal.SIGTERM


def test_argv_is_never_a_shell_line(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    completed = run(
        ["echo", f"$(touch {marker}); touch {marker}"],
        cwd=tmp_path,
        timeout=30,
        env=clean_environment(tmp_path),
        limits=Limits(),
    )
    assert completed.stdout == f"$(touch {marker}); touch {marker}\n"
    assert not marker.exists()


def test_stdin_is_written_and_closed(tmp_path: Path) -> None:
    text = "é" * 500_000
    completed = python(tmp_path, "import sys; print(len(sys.stdin.read()))", stdin=text)
    assert completed.stdout == "500000\n"


def test_unread_input_is_no_error(tmp_path: Path) -> None:
    completed = python(tmp_path, "print('done')", stdin="x" * 1_000_000)
    assert (completed.exit_code, completed.stdout) == (0, "done\n")


def test_stdin_is_empty_by_default(tmp_path: Path) -> None:
    assert python(tmp_path, "import sys; print(repr(sys.stdin.read()))").stdout == "''\n"


@pytest.mark.parametrize("program", ["mulligan-no-such-program", "./nothing", "/no/such/file"])
def test_a_missing_program_is_a_verifier_error(tmp_path: Path, program: str) -> None:
    with pytest.raises(VerifierError, match="no such program"):
        run([program], cwd=tmp_path, timeout=5, env=clean_environment(tmp_path), limits=Limits())


def test_a_program_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(ProgramMissing, match="cannot be started"):
        run(["./script"], cwd=tmp_path, timeout=5, env=clean_environment(tmp_path), limits=Limits())


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match="directory"):
        run(
            ["true"],
            cwd=tmp_path / "gone",
            timeout=5,
            env=clean_environment(tmp_path),
            limits=Limits(),
        )


# -- remaining processes ---------------------------------------------------------------------------

#: Starts a sleeping child, tells its name to a file and continues. Its number is of no use outside
#: its process namespace, so that it is found by the seconds that it sleeps.
GRANDCHILD = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "{seconds}"], start_new_session={detached})
pathlib.Path("started").touch()
{then}
"""


def sleepers(seconds: str) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[-2:] == ["sleep", seconds]
    ]


@pytest.fixture
def seconds() -> str:
    """A time to sleep that no other process has."""
    return f"3600.{secrets.randbelow(10**9):09}"


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize(
    ("then", "timed_out"), [("sys.exit(0)", False), ("time.sleep(3600)", True)]
)
def test_grandchildren_die_with_the_program(
    tmp_path: Path, detached: bool, then: str, timed_out: bool, seconds: str
) -> None:
    """Also those that left the process group or hold the output open."""
    timeout = 3 if timed_out else 60
    code = GRANDCHILD.format(detached=detached, then=then, seconds=seconds)
    completed = python(tmp_path, code, timeout=timeout)
    assert completed.timed_out is timed_out
    assert (tmp_path / "started").exists()
    wait_for(lambda: not sleepers(seconds), "the end of the child")


def test_an_orphaned_daemon_dies_too(tmp_path: Path, seconds: str) -> None:
    completed = python(
        tmp_path,
        f"""
        import os, pathlib, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                pathlib.Path("started").touch()
                os.execvp("sleep", ["sleep", "{seconds}"])
            os._exit(0)
        os.wait()
        while not os.path.exists("started"):
            time.sleep(0.01)
        """,
    )
    assert completed.exit_code == 0
    wait_for(lambda: not sleepers(seconds), "the end of the daemon")


def test_a_timeout_keeps_what_was_printed(tmp_path: Path) -> None:
    completed = python(
        tmp_path, "import time; print('before', flush=True); time.sleep(3600)", timeout=3
    )
    assert completed.timed_out
    assert completed.signal == signal.SIGKILL
    assert completed.stdout == "before\n"


def test_ignoring_sigterm_does_not_help(tmp_path: Path) -> None:
    completed = python(
        tmp_path,
        """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(3600)
        """,
        timeout=2,
    )
    assert completed.timed_out


def test_the_program_ends_with_a_killed_worker(tmp_path: Path) -> None:
    """Given a program with a child in a session of its own and with an environment of its own,
    when its worker is killed with -9, then both end."""
    code = """if True:
        import sys
        from pathlib import Path
        from mulligan.workers.sandbox.limits import Limits
        from mulligan.workers.sandbox.subprocesses import clean_environment, run
        here = Path(sys.argv[1])
        argv = ["sh", "-c", "env -i setsid sleep 3600 & exec sleep 3600"]
        run(argv, cwd=here, timeout=3600, limits=Limits(), env=clean_environment(here))
        """
    worker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])

    def programs() -> list[int]:
        below = psutil.Process(worker.pid).children(recursive=True)
        with contextlib.suppress(psutil.NoSuchProcess):  # one has just ended
            return [process.pid for process in below if process.name() == "sleep"]
        return []

    found = wait_for(lambda: len(programs()) == 2 and programs(), "the program and its child")
    worker.kill()
    worker.wait()
    assert all(ends(pid) for pid in found)


def test_a_killed_launcher_leaves_nothing(tmp_path: Path, seconds: str) -> None:
    """Given a program with a child in a session of its own, when its launcher is killed, then the
    run ends at once, and so do both."""

    def kill_the_launcher() -> None:
        wait_for(lambda: len(sleepers(seconds)) == 2, "the program and its child")
        above = psutil.Process(sleepers(seconds)[0]).parents()
        (launcher,) = (each for each in above if each.ppid() == os.getpid())
        launcher.kill()

    killer = threading.Thread(target=kill_the_launcher)
    killer.start()
    completed = run(
        ["sh", "-c", f"setsid sleep {seconds} & sleep {seconds}"],
        cwd=tmp_path, timeout=60, limits=Limits(), env=clean_environment(tmp_path),
    )  # fmt: skip
    killer.join()
    assert (completed.signal, completed.timed_out) == (signal.SIGKILL, False)
    wait_for(lambda: not sleepers(seconds), "the end of both")


# -- output ----------------------------------------------------------------------------------------


def test_output_is_capped_while_it_is_read(tmp_path: Path) -> None:
    code = """
    import sys
    sys.stdout.write('begin')
    for _ in range(2_000):
        sys.stdout.write('x' * 10_000)
        sys.stderr.write('y' * 10_000)
    sys.stdout.write('end')
    """
    completed = python(tmp_path, code, max_output_bytes=4096)
    assert completed.exit_code == 0
    assert completed.stdout.startswith("begin")
    assert completed.stdout.endswith("end")
    assert "bytes left out" in completed.stdout
    assert len(completed.stdout) < 5000
    assert len(completed.stderr) < 5000


def test_the_limits_cap_output_by_default(tmp_path: Path) -> None:
    completed = python(tmp_path, "print('x' * 100_000)", limits=Limits(output_bytes=2048))
    assert len(completed.stdout) < 3000


def test_bytes_that_are_not_text_are_replaced(tmp_path: Path) -> None:
    completed = python(tmp_path, r"import sys; sys.stdout.buffer.write(b'a\xff\xfeb')")
    assert completed.stdout == "a��b"


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 25, 100])
def test_capped_output_keeps_both_ends(size: int) -> None:
    output = CappedOutput(10)
    data = bytes(range(size))
    for start in range(0, size, 7):
        output.add(data[start : start + 7])
    if size <= 10:
        assert output.text.encode() == data
    else:
        assert output.text.encode().startswith(data[:5])
        assert output.text.encode().endswith(data[-5:])
        assert f"{size - 10} bytes left out" in output.text


# -- limits ----------------------------------------------------------------------------------------


def test_processor_time_is_limited(tmp_path: Path) -> None:
    completed = python(tmp_path, "while True: pass", limits=Limits(cpu_seconds=1), timeout=120)
    assert completed.signal in (signal.SIGXCPU, signal.SIGKILL)
    assert not completed.timed_out


def test_memory_is_limited(tmp_path: Path) -> None:
    completed = python(tmp_path, "x = 'x' * (1 << 29)", limits=Limits(memory_bytes=256 << 20))
    assert completed.exit_code == 1
    assert "MemoryError" in completed.stderr


def test_the_size_of_files_is_limited(tmp_path: Path) -> None:
    code = "open('big', 'wb').write(b'x' * 100_000)"
    completed = python(tmp_path, code, limits=Limits(file_bytes=10_000))
    assert completed.exit_code != 0
    assert (tmp_path / "big").stat().st_size <= 10_000


def test_core_files_are_off_and_processes_are_limited(tmp_path: Path) -> None:
    code = """
    import resource as r
    print(r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_NPROC))
    """
    completed = python(tmp_path, code, limits=Limits(processes=5000))
    core, processes = completed.stdout.split(") (")
    assert core == "(0, 0"
    # The kernel counts all processes of the user, so that those are added.
    assert 5000 <= int(processes.partition(",")[0]) < 10_000


def test_limits_can_be_left_out(tmp_path: Path) -> None:
    limits = Limits(cpu_seconds=None, memory_bytes=None, file_bytes=None)
    assert python(tmp_path, "print(1)", limits=limits).stdout == "1\n"


def test_ignored_signals_are_not_inherited(tmp_path: Path) -> None:
    """A broken pipe ends a program as in a shell."""
    completed = run(
        ["sh", "-c", "kill -PIPE $$; echo survived"],
        cwd=tmp_path,
        timeout=30,
        env=clean_environment(tmp_path),
        limits=Limits(),
    )
    assert completed.signal == signal.SIGPIPE


# -- environment -----------------------------------------------------------------------------------


def test_the_environment_has_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets: Mapping[str, str] = {
        "OPENAI_API_KEY": "sk-secret",
        "MULLIGAN_BROKER_URL": "redis://:secret@host",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PYTHONPATH": "/secret",
        "LD_PRELOAD": "",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LC_TIME", "C")
    completed = python(tmp_path, "import os; print(sorted(os.environ))", env={"EXTRA": "1"})
    names = set(eval(completed.stdout))  # noqa: S307 - a list of names that the line above prints
    assert not names & set(secrets)
    assert names - {"LANG", "LANGUAGE", "TZ", "LC_ALL", "LC_CTYPE", "MULLIGAN_RUN", "PWD"} == {
        "EXTRA",
        "HOME",
        "LOGNAME",
        "USER",
        "LC_TIME",
        "PATH",
        "TMPDIR",
    }


def test_home_and_temporary_files_are_private(tmp_path: Path) -> None:
    env = clean_environment(tmp_path)
    assert Path(env["HOME"]).parent == tmp_path
    assert Path(env["TMPDIR"]).parent == tmp_path
    assert Path(env["TMPDIR"]).is_dir()


def test_only_the_given_descriptors_are_inherited(tmp_path: Path) -> None:
    passed, other = os.pipe(), os.pipe()
    os.set_inheritable(other[1], True)
    try:
        code = f"import os; os.write({passed[1]}, b'hello'); os.write({other[1]}, b'leak')"
        completed = python(tmp_path, code, pass_fds=(passed[1],))
        assert completed.exit_code == 1
        assert "Bad file descriptor" in completed.stderr
        assert os.read(passed[0], 100) == b"hello"
    finally:
        for fd in (*passed, *other):
            os.close(fd)


def test_a_worker_with_thousands_of_files_runs_programs(tmp_path: Path) -> None:
    """Given a worker whose next file has a number above 1024."""
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        env = clean_environment(tmp_path)
        done = run(["true"], cwd=tmp_path, timeout=60, env=env, limits=Limits())
    finally:
        for each in opened:
            os.close(each)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("mask", [0o077, 0o027])
def test_the_umask_of_a_worker_changes_nothing(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with private_directory(tmp_path / "copies") as work:
            env = clean_environment(work.parent)
            argv = [sys.executable, "-c", "open('x', 'x')"]
            done = run(argv, cwd=work, timeout=60, env=env, limits=Limits())
    finally:
        os.umask(before)
    assert done.exit_code == 0, done.stderr


def test_a_worker_without_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a user without an entry in the system's table, and no HOME."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert home_directory() == Path("~")
