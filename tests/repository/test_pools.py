"""Every file that runs the pools runs those of workers/celery/broker/queues.py.

Add a new queue or pool there first. Then these tests, test_deploy.py and test_documents.py fail,
and each names the file and the change.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import flower.options  # noqa: F401 - it declares Flower's options to Tornado
import pytest
from support.deploy_files import KUBERNETES, compose, container, documents, of_kind, procfile
from tornado.options import options
from typer.main import get_command

from mulligan.console.cli.commands.worker import worker_command
from mulligan.console.cli.local_services import worker_services
from mulligan.console.cli.main import create_cli
from mulligan.workers.celery.broker.queues import (
    POOLS,
    QUEUES,
    REQUIRED_QUEUES,
    RUN_POOLS,
    SUBMIT_QUEUE,
    PoolSpec,
    main_queue,
    pools,
    required_queues,
)
from mulligan.workers.celery.factory import create_app
from mulligan.workers.settings.model import Settings, load_settings

DECLARED = "workers/celery/broker/queues.py"
#: The services beside the pools.
BESIDE = ("console", "flower")
SCALED = [pool.name for pool in POOLS if pool.scalable]
NAMES = [pool.name for pool in POOLS]


def differences(file: str, found: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """Return the changes that a file needs to have the declared names."""
    missing = [f"add {name} to {file}" for name in wanted if name not in found]
    extra = [f"remove {name} from {file}, or add it to {DECLARED}" for name in found
             if name not in wanted]  # fmt: skip
    return missing + extra


def same_command(file: str, pool: str, found: Sequence[str]) -> None:
    wanted = ["mulligan", "worker", pool]
    assert list(found) == wanted, f"{file}: {pool} must run `{shlex.join(wanted)}`"


# -- the declaration -------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [POOLS, RUN_POOLS], ids=["up", "run"])
def test_every_required_queue_has_a_pool(found: Sequence[PoolSpec]) -> None:
    served = {queue for pool in found for queue in pool.queues}
    unserved = [name for name in (*REQUIRED_QUEUES, SUBMIT_QUEUE) if name not in served]
    assert unserved == [], f"{DECLARED}: add them to a pool, or take them out of REQUIRED_QUEUES"


@pytest.mark.parametrize("pool", [*POOLS, *RUN_POOLS], ids=lambda pool: pool.name)
def test_a_pool_lists_its_queues_in_order_and_reads_existing_settings(
    pool: PoolSpec,
) -> None:
    order = (*QUEUES, SUBMIT_QUEUE)
    assert list(pool.queues) == sorted(pool.queues, key=order.index)
    names = [*pool.slots, *([f"{pool.size_setting}_max"] if pool.scalable else [])]
    missing = [name for name in names if name not in Settings.model_fields]
    assert missing == [], f"add these to workers/settings/: the pool {pool.name} is sized by them"


@pytest.mark.parametrize(
    ("served", "main"),
    [
        (("repair", "attempt"), "attempt"),
        (("repair", "verify", "attempt"), "attempt"),
        (("repair", "verify"), "verify"),
        (("agent.repair", "agent"), "agent"),
        (("repair", "agent.repair", "verify", "attempt", "agent"), "attempt"),
        (("control", "loop", "mulligan.submit"), "control"),
        (("celery",), None),
    ],
)
def test_the_main_queue_is_the_one_with_most_of_the_work(
    served: tuple[str, ...], main: str | None
) -> None:
    assert main_queue(served) == main


@pytest.mark.parametrize("found", [POOLS, RUN_POOLS], ids=["up", "run"])
def test_agents_have_workers_and_are_required_only_if_a_profile_or_a_loop_uses_them(
    found: Sequence[PoolSpec],
) -> None:
    agents = {"coder": {"kind": "scripted", "answers": ["{}"], "pool": "agent"}}
    wanted = set(required_queues(Settings(runners=agents)))
    assert wanted - set(required_queues(Settings())) == {"agent.repair", "agent"}
    loops = set(required_queues(Settings(), loops=True))
    assert loops - set(required_queues(Settings())) == {"agent.repair", "agent", "loop"}
    assert wanted <= {queue for pool in found for queue in pool.queues}


# -- the files -------------------------------------------------------------------------------------


def variable(pool: str) -> str:
    """Return the variable for the size of a scalable pool."""
    (setting,) = (each.size_setting for each in POOLS if each.name == pool)
    return f"MULLIGAN_{setting.upper()}"


SIZES: list[dict[str, str]] = [
    {},
    {"MULLIGAN_ATTEMPT_SLOTS": "3", "MULLIGAN_REPAIR_SLOTS_MAX": "9"},
    {f"{variable(name)}_MAX": "64" for name in SCALED},
]


@pytest.mark.parametrize("sizes", SIZES, ids=["default", "some", "processes"])
def test_worker_runs_the_command_that_up_starts(
    monkeypatch: pytest.MonkeyPatch, sizes: dict[str, str]
) -> None:
    """With the sizes of the environment, and with the largest numbers of processes, too."""
    for name, value in sizes.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    services = worker_services(settings, create_app(settings))
    assert {each.name: each.argv for each in services} == {
        name: worker_command(name) for name in NAMES
    }
    for name in SCALED:
        size = ["-P", "threads", "-c"]
        if f"{variable(name)}_MAX" in sizes:
            least = getattr(settings, variable(name).removeprefix("MULLIGAN_").lower())
            size = ["-P", "prefork", f"--autoscale={sizes[f'{variable(name)}_MAX']},{least}"]
        place = worker_command(name).index("-P")
        assert worker_command(name)[place : place + len(size)] == size


def test_sizes_in_the_configuration_file_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mulligan.toml").write_text("attempt_slots = 5\nattempt_slots_max = 7\n")
    monkeypatch.chdir(tmp_path)
    assert "--autoscale=7,5" in worker_command("attempt")


def test_the_procfile_runs_the_pools() -> None:
    lines = procfile()
    assert differences("Procfile", lines, [*NAMES, *BESIDE]) == []
    for name in NAMES:
        program, *argv = shlex.split(lines[name])
        assert program == "exec", f"Procfile: {name} must replace its shell, which gets the signals"
        same_command("Procfile", name, argv)
    assert "--address=127.0.0.1" in lines["flower"]
    assert "--read_only=True" in lines["flower"]
    assert "FLOWER_BASIC_AUTH:?" in lines["flower"]


def test_compose_runs_the_pools() -> None:
    services = compose()["services"]
    wanted = [*NAMES, *BESIDE, "ledger", "broker"]
    assert differences("docker-compose.yml", services, wanted) == []
    for name in NAMES:
        same_command("docker-compose.yml", name, shlex.split(services[name]["command"]))
        probe = services[name]["healthcheck"]["test"]
        wanted_probe = ["CMD", "mulligan", "probe", name]
        assert probe == wanted_probe, f"docker-compose.yml: the probe of {name}"


def test_compose_passes_the_sizes_on() -> None:
    """A container has only the variables that the file names; those without a value are passed."""
    services = compose()["services"]
    for name in SCALED:
        for size in (variable(name), f"{variable(name)}_MAX"):
            environment = services[name]["environment"]
            assert environment.get(size, "absent") is None, f"docker-compose.yml: {size}"


def command_lines() -> Iterator[Any]:
    """Yield every command of the files that run processes, with its place."""
    for name, line in procfile().items():
        words = shlex.split(line)
        yield pytest.param(words[words.index("exec") + 1 :], id=f"Procfile:{name}")
    for name, service in compose()["services"].items():
        if name not in ("ledger", "broker"):
            yield pytest.param(shlex.split(service["command"]), id=f"compose:{name}")
    for name in of_kind("Deployment"):
        yield pytest.param(list(container(name)["command"]), id=f"kubernetes:{name}")


@pytest.mark.parametrize("argv", list(command_lines()))
def test_every_command_can_be_parsed(argv: list[str]) -> None:
    program, *arguments = argv
    if program == "celery":
        assert argv[1:5] == ["-A", "mulligan.workers.app", "--quiet", "flower"]
        for option in argv[5:]:
            assert option.removeprefix("--").partition("=")[0] in options, option
        return
    assert program == "mulligan"
    group: Any = get_command(create_cli())
    context = group.make_context(program, arguments)
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, rest, parent=context)


def test_kubernetes_runs_the_pools() -> None:
    deployments = of_kind("Deployment")
    assert differences("deploy/kubernetes/", deployments, [*NAMES, *BESIDE]) == []
    (root,) = documents(KUBERNETES / "kustomization.yaml")
    for pool in POOLS:
        file = f"deploy/kubernetes/{pool.name}.yaml"
        assert f"{pool.name}.yaml" in root["resources"], f"add {file} to kustomization.yaml"
        same_command(file, pool.name, container(pool.name)["command"])
    configured = tomllib.loads(of_kind("ConfigMap")["mulligan"]["data"]["mulligan.toml"])
    assert pools(Settings(**configured))


def test_keda_and_disruption_budgets_cover_the_scalable_pools() -> None:
    scaling, disruption = "deploy/kubernetes/scaling.yaml", "deploy/kubernetes/disruption.yaml"
    assert differences(scaling, of_kind("ScaledObject"), SCALED) == []
    assert differences(disruption, of_kind("PodDisruptionBudget"), [*SCALED, "console"]) == []
