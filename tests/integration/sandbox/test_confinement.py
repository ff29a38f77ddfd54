"""What is allowed to programs, and what happens where they cannot be confined."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from mulligan.console.cli import doctor_checks
from mulligan.console.cli.doctor_checks import check_host
from mulligan.policies.jobs.job import Message, Output, VerifierSpec
from mulligan.tasks.ports.errors import BadInput, RunnerError
from mulligan.tasks.ports.runners import Request
from mulligan.tasks.ports.verifiers import Candidate
from mulligan.workers.admission.intake import resolve_command
from mulligan.workers.runners.command import CommandRunner
from mulligan.workers.sandbox import control_groups, isolation
from mulligan.workers.sandbox.allowed import program_limits
from mulligan.workers.sandbox.confinement import Confinement
from mulligan.workers.sandbox.isolation import NotConfined
from mulligan.workers.sandbox.limits import Limits
from mulligan.workers.sandbox.private import private_directory
from mulligan.workers.sandbox.programs import ProgramMissing
from mulligan.workers.sandbox.subprocesses import clean_environment, isolation_of, run
from mulligan.workers.sandbox.surroundings import LAUNCHER
from mulligan.workers.settings.model import Settings
from mulligan.workers.verifiers.command_subprocess import CommandSubprocess

UNSAFE = Limits(confinement=Confinement(unsafe=True))


@pytest.fixture
def nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer without bubblewrap and without Landlock."""
    monkeypatch.setattr(isolation, "_why_no_bubblewrap", lambda: "not installed")
    monkeypatch.setattr(isolation, "_why_no_landlock", lambda: "not in this kernel")
    monkeypatch.setattr(isolation, "_found", {})


def verify(limits: Limits) -> dict[str, object]:
    verifier = CommandSubprocess(CommandSubprocess.Options(argv=("true",)), limits=limits)
    return dict(verifier.verify(Candidate(output=Output(text="x"), text="x")).evidence)


@pytest.mark.usefixtures("nothing_works")
def test_nothing_is_run_that_cannot_be_confined() -> None:
    with pytest.raises(NotConfined, match="bubblewrap: not installed; landlock: not in this ker"):
        verify(Limits())
    runner = CommandRunner.from_options({"argv": ["true"]})
    with pytest.raises(RunnerError, match="unsafe_sandbox = true") as caught:
        runner.answer(Request(messages=(Message(role="user", content="x"),)))
    assert caught.value.final


@pytest.mark.usefixtures("nothing_works")
def test_the_operator_can_allow_it_and_records_say_so() -> None:
    assert verify(UNSAFE)["isolation"] == ["no_new_privs", "rlimits"]


@pytest.mark.usefixtures("nothing_works")
@pytest.mark.parametrize(("unsafe", "status"), [(False, "fail"), (True, "warn")])
def test_doctor_says_that_nothing_confines(unsafe: bool, status: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, unsafe_sandbox=unsafe)
    (check,) = (each for each in check_host(settings) if each.name == "isolation")
    assert check.status == status
    assert "not in this kernel" in check.fix


def test_doctor_names_the_layers(tmp_path: Path) -> None:
    checks = [each for each in check_host(Settings(home=tmp_path)) if each.name == "isolation"]
    assert "seccomp" in checks[0].said
    assert checks[0].said.split(",")[0].split()[0] in ("bubblewrap", "landlock")


def test_doctor_finds_packages_without_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[str]:
        checks = check_host(Settings(home=tmp_path))
        return [each.fix for each in checks if each.name == "bytecode"]

    source = tmp_path / "site-packages" / "_pytest" / "__init__.py"
    spec = spec_from_file_location("_pytest", source)
    monkeypatch.setattr(doctor_checks, "find_spec", lambda _: spec)
    (source.parent / "__pycache__").mkdir(parents=True)
    source.touch()
    assert [fix.rpartition("/")[2] for fix in found()] == ["site-packages"]
    py_compile.compile(str(source))
    assert found() == []


def test_the_way_that_the_operator_names_is_used(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, sandbox="landlock")
    confinement = program_limits(settings).confinement
    assert isolation_of(confinement).layers[0].startswith("landlock")


