"""Code under test tries to get out, under bubblewrap and under Landlock, as root and as a user.

Each escape is a program. It prints ``ESCAPED`` and how, and the test fails; a program that cannot
be run at all fails, too, because it prints nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.waiting import wait_for

from mulligan.workers.local.embedded_redis import EmbeddedRedis
from mulligan.workers.sandbox import control_groups, isolation, subprocesses, surroundings
from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.isolation import Isolation, NotConfined
from mulligan.workers.sandbox.launcher.confine import landlock_version
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.subprocesses import Completed, clean_environment, isolation_of, run


def why_not(kind: Any) -> str:
    try:
        isolation_of(Confinement(kind=kind))
    except NotConfined as error:
        return str(error)
    return ""


@pytest.fixture(params=["bubblewrap", "landlock"])
def confinement(request: pytest.FixtureRequest) -> Confinement:
    problem = why_not(request.param)
    if problem and not os.environ.get("CI"):
        pytest.skip(problem)
    assert not problem
    return Confinement(kind=request.param)


def attack(confinement: Confinement, code: str, *arguments: str, **options: Any) -> Completed:
    """Run a program under test in a private directory, as verifiers do."""
    limits = options.pop("limits", Limits()).model_copy(update={"confinement": confinement})
    with private_directory() as work:
        return run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *arguments],
            cwd=work,
            timeout=options.pop("timeout", 60),
            env=clean_environment(work.parent),
            limits=limits,
            **options,
        )


def prevented(completed: Completed) -> None:
    """The program ran to its end and did not get out."""
    said = completed.stdout + completed.stderr
    assert "ESCAPED" not in said, said
    assert "prevented" in completed.stdout, said


#: Every escape prints one of two words. `attempt` runs a function that must fail.
PRELUDE = """
import ctypes, os, signal, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)

def attempt(what, call):
    try:
        found = call()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print("prevented:", what, error)
    else:
        print("ESCAPED:", what, found)

