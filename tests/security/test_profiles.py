"""What an operator's profile gives to an agent, and what it can never give."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_for

from mulligan.console.cli.doctor_checks import check_host
from mulligan.policies.jobs.job import Message
from mulligan.tasks.ports.errors import BadInput, RunnerError
from mulligan.tasks.ports.runners import Request
from mulligan.workers.runners.command import CommandRunner
from mulligan.workers.sandbox import home_files, isolation, network
from mulligan.workers.sandbox.allowed import program_limits
from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.isolation import NotConfined
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.network import Network
from mulligan.workers.sandbox.private import private_directory, user_of
from mulligan.workers.sandbox.programs import ProgramMissing
from mulligan.workers.sandbox.subprocesses import Completed, clean_environment, isolation_of, run
from mulligan.workers.sandbox.worker_paths import WorkerPaths
from mulligan.workers.settings.model import Settings


def require(kind: Any) -> None:
    try:
        isolation_of(Confinement(kind=kind))
    except NotConfined as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(params=["bubblewrap", "landlock"])
def kind(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of the worker's user, which everyone may enter. Its path is short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="h-") as above:
        folder = Path(above, "home")
        folder.mkdir()
        folder.chmod(0o755)
        monkeypatch.setenv("HOME", str(folder))
        yield folder


def agent(code: str, confinement: Confinement | None = None, **options: Any) -> CommandRunner:
    argv = [sys.executable, "-c", code]
    return CommandRunner.from_options(
        {"argv": argv, **options}, confinement=confinement or Confinement()
    )


def answer(runner: CommandRunner) -> str:
    return runner.answer(Request(messages=(Message(role="user", content="x"),))).text


def python(code: str, confinement: Confinement) -> Completed:
    with private_directory() as work:
        return run(
            [sys.executable, "-c", code],
            cwd=work,
            timeout=60,
            env=clean_environment(work.parent),
            limits=Limits(confinement=confinement),
        )


# -- variables -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "advice"),
    [("HOME", "home_files"), ("TMPDIR", "home_files"), ("PATH", "read"), ("MULLIGAN_X", "another")],
)
def test_variables_that_no_profile_passes_on(name: str, advice: str) -> None:
    with pytest.raises(BadInput, match=rf"env.*{name}.*{advice}"):
        CommandRunner.from_options({"argv": ["true"], "env": [name]})


def test_no_variable_changes_what_a_program_may_write(home: Path, tmp_path: Path) -> None:
    usual = clean_environment(tmp_path)
    extra = {"HOME": str(home), "TMPDIR": str(home), "PATH": str(home), "A": "1"}
    assert clean_environment(tmp_path, extra) == usual | {"A": "1"}


# -- what is never seen ----------------------------------------------------------------------------


@contextlib.contextmanager
def ledger_socket(folder: Path) -> Iterator[Path]:
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    path = folder / "redis.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o777)
        (folder / "ledger.aof").write_text("SECRET")
        yield path


LOOK = """
import os, socket, sys
for path in {paths!r}:
    print(os.path.isdir(path) and os.listdir(path))
    try:
        socket.socket(socket.AF_UNIX).connect(path + "/redis.sock"); print("CONNECTED")
    except OSError as error: print(error)
    try: print(open(path + "/ledger.aof").read())
    except OSError as error: print(error)
    try: open(path + "/new", "w"); print("WRITTEN")
    except OSError as error: print(error)
