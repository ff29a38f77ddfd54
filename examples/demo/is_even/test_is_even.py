import pytest
from is_even import is_even


@pytest.mark.parametrize(("n", "expected"), [(0, True), (1, False), (10, True), (-3, False)])
def test_is_even(n: int, expected: bool) -> None:
    assert is_even(n) is expected