def system_call(*arguments):
    result = libc.syscall(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""


# -- secrets and other processes -------------------------------------------------------------------


def test_no_other_process_can_be_read(
    confinement: Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a worker with a key in its environment and its memory, then neither can be read."""
    monkeypatch.setenv("MODEL_KEY", "sk-4711")
    code = """
    worker = int(sys.argv[1])
    pids = {worker, os.getppid(), 1, *range(max(1, worker - 50), worker + 50)} - {os.getpid()}
    for pid in pids:
        for name in ("environ", "mem", "maps", "root/etc/passwd", "cwd/pyproject.toml", "fd/0"):
            def read(pid=pid, name=name):
                data = open(f"/proc/{pid}/{name}", "rb").read(4096)
                # Process 1 is bubblewrap's, in the same namespaces and with the same files.
                if pid in (1, os.getppid()) and b"sk-4711" not in data:
                    raise OSError("nothing that is not known")
                return data
            attempt(f"{pid}/{name}", read)
    attempt("ptrace", lambda: system_call(101, 16, worker, 0, 0))
    attempt("process_vm_readv", lambda: system_call(310, worker, 0, 0, 0, 0, 0))
    attempt("pidfd", lambda: system_call(438, system_call(434, worker, 0), 0, 0))
    """
    prevented(attack(confinement, code, str(os.getpid())))


def test_no_other_process_can_be_signalled_or_slowed(confinement: Confinement) -> None:
    if confinement.kind == "landlock" and os.getuid() != 0 and landlock_version() < 6:
        pytest.skip("signals are confined from Linux 6.12 on")
    victim = subprocess.Popen(["sleep", "3600"])
    code = """
    for pid in map(int, sys.argv[1:]):
        attempt("kill", lambda: os.kill(pid, signal.SIGTERM))
        attempt("killpg", lambda: os.killpg(os.getpgid(pid), signal.SIGTERM))
        attempt("tgkill", lambda: system_call(234, pid, pid, 15))
        attempt("prlimit", lambda: __import__("resource").prlimit(pid, 7, (3, 3)))
        attempt("affinity", lambda: os.sched_setaffinity(pid, {0}))
        attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    with open(os.devnull) as file:
        pass
    try:
        os.setpriority(os.PRIO_USER, 0, 19)
    except OSError:
        print("prevented: PRIO_USER")
    """
    try:
        before = os.getpriority(os.PRIO_PROCESS, victim.pid)
        prevented(attack(confinement, code, str(victim.pid), str(os.getpid())))
        assert victim.poll() is None
        assert os.getpriority(os.PRIO_PROCESS, victim.pid) == before
    finally:
        victim.kill()
        victim.wait()


def test_a_program_has_no_powers(confinement: Confinement) -> None:
    code = """
    try:
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
    except OSError:
        status = {}
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        if int(status.get(name, "0"), 16):
            print("ESCAPED:", name, status[name])
    if libc.prctl(39, 0, 0, 0, 0) != 1:
        print("ESCAPED: new privileges are possible")
    attempt("unshare", lambda: system_call(272, 0x10000000))
    attempt("clone", lambda: system_call(56, 0x10000000 | 17, 0, 0, 0, 0))
    attempt("a thread with files of its own", lambda: system_call(56, 0x10900, 0, 0, 0, 0))
    attempt("mount", lambda: system_call(165, b"none", b"/", b"", 32 | 4096, None))
    attempt("remount", lambda: subprocess.run(["mount", "-o", "remount,rw", "/"], check=True,
        capture_output=True))
    attempt("chroot", lambda: os.chroot("."))
    attempt("setuid", lambda: os.setuid(0) if os.getuid() else open("/etc/shadow").read())
    attempt("bpf", lambda: system_call(321, 0, 0, 0))
    attempt("io_uring", lambda: system_call(425, 4, 0))
    attempt("keyring", lambda: system_call(250, 0, -3, 1))
    attempt("module", lambda: system_call(175, 0, 0, b""))
    attempt("32 bit", lambda: system_call(0x40000000 | 39))
    """
    prevented(attack(confinement, code))


# -- files -----------------------------------------------------------------------------------------


def test_nothing_outside_is_read_or_written(confinement: Confinement, tmp_path: Path) -> None:
    """Given a file of the worker's own user, then a program neither reads nor changes it."""
    target = tmp_path / "target"
    target.write_text("secret")
    target.chmod(0o644)
    tmp_path.chmod(0o755)
    before = (target.stat(), sorted(tmp_path.iterdir()))
    code = """
    target = sys.argv[1].removeprefix("path:")  # a path as an argument would be shown
    folder = os.path.dirname(target)
    attempt("read", lambda: open(target).read())
    attempt("write", lambda: open(target, "a").write("x"))
    attempt("list", lambda: os.listdir(folder))
    attempt("truncate", lambda: os.truncate(target, 0))
    attempt("unlink", lambda: os.unlink(target))
    attempt("rename", lambda: os.rename(target, target + "2"))
    attempt("link", lambda: os.link(target, "linked"))
    attempt("create", lambda: open(folder + "/new", "x"))
    attempt("mkdir", lambda: os.mkdir(folder + "/dir"))
    attempt("fifo", lambda: os.mkfifo(folder + "/fifo"))
    os.symlink(target, "link")
    attempt("symlink", lambda: open("link").read())
    attempt("handle", lambda: system_call(303, -100, target.encode(), 0, 0, 0))
    for call in (lambda: os.chmod(target, 0o777), lambda: os.utime(target, (1, 1)),
                 lambda: os.setxattr(target, "user.x", b"x"), lambda: os.chown(target, 0, 0)):
        try:
            call()
        except OSError:
            pass
    for name in ("/etc/shadow", "/root/.ssh", "/home", "/var/run",
                 "/run", "/var/lib", "/sys/kernel", "/proc/sys/kernel/core_pattern", "/proc/kcore"):
        attempt(name, lambda: os.listdir(name) if os.path.isdir(name) else open(name, "rb+"))
    for name in ("/usr/bin", "/usr/lib", sys.prefix, sys.base_prefix, "/etc", "/", "/dev"):
        attempt(f"write to {name}", lambda: open(f"{name}/mulligan-escape", "x"))
    """
    prevented(attack(confinement, code, f"path:{target}"))
    assert target.read_text() == "secret"
    after = target.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_uid) == (
        before[0].st_mode,
        before[0].st_mtime_ns,
        before[0].st_uid,
    )
    assert sorted(tmp_path.iterdir()) == before[1]


def test_a_file_that_may_be_read_keeps_its_attributes(
    confinement: Confinement, tmp_path: Path
) -> None:
    """Given a file that a program may open, and that belongs to the worker's user, then it changes
    neither the mode, the times nor the attributes of it."""
    target = tmp_path / "target"
    target.write_text("data")
    target.chmod(0o644)
    tmp_path.chmod(0o755)
    before = target.stat()
    code = """
    import fcntl
    fd = os.open(sys.argv[1], os.O_RDONLY)
    no_dump = (64).to_bytes(8, "little")
    for call in (
        lambda: os.fchmod(fd, 0),
        lambda: os.chmod(sys.argv[1], 0),
        lambda: os.chmod(f"/proc/self/fd/{fd}", 0),
        lambda: os.fchown(fd, -1, os.getgid()),
        lambda: os.utime(fd, (1, 1)),
        lambda: os.utime(sys.argv[1], (1, 1)),
        lambda: os.setxattr(fd, "user.x", b"x"),
        lambda: fcntl.ioctl(fd, 0x40086602, no_dump),
    ):
        try:
            call()
        except OSError:
            pass
    attempt("a lease", lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK))
    """
    prevented(attack(confinement, code, str(target)))
    after = target.stat()
    for name in ("st_mode", "st_mtime_ns", "st_uid", "st_gid", "st_ctime_ns"):
        assert getattr(after, name) == getattr(before, name), name
    assert os.listxattr(target) == []


def test_files_of_others_cannot_be_watched(confinement: Confinement, tmp_path: Path) -> None:
    code = """
    def watch():
        watched = libc.inotify_init1(0)
        if libc.inotify_add_watch(watched, sys.argv[1].removeprefix("path:").encode(), 0x100) < 0:
            raise OSError("it cannot be watched")
    attempt("inotify", watch)
    if sys.argv[2] == "landlock":  # elsewhere it has files of its own
        attempt("fanotify", lambda: system_call(300, 0x200, 0))
    """
    tmp_path.chmod(0o755)
    prevented(attack(confinement, code, f"path:{tmp_path}", confinement.kind))


@pytest.mark.skipif(os.getuid() != 0, reason="it needs root")
def test_root_has_no_powers_where_it_cannot_become_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why_not("landlock"):
        pytest.skip(why_not("landlock"))
    own = Isolation("landlock", other_user=False)
    monkeypatch.setitem(isolation._found, "landlock", own)
    landlock = Confinement(kind="landlock")
    test_a_program_has_no_powers(landlock)
    test_nothing_outside_is_read_or_written(landlock, tmp_path)
    test_no_other_process_can_be_read(landlock, monkeypatch)


@pytest.mark.skipif(os.getuid() != 0, reason="it needs root")
def test_bubblewrap_is_not_used_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its /proc has files that root may write without any powers, such as core_pattern."""
    if why_not("bubblewrap"):
        pytest.skip(why_not("bubblewrap"))
    tried: list[Isolation] = []

    def fails(each: Isolation) -> str:
        tried.append(each)
        return "it does not work"

    monkeypatch.setattr(isolation, "_found", {})
    with pytest.raises(NotConfined):
        isolation.find_isolation(Confinement(kind="bubblewrap"), fails)
    assert tried == [Isolation("bubblewrap", other_user=True)]


@pytest.mark.skipif(os.getuid() != 0, reason="it needs root")
def test_bubblewrap_takes_the_powers_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given that nothing before it took them, then a program has none."""
    if why_not("bubblewrap"):
        pytest.skip(why_not("bubblewrap"))
    made = surroundings.launcher_config
    with_powers = {"powerless": False, "uid": None}
    monkeypatch.setattr(subprocesses, "launcher_config", lambda *given: made(*given) | with_powers)
    test_a_program_has_no_powers(Confinement(kind="bubblewrap"))


def test_two_programs_cannot_see_each_other(confinement: Confinement) -> None:
    """Given a program that waits in its private copy, then another one cannot read that copy."""
    with private_directory() as other:
        (other / "answer.py").write_text("secret = 1")
        code = "attempt('copy', lambda: open(sys.argv[1] + '/answer.py').read())"
        prevented(attack(confinement, code, str(other)))


# -- sockets and networks --------------------------------------------------------------------------


@contextlib.contextmanager
def listening(family: int, kind: int, address: Any) -> Iterator[socket.socket]:
    with socket.socket(family, kind) as server:
        server.bind(address)
        if kind == socket.SOCK_STREAM:
            server.listen()
        yield server


def test_no_network_is_reached(confinement: Confinement) -> None:
    name = f"\0mulligan-{secrets.token_hex(8)}"
    with (
        listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)) as tcp,
        listening(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)) as udp,
        listening(socket.AF_UNIX, socket.SOCK_STREAM, name),
    ):
        udp.setblocking(False)
        code = """
        tcp, udp, name = int(sys.argv[1]), int(sys.argv[2]), "\\0" + sys.argv[3]
        attempt("tcp", lambda: socket.create_connection(("127.0.0.1", tcp), timeout=5))
        attempt("tcp6", lambda: socket.create_connection(("::1", tcp), timeout=5))
        attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect(name))
        attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
        attempt("netlink", lambda: socket.socket(16, socket.SOCK_RAW))
        attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
        attempt("packet", lambda: socket.socket(17, socket.SOCK_RAW))
        try:
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"leak", ("127.0.0.1", udp))
        except OSError:
            print("prevented: udp")
        """
        ports = (str(server.getsockname()[1]) for server in (tcp, udp))
        prevented(attack(confinement, code, *ports, name[1:]))
        with pytest.raises(BlockingIOError):
            udp.recv(10)


