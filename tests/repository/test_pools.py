"""Every file that runs the pools runs those of workers/celery/broker/queues.py.

Add a new queue or pool there first. Then these tests, test_deploy.py and test_documents.py fail,
and each names the file and the change.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Sequence

import pytest
from support.deploy_files import KUBERNETES, compose, container, documents, of_kind, procfile

from mulligan.console.cli.local_services import worker_services
from mulligan.workers.celery.broker.queues import (
    POOLS,
    QUEUES,
    REQUIRED_QUEUES,
    RUN_POOLS,
    SUBMIT_QUEUE,
    PoolSpec,
    main_queue,
    pools,
)
from mulligan.workers.celery.factory import create_app
from mulligan.workers.settings.model import Settings

DECLARED = "workers/celery/broker/queues.py"
#: The services beside the pools.
BESIDE = ("console", "flower")
SCALED = [pool.name for pool in POOLS if pool.scalable]
NAMES = [pool.name for pool in POOLS]
SLOTS = "N"


def commands() -> dict[str, list[str]]:
    """Return the command of each pool, without the number of slots."""
    return {pool.name: without_slots(pool.argv()[2:]) for pool in pools(Settings())}


def without_slots(argv: Sequence[str]) -> list[str]:
    place = [*argv].index("-c") + 1
    return [*argv[:place], SLOTS, *argv[place + 1 :]]


def differences(file: str, found: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """Return the changes that a file needs to have the declared names."""
    missing = [f"add {name} to {file}" for name in wanted if name not in found]
    extra = [f"remove {name} from {file}, or add it to {DECLARED}" for name in found
             if name not in wanted]  # fmt: skip
    return missing + extra


def same_command(file: str, pool: str, found: Sequence[str]) -> None:
    wanted = commands()[pool]
    assert without_slots(found) == wanted, f"{file}: {pool} must run `{shlex.join(wanted)}`"


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
    names = [*pool.slots, *([f"{pool.name}_slots_max"] if pool.scalable else [])]
    missing = [name for name in names if name not in Settings.model_fields]
    assert missing == [], f"add these to workers/settings/: the pool {pool.name} is sized by them"


@pytest.mark.parametrize(
    ("served", "main"),
    [
        (("repair", "attempt"), "attempt"),
        (("repair", "verify", "attempt"), "attempt"),
        (("repair", "verify"), "verify"),
        (("control", "mulligan.submit"), "control"),
        (("celery",), None),
    ],
)
def test_the_main_queue_is_the_one_with_most_of_the_work(
    served: tuple[str, ...], main: str | None
) -> None:
    assert main_queue(served) == main


# -- the files -------------------------------------------------------------------------------------


def test_up_starts_the_pools() -> None:
    settings = Settings()
    services = worker_services(settings, create_app(settings))
    assert {service.name: without_slots(service.argv[2:]) for service in services} == commands()


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
        probe = services[name]["healthcheck"]["test"][1]
        assert f"-d {name}@$$HOSTNAME" in probe, f"docker-compose.yml: the probe of {name}"


@pytest.mark.parametrize("file", ["Procfile", "docker-compose.yml"])
def test_slots_are_read_from_the_settings_variables(file: str) -> None:
    settings = Settings()
    services = compose()["services"]
    lines = procfile() if file == "Procfile" else {n: str(s.get("command"))
                                                   for n, s in services.items()}  # fmt: skip
    for pool in POOLS:
        assert pool.name in lines, f"add {pool.name} to {file}"
        argv = shlex.split(lines[pool.name])
        slots = argv[argv.index("-c") + 1]
        if not pool.scalable:
            assert slots == "1", f"{file}: {pool.name} has one slot"
            continue
        variable = f"MULLIGAN_{pool.name.upper()}_SLOTS"
        found = re.fullmatch(rf"\$\{{{variable}:-(.+)\}}", slots)
        assert found, f"{file}: -c of {pool.name} must read {variable}"
        fixed = Settings.model_fields[pool.slots[0]].default_factory is None
        if fixed:  # each file has another notation for the number of processors
            assert found[1] == str(getattr(settings, pool.slots[0])), f"{file}: {variable}"


def test_kubernetes_runs_the_pools() -> None:
    deployments = of_kind("Deployment")
    assert differences("deploy/kubernetes/", deployments, [*NAMES, *BESIDE]) == []
    configured = tomllib.loads(of_kind("ConfigMap")["mulligan"]["data"]["mulligan.toml"])
    sizes = {pool.name: pool.slots for pool in pools(Settings(**configured))}
    (root,) = documents(KUBERNETES / "kustomization.yaml")
    for pool in POOLS:
        file = f"deploy/kubernetes/{pool.name}.yaml"
        assert f"{pool.name}.yaml" in root["resources"], f"add {file} to kustomization.yaml"
        same_command(file, pool.name, container(pool.name)["command"])
        argv = container(pool.name)["command"]
        assert argv[argv.index("-c") + 1] == str(sizes[pool.name]), f"{file}: -c"


def test_keda_and_disruption_budgets_cover_the_scalable_pools() -> None:
    scaling, disruption = "deploy/kubernetes/scaling.yaml", "deploy/kubernetes/disruption.yaml"
    assert differences(scaling, of_kind("ScaledObject"), SCALED) == []
    assert differences(disruption, of_kind("PodDisruptionBudget"), [*SCALED, "console"]) == []
