import math

import pytest

from rl.learning.schedules import Decay, decayed


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_rate_that_decays_falls_from_all_to_almost_nothing(decay: Decay) -> None:
    shares = [decayed(decay, step, 10) for step in range(10)]
    assert shares[0] == 1
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 10
    assert 0 < shares[9] <= 0.1
    assert shares[5] == pytest.approx(0.5)
    assert decayed(decay, 25, 10) == shares[9]


def test_the_formulas() -> None:
    assert decayed("linear", 3, 12) == pytest.approx(0.75)
    assert decayed("cosine", 3, 12) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert {decayed("none", step, 10) for step in range(12)} == {1.0}
