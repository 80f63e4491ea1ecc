"""Keys and values of older weights: which are computed again after a swap, and when."""

from collections.abc import Callable

import pytest

from rl.model.policy import Policy
from rl.sampling.engine import Engine
from rl.sampling.slots import Slots
from tests.rl.sampling.test_engine import check_same
from tests.rl.sampling.test_sampler import ARCHITECTURES
from tests.rl.sampling.test_swaps import LIMIT, Swaps, drawn, weights_of

Make = Callable[..., Policy]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions at which all keys were computed again, as it happens."""
    halts: list[int] = []
    halt = Engine._halt

    def noted(engine: Engine) -> None:
        if engine._rows is not None:
            halts.append(engine.version)
        halt(engine)

    monkeypatch.setattr(Engine, "_halt", noted)
    return halts


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("most", [2, None])
def test_keys_that_are_computed_again_with_the_same_weights_draw_the_same(
    most: int | None, name: str, make_policy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(name, eager=3.0)
    expected = drawn(policy, most=most)
    halts = counted(monkeypatch)
    check_same(drawn(policy, Swaps(policy, {3: (4, weights_of(policy))}), kv_versions=0, most=most), expected)
    assert len(halts) == 1


@pytest.mark.parametrize(
    ("kv_versions", "most", "expected"),
    [
        (0, None, [4, 5, 8]),
        (1, None, [5, 8]),
        (2, None, [8]),
        (5, None, []),
        (1, 4, [5, 8]),  # those that wait enter behind keys of their own version
    ],
)
def test_keys_are_computed_again_once_one_is_older_than_asked(
    kv_versions: int, most: int | None, expected: list[int], make_policy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    made = weights_of(policy)
    halts = counted(monkeypatch)
    drawn(policy, Swaps(policy, {2: (4, made), 4: (5, made), 6: (8, made)}), kv_versions=kv_versions, most=most)
    assert halts == expected


def test_who_has_entered_since_is_not_old(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first prompt's completions have left when the next swap comes."""
    policy = make_policy()
    made = weights_of(policy)
    halts = counted(monkeypatch)
    drawn(policy, Swaps(policy, {LIMIT - 1: (4, made), LIMIT + 2: (5, made)}), kv_versions=1, most=4)
    assert halts == []


def test_one_that_is_old_has_those_of_all_computed_again(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    made, halts = weights_of(policy), counted(monkeypatch)
    engine = Engine(policy, Slots(policy, most=2), version=3)
    for prompt, limit in (([7], 2), ([5, 9], LIMIT), ([7], LIMIT)):  # the last one enters once the first is over
        engine.add(prompt, limit)
    for version in (3, 4, 4, 5, 5):
        if version != engine.version:
            policy.load_weights(made)
            engine.swapped(version, 1)
        engine.step()
    assert halts == [5]
    (old, new) = engine.take_back()
    assert [old.versions.tolist(), new.versions.tolist()] == [[3, 4, 4, 5, 5], [4, 5, 5]]
