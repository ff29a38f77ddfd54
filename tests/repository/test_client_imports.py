"""Creating a client imports little, and invalid arguments are refused at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from celery import Celery

from mulligan import Client
from mulligan.tasks.ports.errors import BadInput
from mulligan.workers.services import app_services
from mulligan.workers.settings.model import load_settings


def test_creating_a_client_loads_no_heavy_package() -> None:
    code = """
import sys
from typing import Any
from mulligan import AsyncClient, Client
Client(); AsyncClient(); Client("redis://nowhere"); Client("http://nowhere", token="t")
heavy = {"celery", "kombu", "openai", "redis", "pydantic", "rich", "flower", "httpx2"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
print([name for name in sys.modules if name.startswith(("mulligan.workers", "mulligan.console"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_a_client_of_a_broker_loads_no_package_of_workers() -> None:
    """`python -m benchmarks.client_start` prints the seconds."""
    code = """
import sys
from mulligan import Client
try:
    Client("redis://127.0.0.1:9", submit_patience=0).cancel("p00-x")
except Exception as error:
    print(type(error).__name__)
heavy = {"celery", "kombu", "openai", "rich", "rapidfuzz", "jsonschema_rs", "fastapi", "httpx2"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
ours = ("mulligan.console", "mulligan.workers.runners", "mulligan.workers.verifiers")
print([name for name in sys.modules if name.startswith(ours)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["LedgerUnavailable", "[]", "[]"], done.stderr


def test_an_embedded_client_never_loads_celery_or_a_model_client() -> None:
    code = """
import sys
from typing import Any
from mulligan import Client
with Client() as client:
    runner = {"kind": "scripted", "answers": ["no", "{}"]}
    print(len(client.run("x", runner=runner, verifiers=["json.object"]).attempts))
print([m for m in sys.modules if m.partition(".")[0] in ("celery", "kombu", "openai", "rich")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "[]"], done.stderr


def test_a_client_of_a_console_never_loads_celery_or_redis() -> None:
    code = """
import sys
from typing import Any
from mulligan import Client
try:
    Client("http://127.0.0.1:9", submit_patience=0).cancel("p00-x")
except Exception as error:
    print(type(error).__name__)
heavy = ("celery", "kombu", "openai", "redis", "rich", "fastapi", "starlette")
print([m for m in sys.modules if m.partition(".")[0] in heavy])
print([m for m in sys.modules if m.startswith(("mulligan.console", "mulligan.workers.runners"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["LedgerUnavailable", "[]", "[]"], done.stderr


def test_a_broker_without_a_default_runner_needs_a_named_one() -> None:
    with Client("redis://127.0.0.1:1", submit_patience=0) as client:
        with pytest.raises(BadInput, match="name a profile of the workers"):
            client.submit("x", verifiers=["json.object"])
        with pytest.raises(BadInput, match="setting lease"):
            Client(lease="soon").submit("x")


def test_invalid_arguments_are_refused_at_once() -> None:
    with pytest.raises(BadInput, match=r"^workers: must be 1 or more"):
        Client(workers=0)
    with Client() as client:
        for one in ("abc", {"prompt": "abc"}):
            with pytest.raises(BadInput, match=r"^asks: must be a list; use submit\(\)"):
                client.submit_many(one, verifiers=["json.object"])


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ({"broker_url": "redis://localhost:secret"}, "^setting broker_url: its port"),
        (
            {"broker_url": "redis://a", "ledger_url": "redis://b:-1"},
            "^setting ledger_url: its po",
        ),
        ({"broker_url": "amqp://a"}, "^ledger_url: the broker is amqp; set a Redis"),
        (
            {"broker_url": "amqp://a", "ledger_url": "amqp://b"},
            "^setting ledger_url: the ledger",
        ),
    ],
)
def test_an_invalid_address_is_reported_with_its_setting(
    urls: dict[str, Any], message: str
) -> None:
    with Client(**urls) as client, pytest.raises(BadInput, match=message) as refused:
        client.cancel("p00-x")
    assert "secret" not in str(refused.value)
    with pytest.raises(BadInput, match=message):
        app_services(load_settings(**urls), Celery("mine", set_as_current=False))


def test_a_closed_client_refuses_calls() -> None:
    client = Client()
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="this client is closed"):
        client.cancel("p00-x")