print("tool", open({tool!r}).read())
"""


@pytest.mark.parametrize("where", ["home", "ledger_url"])
@pytest.mark.parametrize("through", ["home", "link"])
def test_the_ledger_is_not_seen_in_a_directory_that_is(
    home: Path, kind: str, where: str, through: str
) -> None:
    """Given a profile with `read = ["~"]`, when the ledger's socket is there, then bubblewrap
    leaves its directory out, and under Landlock nothing is started."""
    (home / "tool").write_text("works")
    (home.parent / "link").symlink_to(home)
    folder = home / "data" / "mulligan"
    with ledger_socket(folder) as path:
        address = {"ledger_url": f"unix://{path}", "home": home / "none"}
        settings = Settings(**({"home": folder} if where == "home" else address), sandbox=kind)
        confinement = program_limits(settings).confinement
        read = home if through == "home" else home.parent / "link"
        code = LOOK.format(paths=[str(folder), str(read / "data/mulligan")], tool=f"{read}/tool")
        runner = agent(code, confinement, read=[str(read)])
        if kind == "landlock":
            with pytest.raises(RunnerError, match="name smaller directories"):
                answer(runner)
            return
        printed = answer(runner)
    assert "CONNECTED" not in printed
    assert "SECRET" not in printed
    assert "WRITTEN" not in printed
    assert printed.startswith("[]")
    assert printed.endswith("tool works\n")


def test_nothing_in_mulligans_home_can_be_named(home: Path, kind: str) -> None:
    secret = home / ".mulligan" / "ledger.aof"
    secret.parent.mkdir()
    secret.write_text("SECRET")
    settings = Settings(home=secret.parent, sandbox=kind)
    confinement = program_limits(settings).confinement
    with pytest.raises(RunnerError, match="cannot be shown to programs"):
        answer(agent("1", confinement, read=[str(secret.parent)]))
    argv = {"argv": ["cat", str(secret)]}
    runner = CommandRunner.from_options(argv, confinement=confinement)
    with pytest.raises(RunnerError, match="cannot be shown to programs"):
        answer(runner)


def test_a_socket_beside_files_of_others_is_left_out_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("bubblewrap")
    (home / "tool").write_text("works")
    path = home / "redis.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0o777)
        settings = Settings(broker_url=f"redis+socket://{path}", sandbox="bubblewrap")
        confinement = program_limits(settings).confinement
        assert confinement.never_read[1:] == (path,)
        code = LOOK.format(paths=[str(home)], tool=f"{home}/tool")
        printed = answer(agent(code, confinement, read=["~"]))
    assert "CONNECTED" not in printed
    assert "tool works" in printed


# -- copies of the worker's files ------------------------------------------------------------------


def test_an_agent_gets_copies_of_the_files_that_its_profile_names(home: Path, kind: str) -> None:
    (home / ".config/agent").mkdir(parents=True)
    (home / ".config/agent/login").write_text("logged in")
    (home / ".config/agent/login").chmod(0o600)
    (home / ".config/agent/link").symlink_to("login")
    (home / ".config/agent/out").symlink_to("/etc/passwd")
    (home / ".config/agent/loop").symlink_to("loop")
    (home / ".config/other").write_text("not named")
    (home / ".netrc").write_text("machine")
    code = """