def test_the_embedded_ledger_is_not_reached(confinement: Confinement) -> None:
    """Given the embedded server, which is a socket that its user may open."""
    home = Path(tempfile.mkdtemp(prefix="ledger-", dir="/tmp"))  # a short path, for the socket
    code = """
    path = sys.argv[1]
    def talk():
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        client.sendall(b"PING\\r\\n")
        return client.recv(100)
    def pair():
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        one.connect(path)
    attempt("connect", talk)
    attempt("datagram pair", pair)
    """
    server = EmbeddedRedis(home)
    server.start()
    try:
        path = server.url.partition("://")[2].partition("?")[0]
        assert Path(path).is_socket()
        prevented(attack(confinement, code, path))
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


# -- limits of all processes together --------------------------------------------------------------


def test_a_fork_bomb_ends(confinement: Confinement) -> None:
    code = """
    import os, time
    made = 0
    try:
        while made < 5000:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            made += 1
    except OSError as error:
        print("prevented", error)
    else:
        print("ESCAPED", made)
    """
    completed = attack(confinement, code, limits=Limits(processes=50))
    prevented(completed)


def test_many_files_are_capped_together(confinement: Confinement) -> None:
    code = """
    for index in range(10_000):
        with open(f"file{index}", "wb") as file:
            file.write(b"x" * 1_000_000)
    print("ESCAPED")
    """
    completed = attack(confinement, code, limits=Limits(disk_bytes=20 << 20), timeout=60)
    assert "ESCAPED" not in completed.stdout
    assert completed.signal == signal.SIGKILL
    assert "wrote more than 20 MB of files" in completed.stderr


