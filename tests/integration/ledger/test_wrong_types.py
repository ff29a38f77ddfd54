"""A key that all steps use and that has another type is named, by the sweep and by `doctor`."""

from __future__ import annotations

import pytest
import redis
from support.ledger_scenario import ScenarioMaker

from mulligan.console.cli.doctor_checks import check_ledger
from mulligan.tasks.ports.errors import LedgerRefused
from mulligan.workers.ledger import keys
from mulligan.workers.ledger.redis_ledger import RedisLedger


@pytest.mark.parametrize("name", ["paused", "leases", "outbox", "stale"])
def test_the_sweep_and_doctor_name_a_key_of_another_type(
    new_redis_scenario: ScenarioMaker, redis_client: redis.Redis, name: str
) -> None:
    scenario = new_redis_scenario()
    scenario.submit()
    assert isinstance(scenario.ledger, RedisLedger)
    assert scenario.ledger.wrong_types() == []
    key = f"mulligan:{{p00}}:{name}"
    redis_client.delete(key)
    redis_client.set(key, "of another program")
    scenario.advance(scenario.settings.outbox_grace + 1)  # the sweep asks whether it is paused
    with pytest.raises(LedgerRefused, match=f"the key mulligan:.p00.:{name} is a string instead"):
        scenario.sweep()
    checks = check_ledger(scenario.ledger, scenario.settings, expected=False)
    failed = [check.said for check in checks if check.status == "fail"]
    assert any(said.startswith(f"the key {key} is a string") for said in failed)


def test_every_fixed_key_of_the_table_is_known() -> None:
    found = keys.shared_types("mulligan", 2)
    assert found["mulligan:{p01}:outbox:entries"] == "hash"
    assert found["mulligan:{fleet}:tokens"] == "hash"
    assert not any("<" in name for name in found)
    assert len(found) > 50