import os, pathlib
home = pathlib.Path.home()
print(sorted(str(p.relative_to(home)) for p in home.rglob("*") if p.is_file()))
(home / ".config/agent/login").write_text("changed"); print((home / ".netrc").read_text())
"""
    names = [".config/agent", "~/.netrc"]
    printed = answer(agent(code, Confinement.model_validate({"kind": kind}), home_files=names))
    assert printed == "['.config/agent/link', '.config/agent/login', '.netrc']\nmachine\n"
    assert (home / ".config/agent/login").read_text() == "logged in"


def test_files_of_the_home_that_cannot_be_copied(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "out").symlink_to("/etc/passwd")
    os.mkfifo(home / "pipe")
    (home / "big").write_bytes(b"x" * 200)
    (home / ".config/mulligan").mkdir(parents=True)
    (home / ".config/mulligan/token").write_text("SECRET")
    monkeypatch.setattr(home_files, "_MOST_BYTES", 100)
    never = Confinement(never_read=(home / ".config/mulligan",))
    for name, problem in {
        "missing": "there is no missing",
        "out": "link out of the home",
        "pipe": "neither a regular file",
        "big": "more than",
        ".config": "token is a file of mulligan",
    }.items():
        with pytest.raises(RunnerError, match=problem):
            answer(agent("1", never, home_files=[name]))


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", ".", "", "~", ".mulligan/x"])
def test_names_that_are_no_files_of_the_home(name: str) -> None:
    with pytest.raises(BadInput, match="home_files"):
        CommandRunner.from_options({"argv": ["true"], "home_files": [name]})


@pytest.mark.parametrize(
    ("code", "is_hinted"),
    [
        ("open('/no/such/.agent')", True),
        ("import socket; socket.create_connection(('example.com', 443))", True),
        ("import sys; sys.exit('the tests fail')", False),
    ],
)
def test_a_failure_that_the_confinement_may_cause_says_so(code: str, is_hinted: bool) -> None:
    with pytest.raises(RunnerError) as caught:
        answer(agent(code))
    assert ("docs/runners.md#command" in str(caught.value)) == is_hinted
    assert "docs/runners.md" not in repr(caught.value.evidence)


# -- the interpreter of a script -------------------------------------------------------------------


@pytest.mark.parametrize("line", ["/usr/bin/env node", "/usr/bin/env -S node --flag"])
def test_an_interpreter_that_is_first_on_the_path_is_named(tmp_path: Path, line: str) -> None:
    """Given another one that is visible, then that is not used instead."""
    node = tmp_path / "versions" / "v22" / "bin" / "node"
    node.parent.mkdir(parents=True)
    node.write_text("#!/bin/sh\necho the right one\n")
    node.chmod(0o755)
    work = tmp_path / "private" / "work"
    work.mkdir(parents=True)
    script = work / "script"
    script.write_text(f"#!{line}\n")
    script.chmod(0o755)
    env = {**clean_environment(work.parent), "PATH": f"{node.parent}:/usr/bin:/bin"}
    prefix = node.parents[1]
    with pytest.raises(ProgramMissing, match=f"name {prefix} in sandbox_read"):
        run(["./script"], cwd=work, timeout=60, env=env, limits=Limits())
    limits = Limits(confinement=Confinement(read=(prefix,)))
    assert "right" in run(["./script"], cwd=work, timeout=60, env=env, limits=limits).stdout


def test_directories_that_the_worker_may_not_pass_are_passed_over(tmp_path: Path) -> None:
    """Given such directories on PATH, in an argument and in `read`, then a program still runs."""
    closed, work = tmp_path / "closed", tmp_path / "private" / "work"
    (closed / "bin").mkdir(parents=True)
    work.mkdir(parents=True)
    closed.chmod(0)
    env = clean_environment(work.parent)
    env["PATH"] = f"{closed / 'bin'}:{env['PATH']}"
    limits = Limits(confinement=Confinement(read=(closed / "bin" / "read",)))
    argv = ["true", str(closed / "bin" / "argument")]
    try:
        assert run(argv, cwd=work, timeout=60, env=env, limits=limits).exit_code == 0
    finally:
        closed.chmod(0o700)


def test_arguments_that_are_too_long_are_named(tmp_path: Path) -> None:
    env = clean_environment(tmp_path)
    with pytest.raises(ProgramMissing, match="too many or too long"):
        run(["true", "a" * 200_000], cwd=tmp_path, timeout=60, env=env, limits=Limits())


# -- connections -----------------------------------------------------------------------------------


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port that answers no attempt to connect: its queue is full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()[1]


CONNECT = """
import socket, time
kept = []
for _ in range(30):
    kept.append(socket.socket())
    kept[-1].setblocking(False)
    kept[-1].connect_ex(("127.0.0.1", {port}))
time.sleep(1)
"""


def test_places_with_the_usual_ports_are_opened() -> None:
    """Given a port below 1024, then the program can connect, and cannot make namespaces."""
    require("bubblewrap")
    code = """
