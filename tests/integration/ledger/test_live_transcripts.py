"""The last events of running attempts: bounded, and soon gone."""

from __future__ import annotations

from support.doubles import fake_ledger


def test_the_last_lines_are_kept_and_expire() -> None:
    live = fake_ledger().live_transcripts
    live.add("job", 1, [f"line {n}" for n in range(150)])
    live.add("job", 1, ["one more"])
    found = live.tail("job", 1)
    assert found[0] == "line 51"
    assert found[-1] == "one more"
    assert len(found) == 100
    assert live.tail("job", 2) == []


def test_long_lines_are_left_out() -> None:
    ledger = fake_ledger()
    ledger.live_transcripts.add("job", 1, ["x" * 5000, "short"])
    assert ledger.live_transcripts.tail("job", 1) == ["short"]
    (key,) = ledger.calls.run("KEYS", "*transcript*")
    assert 0 < ledger.calls.run("TTL", key) <= 900
