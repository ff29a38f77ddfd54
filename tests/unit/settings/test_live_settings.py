"""Settings that a running process reads again."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from support.doubles import ManualClock

from mulligan.workers.settings.live_settings import LIVE, LiveExemptTypes, LiveSettings
from mulligan.workers.settings.model import Settings, load_settings
from mulligan.workers.settings.tenant_settings import ModelPrice, TenantQuota

FILE = Path("mulligan.toml")


def write(text: str) -> None:
    """Write the file with a later modification time, whatever the file system's resolution."""
    before = FILE.stat().st_mtime_ns if FILE.exists() else 0
    FILE.write_text(text)
    os.utime(FILE, ns=(before + 10**9, before + 10**9))


def started(text: str = "", **arguments: Any) -> tuple[LiveSettings, ManualClock]:
    """Return the live settings of a process that started with this file, and its clock."""
    if text:
        write(text)
    clock = ManualClock()
    return LiveSettings(load_settings(**arguments), clock=clock), clock


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("prices", "[prices.small]\nprompt = 2.5", {"small": ModelPrice(prompt=2.5)}),
        ("quotas", "[quotas.acme]\nconcurrency = 2", {"acme": TenantQuota(concurrency=2)}),
        ("exempt_task_types", 'exempt_task_types = ["chat"]', frozenset({"chat"})),
        ("report_labels", 'report_labels = ["team"]', frozenset({"team"})),
        ("alert_window", 'alert_window = "1m"', 60.0),
        ("webhook_tries", "webhook_tries = 2", 2),
    ],
)
def test_a_change_applies_within_ten_seconds(name: str, text: str, value: Any) -> None:
    live, clock = started("lease = 20")
    before = live.current()
    write(f"lease = 20\n{text}")
    assert live.current() is before, "the file is not read for every attempt"
    clock.now += 6
    assert getattr(live.current(), name) == value


def test_webhooks_can_be_removed() -> None:
    live, clock = started('[[webhooks]]\nurl = "http://a.example/"')
    assert len(live.current().webhooks) == 1
    write("webhooks = []")
    clock.now += 6
    assert live.current().webhooks == ()


def test_only_live_settings_are_read_again() -> None:
    live, clock = started()
    before = {name: getattr(live.current(), name) for name in Settings.model_fields}
    write('lease = 99\nattempt_slots = 3\nalert_window = 1\nkey_prefix = "other"')
    clock.now += 6
    changed = {n for n in before if getattr(live.current(), n) != before[n]}
    assert changed == {"alert_window"}
    assert changed < set(LIVE)


def test_a_change_between_start_and_first_read_is_not_missed() -> None:
    live, _ = started("alert_window = 10")
    write("alert_window = 20")
    assert live.current().alert_window == 20


def test_environment_and_arguments_take_precedence_over_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MULLIGAN_ALERT_WINDOW", "7")
    live, clock = started("alert_window = 10", webhook_tries=5)
    write("alert_window = 20\nwebhook_tries = 6")
    clock.now += 6
    assert (live.current().alert_window, live.current().webhook_tries) == (7, 5)


@pytest.mark.parametrize("broken", ["alert_window = [", "alert_window = -1", "alert_windw = 3"])
def test_a_broken_file_changes_nothing_and_is_reported_once(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    live, clock = started("alert_window = 10\nwebhook_tries = 2")
    live.current()
    write(f"webhook_tries = 9\n{broken}")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            clock.now += 6
            assert (live.current().alert_window, live.current().webhook_tries) == (10, 2)
    assert len(caplog.records) == 1
    assert "the old values stay" in caplog.text
    write("alert_window = 30")
    clock.now += 6
    assert live.current().alert_window == 30


def test_a_missing_file_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    live, clock = started("alert_window = 10")
    live.current()
    FILE.unlink()
    for _ in range(3):
        clock.now += 6
        assert live.current().alert_window == 10
    assert caplog.text.count("was deleted") == 1
    write("alert_window = 30")
    clock.now += 6
    assert live.current().alert_window == 30


def test_a_new_file_is_read() -> None:
    live, clock = started()
    live.current()
    write("alert_window = 30")
    clock.now += 6
    assert live.current().alert_window == 30


def test_exempt_types_are_live() -> None:
    live, clock = started()
    exempt = LiveExemptTypes(live)
    assert set(exempt) == {"read_aloud", "benchmark"}
    write('exempt_task_types = ["chat"]')
    clock.now += 6
    assert set(exempt) == {"chat"}
