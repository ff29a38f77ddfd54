"""`mulligan config show`: values, their origin, and no secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.cli_process import invoke

from mulligan.workers.settings.live_settings import LIVE
from mulligan.workers.settings.model import Settings

CONFIG = """
lease = 20
alert_window = 60
broker_url = "redis://me:hunter2@redis.example:6379/0"
ledger_url = "rediss://:hunter2@redis.example/0"

[runners.small]
kind = "openai"
base_url = "http://me:hunter2@model.example/v1?api_key=hunter2&v=1"
model = "small"
api_key_env = "MODEL_KEY"

[runners.agent]
kind = "command"
argv = ["agent"]
env = {AGENT_TOKEN = "hunter2", PLAIN = "shown", X_API_KEY = "hunter2"}

[[webhooks]]
url = "https://hooks.example/services/hunter2"
secret_env = "HOOK_SECRET"

[quotas.acme]
concurrency = 2
"""


def show(*argv: str, code: int = 0) -> str:
    return invoke("config", "show", *argv, code=code).output


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    Path("mulligan.toml").write_text(CONFIG)
    monkeypatch.setenv("MULLIGAN_ALERT_WINDOW", "30")
    monkeypatch.setenv("MULLIGAN_QUOTAS__OTHER__CONCURRENCY", "3")
    document = json.loads(show("--json"))
    assert document["file"] == "mulligan.toml"
    found: dict[str, Any] = document["settings"]
    return found


def test_every_setting_is_shown_with_its_origin(rows: dict[str, Any]) -> None:
    assert rows.keys() == Settings.model_fields.keys()
    expected = {
        "lease": (20, ["mulligan.toml"]),
        "alert_window": (30, ["MULLIGAN_ALERT_WINDOW"]),  # the file says 60
        "hard_limit": (3600, ["default"]),
        "blob_url": (None, ["default"]),
    }
    for name, (value, origin) in expected.items():
        assert (rows[name]["value"], rows[name]["from"]) == (value, origin)
    assert {name for name, row in rows.items() if row["read_again"]} == set(LIVE)


def test_a_table_may_have_several_origins(rows: dict[str, Any]) -> None:
    assert rows["quotas"]["from"] == ["MULLIGAN_QUOTAS__OTHER__CONCURRENCY", "mulligan.toml"]
    assert rows["quotas"]["value"]["acme"]["concurrency"] == 2
    assert rows["quotas"]["value"]["other"]["concurrency"] == 3


def test_only_secrets_are_masked(rows: dict[str, Any]) -> None:
    assert "hunter2" not in json.dumps(rows)
    assert rows["broker_url"]["value"] == "redis://me:***@redis.example:6379/0"
    assert rows["ledger_url"]["value"] == "rediss://:***@redis.example/0"
    small, agent = (rows["runners"]["value"][name] for name in ("small", "agent"))
    assert small["base_url"] == "http://me:***@model.example/v1?api_key=***&v=1"
    assert small["api_key_env"] == "MODEL_KEY"
    assert agent["env"] == {"AGENT_TOKEN": "***", "PLAIN": "shown", "X_API_KEY": "***"}
    (hook,) = rows["webhooks"]["value"]
    assert (hook["url"], hook["secret_env"]) == ("https://hooks.example/***", "HOOK_SECRET")
    assert rows["key_prefix"]["value"] == "mulligan"


def test_the_text_has_one_line_per_setting(rows: dict[str, Any]) -> None:
    lines = show().splitlines()
    assert len(lines) == len(rows)
    assert "hunter2" not in "".join(lines)
    (line,) = [line for line in lines if line.startswith("alert_window ")]
    assert line.split() == ["alert_window", "30.0", "(MULLIGAN_ALERT_WINDOW)"]


def test_a_broken_file_has_one_line_per_error() -> None:
    Path("mulligan.toml").write_text("leas = 3\nalert_window = -1\n")
    lines = show(code=2).splitlines()
    assert len(lines) == 2
    assert "there is no such setting" in "".join(lines)
