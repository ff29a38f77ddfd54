"""The graduated response: which step follows when, once each, and how an incident ends."""

from __future__ import annotations

from mulligan.policies.loops.health import Condition
from mulligan.policies.loops.incident import Incident, incidents_from_json, incidents_to_json
from mulligan.policies.loops.response import MOST_INCIDENTS, RESPONSE, LoopResponse, respond

NOW = 100_000.0
SILENT = Condition(signal="progress", item="a", since=NOW - 300, text="a: no sign of progress")
HOUR = 3600.0


def taken(
    until: float, *, every: float = 10.0, may_halt: bool = True
) -> list[tuple[str, int, float]]:
    """Look every few seconds, and return each step with its severity and its time."""
    found: list[tuple[str, int, float]] = []
    incidents: tuple[Incident, ...] = ()
    at = 0.0
    while at <= until:
        response = respond(incidents, [SILENT], may_halt=may_halt, now=NOW + at)
        found += [(each.step, each.severity, at) for each in response.alarms]
        incidents = response.incidents
        at += every
    return found


def test_every_step_is_taken_once_at_its_time() -> None:
    assert taken(24 * HOUR) == [
        ("log", 1, 0),
        ("notify", 2, 60),
        ("alert", 3, 300),
        ("escalate", 4, 900),
        ("escalate", 5, 900 + 4 * HOUR),  # stale for 4 h
        ("escalate", 6, 900 + 8 * HOUR),  # and again: at most twice
        ("halt", 7, 900 + 12 * HOUR),
    ]


def test_a_loop_that_may_not_escalate_by_itself_is_never_halted() -> None:
    assert taken(48 * HOUR, every=60.0, may_halt=False)[-1][0] == "escalate"


def test_a_monitor_that_was_away_takes_one_step_at_a_time() -> None:
    begun = respond((), [SILENT], may_halt=True, now=NOW).incidents
    later = respond(begun, [SILENT], may_halt=True, now=NOW + 20 * HOUR)
    assert [each.step for each in later.alarms] == ["notify"]
    again = respond(later.incidents, [SILENT], may_halt=True, now=NOW + 20 * HOUR + 10)
    assert again == LoopResponse(incidents=later.incidents)


def test_an_incident_ends_with_its_condition_and_says_so() -> None:
    begun = respond((), [SILENT], may_halt=True, now=NOW).incidents
    ended = respond(begun, [], may_halt=True, now=NOW + 20)
    assert ended.incidents == ()
    (alarm,) = ended.alarms
    assert (alarm.step, alarm.item, alarm.severity) == ("ended", "a", 1)
    assert alarm.text == "over after 5 min: a: no sign of progress"
    assert respond((), [], may_halt=True, now=NOW) == LoopResponse()


def test_incidents_are_independent_and_bounded() -> None:
    other = Condition(signal="lease", item="b", since=NOW, text="b: lost")
    begun = respond((), [SILENT], may_halt=True, now=NOW).incidents
    both = respond(begun, [SILENT, other], may_halt=True, now=NOW + 60)
    assert [(each.step, each.item) for each in both.alarms] == [("notify", "a"), ("log", "b")]
    many = [Condition(signal="lease", item=str(n), since=NOW, text="x" * 999) for n in range(50)]
    kept = respond((), many, may_halt=True, now=NOW)
    assert len(kept.incidents) == len(kept.alarms) == MOST_INCIDENTS
    assert max(len(each.text) for each in kept.incidents) == 300


def test_a_halt_says_why() -> None:
    last = Incident(signal="progress", item="a", since=0.0, steps=len(RESPONSE) - 1)
    assert respond([last], [SILENT], may_halt=True, now=NOW).halts == "a: no sign of progress"
    assert respond([last], [SILENT], may_halt=False, now=NOW).halts == ""


def test_incidents_are_read_as_they_were_written() -> None:
    begun = respond((), [SILENT], may_halt=True, now=NOW).incidents
    assert incidents_from_json(incidents_to_json(begun)) == begun
    assert incidents_to_json(()) == ""
    for damaged in ("", "{", "[1]", '[{"later": 1}]', "7"):
        assert incidents_from_json(damaged) == ()