import ctypes, os, socket
print(socket.create_connection(("api.example.com", 443), timeout=30).getpeername())
print(sorted(os.listdir("/dev")), open("/dev/null").read(), len(os.urandom(4)))
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x20000, 0x40000000):
    print(libc.unshare(flags), os.strerror(ctypes.get_errno()))
try: open("/dev/new", "w")
except OSError as error: print(error.strerror)
print([line for line in open("/proc/self/status") if line.startswith("CapEff")])
"""
    place = Confinement(kind="bubblewrap", network=("api.example.com:443",))
    done = python(code, place)
    assert done.stdout.splitlines() == [
        "('127.0.0.2', 443)",
        "['fd', 'full', 'null', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'urandom', 'zero']"
        "  4",
        *["-1 Operation not permitted"] * 3,
        "Read-only file system",
        r"['CapEff:\t0000000000000400\n']",
    ], done.stderr


def connections() -> int:
    return sum(each.name == "sandbox connection" for each in threading.enumerate())


def test_a_silent_host_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    require("bubblewrap")
    monkeypatch.setattr(network, "_CONNECT_SECONDS", 600.0)
    files = len(list(Path("/proc/self/fd").iterdir()))
    with silent_port() as port:
        place = Confinement(kind="bubblewrap", network=(f"localhost:{port}",))
        assert python(CONNECT.format(port=port), place).exit_code == 0
        wait_for(lambda: connections() == 0, "the end of the connections")
    assert len(list(Path("/proc/self/fd").iterdir())) <= files


@pytest.mark.parametrize("whose", ["program", "process"])
def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch, whose: str) -> None:
    if whose == "program":
        monkeypatch.setattr(network, "_MAX_CONNECTIONS", 3)
    else:
        monkeypatch.setattr(network, "_free_of_process", threading.BoundedSemaphore(3))
    gate, started = threading.Event(), threading.Semaphore(0)

    def wait(*_: object) -> None:
        started.release()
        gate.wait(60)

    monkeypatch.setattr(Network, "_pass_on", wait)
    open_network = Network(Confinement(network=("localhost:1",)))
    with contextlib.ExitStack() as stack:
        stack.callback(gate.set)
        ends = [socket.socketpair() for _ in range(4)]
        for ours, inside in ends:
            stack.enter_context(ours)
            open_network._start(inside, ("localhost", 1))
        for _ in range(3):
            assert started.acquire(timeout=30)
        assert [inside.fileno() == -1 for _, inside in ends] == [False, False, False, True]
    wait_for(lambda: connections() == 0, "the end of the connections")


def test_without_files_accepting_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a process without a file left, then it does not spin."""
    open_network = Network(Confinement(network=("localhost:1",)))
    pauses: list[float] = []

    class Listener(socket.socket):
        def accept(self) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 3:
            open_network._inside.close()
        return False

    monkeypatch.setattr(open_network._ended, "wait", pause)
    with Listener() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client.connect(listener.getsockname())
        open_network._accept_all([listener])
    assert len(pauses) == 3


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("169.254.169.254", "of the link"),
        ("fe80::1", "of the link"),
        ("::ffff:169.254.169.254", "of the link"),
        ("127.0.0.1", "name localhost"),
        ("::ffff:127.0.0.1", "name localhost"),
        ("192.0.2.7", "never allowed"),
        ("::ffff:192.0.2.7", "never allowed"),
        ("192.0.2.8", None),
    ],
)
def test_addresses_that_a_name_may_lead_to(
    monkeypatch: pytest.MonkeyPatch, address: str, problem: str | None
) -> None:
    found = {"api.example.com": address, "redis.example.com": "192.0.2.7"}
    monkeypatch.setattr(network, "_resolve", lambda place: [(found[place[0]], place[1])])
    confinement = Confinement(network=("api.example.com:443",), never=("redis.example.com:443",))
    place = ("api.example.com", 443)
    if problem is None:
        assert Network(confinement)._allowed(place) == [(address, 443)]
    else:
        with pytest.raises(OSError, match=problem):
            Network(confinement)._allowed(place)