def test_open_files_are_capped_together(confinement: Confinement) -> None:
    """Given so many open files that looking at them would take minutes, then the program ends."""
    code = """
    import time
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        while True:
            os.dup(null)
    except OSError:
        pass
    for _ in range(150):
        if os.fork() == 0:
            break
    time.sleep(60)
    print("ESCAPED")
    """
    completed = attack(confinement, code, timeout=60)
    assert completed.signal == signal.SIGKILL, completed
    assert "had more than 16000 files open" in completed.stderr


def test_a_program_that_exceeds_a_limit_and_ends_is_no_success(confinement: Confinement) -> None:
    code = "os.posix_fallocate(os.open('file', os.O_CREAT | os.O_WRONLY), 0, 30 << 20)"
    completed = attack(confinement, code, limits=Limits(disk_bytes=20 << 20))
    assert (completed.exit_code, completed.signal) == (None, signal.SIGKILL)
    assert "wrote more than 20 MB of files" in completed.stderr


def test_buffers_of_sockets_count_as_memory(confinement: Confinement) -> None:
    code = """
    import time
    kept = []
    for _ in range(600):
        kept += socket.socketpair()
    before = kept[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    kept[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
    if kept[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) != before:
        print("ESCAPED: a buffer of another size")
    kept[0].setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not kept[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
        print("ESCAPED: an option that does nothing")
    print("prevented", flush=True)
    time.sleep(30)
    print("ESCAPED")
    """
    completed = attack(confinement, code, limits=Limits(total_memory_bytes=200 << 20))
    prevented(completed)
    assert "used more than 200 MB of memory" in completed.stderr


