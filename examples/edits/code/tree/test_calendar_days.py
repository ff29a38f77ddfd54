from calendar_days import days


def test_leap_years():
    assert [days(year, 2) for year in (1900, 2000, 2023, 2024)] == [28, 29, 28, 29]


def test_other_months():
    assert (days(2024, 1), days(2024, 4)) == (31, 30)