def test_of_a_tool_elsewhere_only_its_file_is_seen(tmp_path: Path) -> None:
    """Given a script in a directory that programs cannot see, then it runs, and what it needs
    beside it has to be allowed."""
    tool = tmp_path / "tools" / "checker"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho checked; cat {tool.parent}/rules\n")
    tool.chmod(0o755)
    (tool.parent / "rules").write_text("rules\n")
    work = tmp_path / "work"
    work.mkdir()
    env = {**clean_environment(work), "PATH": f"{tool.parent}:{os.environ['PATH']}"}

    def check(limits: Limits) -> str:
        return run(["checker"], cwd=work, timeout=60, env=env, limits=limits).stdout

    assert check(Limits()) == "checked\n"
    allowed = Limits(confinement=Confinement(read=(tool.parent,)))
    assert check(allowed) == "checked\nrules\n"


def test_an_interpreter_elsewhere_is_named(tmp_path: Path) -> None:
    interpreter = tmp_path / "tools" / "sh"
    interpreter.parent.mkdir()
    interpreter.symlink_to("/bin/sh")
    script = tmp_path / "work" / "script"
    script.parent.mkdir()
    script.write_text(f"#!{interpreter}\n")
    script.chmod(0o755)
    env = clean_environment(script.parent)
    with pytest.raises(ProgramMissing, match="sandbox_read"):
        run(["./script"], cwd=script.parent, timeout=60, env=env, limits=Limits())


def test_this_python_is_found_before_a_shim_in_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "home" / "shims" / "python3"
    shim.parent.mkdir(parents=True)
    shim.write_text("#!/bin/sh\necho a shim\n")
    shim.chmod(0o755)
    script = tmp_path / "work" / "script"
    script.parent.mkdir()
    script.write_text("#!/usr/bin/env python3\nimport sys\nprint(sys.prefix)\n")
    script.chmod(0o755)
    beside = str(Path(sys.executable).parent)
    others = [each for each in os.environ["PATH"].split(":") if each != beside]
    monkeypatch.setenv("PATH", ":".join([str(shim.parent), *others]))
    env = clean_environment(script.parent)
    done = run(["./script"], cwd=script.parent, timeout=60, env=env, limits=Limits())
    assert done.stdout == f"{sys.prefix}\n"
    # Where PATH has it, PATH decides.
    monkeypatch.setenv("PATH", f"/usr/bin:{beside}")
    assert clean_environment(tmp_path)["PATH"].startswith("/usr/bin:")


def test_no_job_opens_a_network() -> None:
    commands = {"check": {"argv": ["true"]}, "online": {"argv": ["true"], "network": ["a.io:443"]}}
    settings = Settings(commands=commands)
    for options in ({"command": "check", "network": ["b.io:443"]}, {"network": ["b.io:443"]}):
        spec = VerifierSpec.model_validate({"id": "command.subprocess", **options})
        with pytest.raises(BadInput, match="network"):
            resolve_command(spec, settings)
    spec = VerifierSpec.model_validate({"id": "command.subprocess", "command": "online"})
    assert resolve_command(spec, settings).options["network"] == ["a.io:443"]


@pytest.mark.parametrize(
    "place", ["10.0.0.1:80", "host", "host:0", "a:99999", "https://a.io", "*:443", "[::1]:80"]
)
def test_a_place_is_a_name_and_a_port(place: str) -> None:
    with pytest.raises(BadInput, match=r"network.*is not a host and a port, such as api\.example"):
        CommandRunner.from_options({"argv": ["true"], "network": [place]})


def test_landlock_gives_no_network() -> None:
    """It knows ports, not hosts, so that a list of hosts would mean nothing."""
    options = {"argv": ["true"], "network": ["a.io:443"]}
    runner = CommandRunner.from_options(options, confinement=Confinement(kind="landlock"))
    with pytest.raises(RunnerError, match="can only be confined by bubblewrap"):
        runner.answer(Request(messages=(Message(role="user", content="x"),)))


