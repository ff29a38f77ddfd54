"""The overview's values: who is counted where, and who is told what."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from support import SettingsMaker
from web import ask

from mulligan.console.http.site import Site, open_site
from mulligan.console.overview import overview
from mulligan.workers.presence import Beat, Presence


@pytest.fixture
def site(settings: SettingsMaker) -> Iterator[Site]:
    opened = open_site(settings(allow_inline=True))
    yield opened
    opened.close()


def beat(site: Site, pool: str, *queues: str, active: int = 0, slots: int = 4) -> None:
    """A worker says that it is there."""
    said = Beat(name=f"{pool}@host", pool=pool, host="host", pid=1, slots=slots, active=active,
                queues=queues or (pool,))  # fmt: skip
    Presence(site.ledger.calls, site.settings.key_prefix, lambda: said).beat()


# -- what runs -------------------------------------------------------------------------------------


def test_what_runs_is_counted_once_though_a_worker_serves_two_queues(site: Site) -> None:
    beat(site, "control", "control", "mulligan.submit", active=1, slots=1)
    beat(site, "repair")
    beat(site, "attempt", "repair", "attempt", active=3, slots=16)
    beat(site, "verify", active=1)
    beat(site, "edit", "edit", "edit.host", slots=1)
    seen = overview(site)
    assert seen.running == 4
    assert {lane.name: (lane.active, lane.slots) for lane in seen.queues} == {
        "repair": (0, 4),
        "attempt": (3, 16),
        "verify": (1, 4),
        "edit": (0, 1),
        "control": (1, 1),
    }
    client = ask(site)
    for lane in seen.queues:
        told = client.get(f"/api/scale/{lane.name}").json()
        assert (told["active"], told["slots"]) == (lane.active, lane.slots), lane.name
    assert re.search(r"<span>4 running</span>", client.get("/").text)


@pytest.mark.parametrize(
    ("pool", "queues", "lane"),
    [
        ("work", ("repair", "verify", "attempt"), "attempt"),
        ("gpu", ("repair", "attempt"), "attempt"),
        ("slow", ("repair", "verify"), "verify"),
        ("quick", ("repair",), "repair"),
    ],
)
def test_a_pool_of_another_name_counts_where_most_of_its_work_is(
    site: Site, pool: str, queues: tuple[str, ...], lane: str
) -> None:
    beat(site, pool, *queues, active=2)
    seen = overview(site)
    assert {each.name: each.active for each in seen.queues if each.active} == {lane: 2}
    assert seen.running == 2
