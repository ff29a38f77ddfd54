"""Names of settings are stable in mulligan.toml, the environment and `Settings(...)`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from mulligan.workers.settings.model import Settings

#: Every setting with its default, as in JSON. A name here never changes its meaning; a new
#: setting is added, an old one needs a note in CHANGELOG.md.
DEFAULTS: dict[str, Any] = {
    "broker_url": None,
    "ledger_url": None,
    "home": ".mulligan",
    "embedded_hung_after": 30.0,
    "key_prefix": "mulligan",
    "partitions": None,
    "lease": 30.0,
    "hard_limit": 3600.0,
    "max_claims": 2,
    "verifier_tries": 3,
    "outbox_grace": 1.0,
    "publish_tries": 5,
    "republish_after": 60.0,
    "sweep_interval": 1.0,
    "sweep_limit": 500,
    "stale_after": 259200.0,
    "retention": 604800.0,
    "cycle_retention": 34560000.0,
    "cycles_cap": 200000,
    "events_cap": 100000,
    "memory_cap": 1000,
    "prompt_cap": 1000000,
    "answer_cap": 4000000,
    "workspace_cap": 20000000,
    "message_cap": 20000000,
    "blob_url": None,
    "exempt_task_types": ["benchmark", "read_aloud"],
    "on_done": [],
    "allow_inline": False,
    "runners": {},
    "commands": {},
    "workspaces": {},
    "default_runner": None,
    "model_modules": [],
    "runner_timeout": 300.0,
    "sandbox": "auto",
    "unsafe_sandbox": False,
    "sandbox_read": [],
    "stuck": {},
    "stuck_actions": {},
    "submit_patience": 5.0,
    "worker_patience": 600.0,
    "backoff_base": 1.0,
    "backoff_cap": 60.0,
    "attempt_slots": 16,
    "repair_slots": 4,
    "verify_slots": max(1, os.cpu_count() or 1),
    "agent_slots": 8,
    "agent_repair_slots": 2,
    "agent_slots_max": None,
    "agent_repair_slots_max": None,
    "attempt_slots_max": None,
    "repair_slots_max": None,
    "verify_slots_max": None,
    "scale_quiet": 60.0,
    "task_events": True,
    "flower_port": 5555,
    "console_host": "127.0.0.1",
    "console_port": 8700,
    "console_url": None,
    "request_cap": 5000000,
    "rate_limit": 1200,
    "listeners_cap": 200,
    "listeners_per_caller": 50,
    "connections_cap": 500,
    "head_timeout": 10.0,
    "body_timeout": 60.0,
    "flower_url": None,
    "runbook_url": None,
    "tenant_label": "tenant",
    "quotas": {},
    "prices": {},
    "report_labels": [],
    "stats_retention": 5184000.0,
    "webhooks": [],
    "alert_window": 900.0,
    "webhook_tries": 8,
    "escalations_cap": 100000,
    "edit_tiers": {},
    "formatters": {},
    "loop_branches": ["mulligan/**"],
    "loop_slots": 8,
    "loop_ageing": 600.0,
    "lock_ttl": 600.0,
    "loop_drafter": None,
    "loop_templates": None,
    "repositories": {},
    "repository_cache": "~/.cache/mulligan",
    "repository_cache_cap": 21474836480,
    "save_interval": 60.0,
    "work_retention": 1209600.0,
    "external_lease": 1800.0,
    "guard_window": 5400.0,
    "guard_loops": 2,
    "guard_share": 0.25,
    "guard_subjects": False,
    "guard_jobs": False,
}
#: Values other than the defaults, as the environment has them.
OTHERS: dict[str, tuple[str, Any]] = {
    "broker_url": ("redis://other/1", "redis://other/1"),
    "lease": ("45s", 45.0),
    "attempt_slots": ("3", 3),
    "guard_share": ("0.5", 0.5),
    "runners": ('{"small": {"kind": "local"}}', {"small": {"kind": "local"}}),
    "report_labels": ('["team"]', frozenset({"team"})),
}


def test_every_name_and_default_is_unchanged() -> None:
    found = Settings().model_dump(mode="json")
    assert {name: _plain(value) for name, value in found.items()} == DEFAULTS


def _plain(value: Any) -> Any:
    """Sort lists, because sets have no order."""
    return sorted(value) if isinstance(value, list) else value


@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_is_read_from_arguments_and_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, value = OTHERS[name]
    monkeypatch.setenv(f"MULLIGAN_{name.upper()}", text)
    assert getattr(Settings(), name) == value
    monkeypatch.delenv(f"MULLIGAN_{name.upper()}")
    assert getattr(Settings(**{name: value}), name) == value


def test_no_setting_has_another_name_in_the_environment() -> None:
    source = Settings.model_config
    assert (source["env_prefix"], source.get("alias_generator")) == ("MULLIGAN_", None)
    assert all(field.validation_alias is None for field in Settings.model_fields.values())


def test_where_outcomes_may_go_names_a_task_and_a_queue() -> None:
    with pytest.raises(ValueError, match=r"use task@queue, such as .*, not 'shop'"):
        Settings(on_done=frozenset({"shop"}))
    assert Settings(on_done=frozenset({"shop.*@shop", "*"})).on_done