# -- without bubblewrap ----------------------------------------------------------------------------


def test_what_is_confined_otherwise_is_not_run_unconfined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given `sandbox = "bubblewrap"` and `unsafe_sandbox`, when only Landlock works."""
    require("landlock")
    monkeypatch.setattr(isolation, "_why_no_bubblewrap", lambda: "not installed")
    monkeypatch.setattr(isolation, "_found", {})
    unsafe = Confinement(kind="bubblewrap", unsafe=True)
    assert isolation_of(unsafe).kind == "landlock"
    with pytest.raises(NotConfined, match=r'^set sandbox = "auto", or install bubblewrap'):
        isolation_of(Confinement(kind="bubblewrap"))


# -- the user of programs --------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="only root's programs run as another user")
def test_failures_of_different_users_are_the_same(kind: str) -> None:
    texts = set()
    for _ in range(3):
        with private_directory() as work:
            code = "import getpass, os; print(os.getuid(), f'uid={os.getuid()}', getpass.getuser())"
            done = run(
                [sys.executable, "-c", code],
                cwd=work,
                timeout=60,
                env=clean_environment(work.parent),
                limits=Limits(confinement=Confinement.model_validate({"kind": kind})),
            )
            assert str(user_of(work)) in done.stdout
            texts.add(WorkerPaths(work).clean(done.stdout))
    assert texts == {"<uid> uid=<uid> sandbox\n"}


# -- doctor ----------------------------------------------------------------------------------------


def said(settings: Settings, name: str = "profiles") -> list[str]:
    checks = [each for each in check_host(settings) if each.name == name]
    return [f"{each.status} {each.said}" for each in checks]


def test_doctor_reports_profiles_that_cannot_run_here(home: Path, kind: str) -> None:
    (home / ".mulligan").mkdir()
    profiles: dict[str, dict[str, Any]] = {
        "good": {"read": [str(home / "good")]},
        "hidden": {"read": [str(home / ".mulligan")]},
        "login": {"home_files": [".agent"]},
        "missing": {"argv": ["no-such-agent-4711"]},
        "nowhere": {"read": [str(home / "nowhere")]},
        "online": {"network": ["api.example.com:443"]},
        "workspace": {"argv": ["./agent"]},
    }
    (home / "good").mkdir()
    if os.getuid() == 0:
        (home / "closed").mkdir()
        (home / "closed").chmod(0o700)
        profiles["closed"] = {"read": [str(home / "closed")]}
    runners = {
        name: {"kind": "command", "argv": ["true"], **each} for name, each in profiles.items()
    }
    found = said(Settings(home=home / ".mulligan", sandbox=kind, runners=runners))
    online = kind == "bubblewrap"
    expected = {
        "closed": "root only",
        "hidden": "cannot be shown",
        "login": r"no .agent",
        "missing": "no such program",
        "nowhere": "there is no",
        **({} if online else {"online": "only be confined by bubblewrap"}),
    }
    reported = [name for name in expected if name in profiles]
    assert len(found) == len(reported) + 1
    for name, line in zip(reported, found, strict=False):
        assert line.startswith(f"warn [runners.{name}] cannot run here: "), line
        assert expected[name] in line
    assert found[-1] == f"ok good, {'online, ' * online}workspace"


def test_doctor_reports_what_programs_cannot_be_shown(home: Path, kind: str) -> None:
    (home / ".mulligan").mkdir()
    read = (home / "nowhere", home / ".mulligan")
    settings = Settings(home=home / ".mulligan", sandbox=kind, sandbox_read=read)
    found = said(settings, "isolation")
    assert found[0] == f"warn sandbox_read: there is no {read[0]}"
    assert found[1].startswith(f"fail sandbox_read: {read[1]} cannot be shown")
