"""Numbers and times for people. An unknown value is a dash, never 0."""

from __future__ import annotations

from datetime import UTC

import pytest

from mulligan.policies.figures import format as formatter


@pytest.mark.parametrize(
    "formatted",
    [
        formatter.number(None),
        formatter.count(None),
        formatter.percent(None),
        formatter.score(None),
        formatter.money(None),
        formatter.rate(None),
        formatter.duration(None),
        formatter.words(None),
    ],
)
def test_an_unknown_value_is_a_dash(formatted: str) -> None:
    assert formatted == "–"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (9120, "9,120"), (48_120, "48.1k"), (2.3e6, "2.3M"), (4e9, "4.0G")],
)
def test_a_large_count_is_abbreviated(value: float, expected: str) -> None:
    assert formatter.count(value) == expected


def test_a_number_is_never_abbreviated() -> None:
    assert formatter.number(48_120) == "48,120"


@pytest.mark.parametrize(
    ("n", "expected"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (2000, "2,000 jobs")]
)
def test_a_number_is_followed_by_its_noun(n: int, expected: str) -> None:
    assert formatter.counted(n, "job") == expected


def test_a_noun_may_have_an_irregular_plural() -> None:
    assert formatter.counted(2, "delivery", "deliveries") == "2 deliveries"


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "0%"), (1.0, "100%"), (0.037, "3.7%"), (0.61, "61%"), (0.9996, "99.9%"),
     (0.0002, "<0.1%"), (0.04, "4%")],
)  # fmt: skip
def test_a_share_is_never_rounded_to_all_or_nothing(share: float, expected: str) -> None:
    assert formatter.percent(share) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (-1, "0 s"), (0.0015, "1.5 ms"), (0.004, "4 ms"), (0.021, "21 ms"), (4.0, "4 s"),
     (4.2, "4.2 s"), (99, "99 s"), (180, "3 min"), (9000, "2.5 h"), (400_000, "5 d")],
)  # fmt: skip
def test_a_duration_has_a_fitting_unit(seconds: float, expected: str) -> None:
    assert formatter.duration(seconds) == expected


def test_a_score_is_rounded_down_so_that_it_never_looks_like_a_pass() -> None:
    assert formatter.score(69.9) == formatter.score(69.99999999999999) == "69"


@pytest.mark.parametrize(
    ("value", "expected"), [(0.2, "+0.200"), (-0.05, "−0.050"), (0.0001, "±0"), (-0.0001, "±0")]
)
def test_a_change_has_its_sign(value: float, expected: str) -> None:
    assert formatter.change(value) == expected


@pytest.mark.parametrize(
    ("amount", "expected"), [(0, "0.00"), (0.001, "0.0010"), (0.42, "0.42"), (1234.5, "1,234.50")]
)
def test_an_amount_has_two_digits_or_two_significant_ones(amount: float, expected: str) -> None:
    assert formatter.money(amount) == expected


@pytest.mark.parametrize(
    ("per_minute", "expected"), [(0, "0"), (0.25, "0.2"), (3.0, "3"), (12.3, "12")]
)
def test_a_small_rate_has_one_decimal(per_minute: float, expected: str) -> None:
    assert formatter.rate(per_minute) == expected


def test_a_timestamp_names_its_zone() -> None:
    assert formatter.timestamp(0, UTC) == "1970-01-01 00:00:00 UTC"


@pytest.mark.parametrize(("text", "expected"), [("abc", "abc"), ("abcd", "ab…")])
def test_a_long_text_is_shortened(text: str, expected: str) -> None:
    assert formatter.shortened(text, 3) == expected


@pytest.mark.parametrize(
    ("series", "shown"), [([], ""), ([0, 0], "▁▁"), ([0, 1, 2, 4], "▁▃▅█"), ([1] * 48, "█" * 24)]
)
def test_a_sparkline_has_at_most_24_bars(series: list[float], shown: str) -> None:
    assert formatter.sparkline(series) == shown


@pytest.mark.parametrize(
    ("formatted", "expected"),
    [
        (formatter.iso_time(1_794_864_245), "2026-11-16T21:24:05+00:00"),
        (formatter.iso_time(0.5, "milliseconds"), "1970-01-01T00:00:00.500+00:00"),
        (formatter.day(1_794_864_245), "2026-11-16"),
        (formatter.minute(1_794_864_245), "11-16 21:24"),
        (formatter.time_of_day(1_794_864_245), "21:24:05"),
    ],
)
def test_a_time_is_formatted_in_utc(formatted: str, expected: str) -> None:
    assert formatted == expected
