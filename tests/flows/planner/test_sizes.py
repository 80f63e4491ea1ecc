"""What a lease takes by its size, of leases whose seconds follow from a formula."""

import random

import pytest

from flows.planner.sizes import Timed, fixed_tokens


def leases(h: float, rate: float, sizes: list[float], noise: float = 0.0) -> list[Timed]:
    draw = random.Random(str((h, rate)))
    return [Timed(n, rate * (h + n) * (1 + draw.uniform(-noise, noise))) for n in sizes]


@pytest.mark.parametrize("h", [1200.0, 2000.0, 9000.0])
def test_each_worker_has_its_own_where_its_leases_differ(h: float) -> None:
    sizes = [320.0, 640, 1300, 2500, 5000, 7500] * 4
    found = fixed_tokens({"gpu": leases(h, 1e-4, sizes, 0.03), "cpu": leases(h / 4, 1e-3, sizes)})
    assert found["gpu"] == pytest.approx(h, rel=0.25)
    assert found["cpu"] == pytest.approx(h / 4, rel=0.25)


def test_one_whose_leases_are_alike_is_taken_to_be_like_the_others() -> None:
    found = fixed_tokens({"told": leases(1000, 1e-3, [500.0, 4000]), "alike": leases(7, 1e-2, [300.0, 310, 320])})
    assert found["alike"] == found["told"] == pytest.approx(1000, rel=0.15)


def test_leases_that_are_all_alike_or_say_nothing_tell_nothing() -> None:
    assert fixed_tokens({"a": leases(1000, 1e-3, [300.0, 310, 320]), "b": [Timed(0, 1.0), Timed(0, 3.0)]}) == {
        "a": 0.0,
        "b": 0.0,
    }
    assert fixed_tokens({"a": []}) == {"a": 0.0}


def test_seconds_by_the_token_have_nothing_fixed() -> None:
    sizes = [100.0, 1000, 10000]
    assert fixed_tokens({"a": leases(0, 1e-3, sizes)})["a"] < 0.02 * min(sizes)