def test_the_broker_the_ledger_and_the_console_are_never_reached() -> None:
    settings = Settings(
        broker_url="amqp://u:p@rabbit:5679//", ledger_url="redis://redis/1", console_port=8701
    )
    never = program_limits(settings).confinement.never
    assert never == ("127.0.0.1:8701", "rabbit:5679", "redis:6379")


def test_unified_groups_are_used_where_they_have_limits(tmp_path: Path) -> None:
    """Given a group with processes in it, then the one above is used if it limits its groups."""
    own = tmp_path / "service" / "workers"
    own.mkdir(parents=True)
    for folder, controllers in ((own, ""), (own.parent, "cpu memory pids")):
        (folder / "cgroup.subtree_control").write_text(controllers)
    found = tuple(control_groups._writable(["0::/service/workers"], tmp_path))
    assert found == (("unified", own.parent),)
    limits = Limits(total_memory_bytes=1 << 30, processes=9)
    assert control_groups.groups_for(limits, found) == [
        (str(own.parent), {"memory.max": "1073741824", "memory.swap.max": "0", "pids.max": "9"})
    ]


def test_a_process_starts_in_a_group_of_the_second_version() -> None:
    mounts = Path("/proc/mounts").read_text().splitlines()
    mounted = [line.split()[1] for line in mounts if "cgroup2" in line]
    if not mounted or not os.access(mounted[0], os.W_OK):
        pytest.skip("no group can be made here")
    group = Path(mounted[0]) / f"mulligan-test-{os.getpid()}"
    group.mkdir()
    code = f"""
import os, sys
sys.path.insert(0, {str(LAUNCHER.parent)!r})
from launcher import usage
pid, to_join = usage.fork_into([{str(group)!r}])
if pid == 0:
    with open("/proc/self/cgroup") as file:
        print(file.read())
    sys.stdout.flush()
    os._exit(7)
assert to_join == []
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    try:
        done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    finally:
        group.rmdir()
    assert done.returncode == 7, done.stderr
    assert f"0::/{group.name}\n" in done.stdout


def test_processes_that_know_secrets_are_hidden() -> None:
    """Given a starting worker and the command line, then neither can be dumped or read."""
    code = """
import ctypes, json, types
from celery import signals
from mulligan.workers.celery.factory import create_app
from mulligan.workers.settings.model import Settings
dumpable = lambda: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
before = dumpable()
app = create_app(Settings(broker_url="redis://127.0.0.1:1/0"))
signals.celeryd_init.send(sender="x", instance=types.SimpleNamespace(app=app), conf=app.conf)
print(json.dumps([before, dumpable()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [1, 0]


def test_a_home_directory_in_a_path_is_the_workers_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Confinement.model_validate({"read": ["~/bin"]}).read == (tmp_path / "bin",)


@pytest.mark.skipif(os.getuid() != 0, reason="only root's programs run as another user")
@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_what_only_root_may_read_is_named(tmp_path: Path, kind: str, mode: int) -> None:
    """Given a directory that the profile lets a program read, when only root may enter it, then the
    program is not started, and the message names the directory."""
    tools = tmp_path / "tools"
    tools.mkdir()
    tools.chmod(mode)
    (tools / "data").write_text("found")
    confinement = Confinement.model_validate({"kind": kind, "read": [tools]})
    with private_directory() as work:
        env, limits = clean_environment(work.parent), Limits(confinement=confinement)
        argv = ["cat", str(tools / "data")]
        if mode == 0o755:
            assert run(argv, cwd=work, timeout=60, env=env, limits=limits).stdout == "found"
        else:
            with pytest.raises(ProgramMissing, match=f"{tools} can be read by root only"):
                run(argv, cwd=work, timeout=60, env=env, limits=limits)


@pytest.mark.parametrize("argument", ["\0", "\ud800", "x" * 200_000])
def test_an_argument_that_no_program_can_have(argument: str, tmp_path: Path) -> None:
    env = clean_environment(tmp_path)
    with pytest.raises(ProgramMissing, match="cannot be started"):
        run(["true", argument], cwd=tmp_path, timeout=60, env=env, limits=Limits())