def test_memory_of_children_of_threads_counts(confinement: Confinement) -> None:
    code = """
    import threading, time
    def grow():
        child = os.fork()
        if child == 0:
            kept = b"x" * (300 << 20)
            time.sleep(3)
            os._exit(0)
        print("ESCAPED" if os.waitpid(child, 0)[1] == 0 else "prevented")
    thread = threading.Thread(target=grow)
    thread.start()
    thread.join()
    """
    completed = attack(confinement, code, limits=Limits(total_memory_bytes=200 << 20))
    assert "ESCAPED" not in completed.stdout
    assert "prevented" in completed.stdout or completed.signal == signal.SIGKILL, completed


def test_memory_is_capped_together(confinement: Confinement) -> None:
    code = """
    import os, time
    for _ in range(8):
        if os.fork() == 0:
            kept = bytearray(60 << 20)
            for page in range(0, len(kept), 4096):
                kept[page] = 1
            time.sleep(60)
            os._exit(0)
    alive = 0
    for _ in range(8):
        _, status = os.wait()
        alive += status == 0
    print("ESCAPED" if alive == 8 else "prevented")
    """
    limits = Limits(total_memory_bytes=200 << 20)
    completed = attack(confinement, code, limits=limits, timeout=120)
    assert "ESCAPED" not in completed.stdout
    assert not completed.timed_out


def test_a_program_whose_child_ran_out_of_memory_did_not_succeed(confinement: Confinement) -> None:
    """Given a control group, then the kernel ends the child at once, and nobody saw it grow."""
    if not control_groups.writable_groups():
        pytest.skip("no control group can be made here")
    code = """
    if os.fork() == 0:
        kept = b"x" * (400 << 20)
        os._exit(0)
    os.wait()
    """
    completed = attack(confinement, code, limits=Limits(total_memory_bytes=200 << 20))
    assert completed.signal == signal.SIGKILL
    assert "used more than 200 MB of memory" in completed.stderr


# -- deadlines -------------------------------------------------------------------------------------

