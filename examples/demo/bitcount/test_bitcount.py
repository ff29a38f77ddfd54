import pytest
from bitcount import bitcount


@pytest.mark.parametrize(("n", "expected"), [(0, 0), (1, 1), (5, 2), (8, 1), (255, 8)])
def test_bitcount(n: int, expected: int) -> None:
    assert bitcount(n) == expected