#: Programs that do not want to end, or to be found.
STUBBORN = {
    "ignores signals": """
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        time.sleep(600)
        """,
    "a daemon holds the pipes": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
        time.sleep(600)
        """,
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "stops its group": "os.killpg(0, signal.SIGSTOP)",
    "forks for ever": """
        while True:
            if os.fork() == 0:
                os.setsid()
            time.sleep(0.01)
        """,
    "fills its descriptors": """
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            while True:
                os.dup(null)
        except OSError:
            pass
        for _ in range(45):
            if os.fork() == 0:
                break
        time.sleep(600)
        """,
    "writes for ever": "while True: os.write(1, b'x' * 65536)",
    "a daemon stays": """
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        os._exit(0)
        """,
}


@pytest.mark.parametrize("name", STUBBORN)
def test_a_deadline_holds(confinement: Confinement, name: str) -> None:
    """A program is ended at its deadline, and what it started with it."""
    read, write = os.pipe()
    marker = f"{secrets.randbelow(10**12):012}"
    code = f"import time; marker = '{marker}'\n" + textwrap.dedent(STUBBORN[name])
    options: dict[str, Any] = {"timeout": 1.5, "limits": Limits(processes=60)}
    try:
        completed = attack(confinement, code, pass_fds=(write,), **options)
    finally:
        os.close(write)
    # Nobody else holds the pipe that was passed: its reader sees the end.
    os.set_blocking(read, False)
    wait_for(lambda: _at_end(read), "the end of everything that held the pipe")
    os.close(read)
    assert completed.elapsed < 1.5 + 5
    assert _with_marker(marker) == []


def _at_end(fd: int) -> bool:
    try:
        return os.read(fd, 4096) == b""
    except BlockingIOError:
        return False


def test_a_storm_of_processes_ends(confinement: Confinement) -> None:
    """Given processes without the environment by which they could be found, then all end."""
    marker = f"{secrets.randbelow(10**12):012}"
    program = f"""#{marker}
import os
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
"""
    code = f"os.execve(sys.executable, [sys.executable, '-c', {program!r}], {{}})"
    attack(confinement, code, timeout=1, limits=Limits(processes=60))
    wait_for(lambda: not _with_marker(marker), "the end of the storm")


def test_a_long_chain_of_processes_ends(confinement: Confinement) -> None:
    marker = f"{secrets.randbelow(10**12):012}"
    code = f"""
    import os, time
    marker = "{marker}"
    for depth in range(400):
        if os.fork():
            time.sleep(600)
        os.setsid()
    time.sleep(600)
    """
    attack(confinement, code, timeout=2, limits=Limits(processes=600))
    wait_for(lambda: not _with_marker(marker), "the end of the chain")


def _with_marker(marker: str) -> list[str]:
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [line for line in lines if marker in line]


@pytest.mark.parametrize(
    "code",
    [
        "for _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')",
        "os.makedirs('a/b/c')\nopen('a/b/c/x', 'w').close()\n"
        "for p in ('a/b/c', 'a/b', 'a'):\n    fd = os.open(p, os.O_RDONLY)\n    os.fchmod(fd, 0)",
    ],
    ids=["deep", "closed"],
)
def test_a_copy_that_is_hard_to_remove_is_removed(confinement: Confinement, code: str) -> None:
    limits = Limits(confinement=confinement)
    with private_directory() as work:
        argv = [sys.executable, "-c", f"import os\n{code}"]
        env = clean_environment(work.parent)
        assert run(argv, cwd=work, timeout=60, env=env, limits=limits).exit_code == 0
    assert not work.parent.exists()


HIDDEN_FILES = {
    "without a name": """
        kept = []
        for index in range(30):
            kept.append(open(f"file{index}", "wb"))
            os.unlink(f"file{index}")
            kept[-1].write(b"x" * 3_000_000)
            kept[-1].flush()
        """,
    "too deep to be named": """
        for _ in range(30):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        for index in range(30):
            open(f"file{index}", "wb").write(b"x" * 3_000_000)
        """,
}


@pytest.mark.parametrize("how", HIDDEN_FILES)
def test_hidden_files_count(confinement: Confinement, how: str) -> None:
    code = textwrap.dedent(HIDDEN_FILES[how]) + "\nimport time; time.sleep(30); print('ESCAPED')"
    completed = attack(confinement, code, limits=Limits(disk_bytes=20 << 20))
    assert "ESCAPED" not in completed.stdout
    assert "wrote more than 20 MB of files" in completed.stderr


def test_memory_without_a_name_counts(confinement: Confinement) -> None:
    code = """
    import time
    for _ in range(12):
        os.write(os.memfd_create("x"), b"x" * (30 << 20))
    time.sleep(30)
    print("ESCAPED")
    """
    completed = attack(confinement, code, limits=Limits(total_memory_bytes=200 << 20))
    assert "ESCAPED" not in completed.stdout
    assert not completed.timed_out


# -- a network by profile --------------------------------------------------------------------------


def echo_server(stop: threading.Event) -> tuple[int, threading.Thread]:
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.1)

    def serve() -> None:
        with server:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(b"hello " + connection.recv(100))

    thread = threading.Thread(target=serve)
    thread.start()
    return server.getsockname()[1], thread


def test_a_listed_place_is_reached_and_no_other() -> None:
    if why_not("bubblewrap"):
        pytest.skip(why_not("bubblewrap"))
    stop = threading.Event()
    (port, one), (other, two), (forbidden, three) = (echo_server(stop) for _ in range(3))
    code = """
    port, other, forbidden = map(int, sys.argv[1:])
    client = socket.create_connection(("localhost", port), timeout=10)
    client.sendall(b"world")
    print(client.recv(100))
    attempt("another port", lambda: socket.create_connection(("127.0.0.1", other), timeout=5))
    def broker():
        client = socket.create_connection(("localhost", forbidden), timeout=5)
        client.sendall(b"x")
        found = client.recv(100)
        if not found:
            raise OSError("closed")
        return found
    attempt("the broker", broker)
    attempt("a name", lambda: socket.getaddrinfo("example.com", 443))
    """
    confinement = Confinement(
        kind="bubblewrap",
        network=(f"localhost:{port}", f"localhost:{forbidden}"),
        never=(f"127.0.0.1:{forbidden}",),
    )
    try:
        completed = attack(confinement, code, str(port), str(other), str(forbidden))
    finally:
        stop.set()
        for thread in (one, two, three):
            thread.join()
    assert "hello world" in completed.stdout, completed.stderr
    prevented(completed)
