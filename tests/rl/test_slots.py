"""How many sequences are decoded at once, where memory is short."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rl import slots
from rl.model.memory import NoRoomError
from rl.model.policy import Policy
from rl.records import Problem
from rl.slots import GroupCache, Slots
from tests.rl.test_sampler import ARCHITECTURES, draw, same

Make = Callable[..., Policy]


@pytest.mark.parametrize("most", [1, 4, 7])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_budget_is_kept_and_changes_no_token(
    name: str, most: int, make_policy: Make, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(name, eager=5.0)
    free = draw(policy, problems)
    held: list[int] = []
    update = GroupCache.update

    def watched(cache: GroupCache, *given: Any, **named: Any) -> Any:
        found = update(cache, *given, **named)
        held.append(cache.nbytes)
        return found

    monkeypatch.setattr(GroupCache, "update", watched)
    positions = max(map(len, free.prompts)) + 10
    draw(policy, problems)
    together = max(held)
    held.clear()
    budget = Slots(policy, most * (positions * _position(policy) + 16 * policy.text.vocab_size))
    assert budget.at_once(positions) == most
    limited = draw(policy, problems, slots=budget)
    assert all(same(free, p, limited, p) for p in range(3))
    assert max(held) <= most * positions * _position(policy) < together


def _position(policy: Policy) -> int:
    """By the configuration: keys and values of each layer, in float32."""
    text = policy.text
    heads = getattr(text, "num_key_value_heads", text.num_attention_heads)
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * 4 * int(text.num_hidden_layers * heads * size)


@pytest.mark.parametrize("fitting", [1, 5])
def test_a_lease_out_of_memory_is_decoded_in_parts_and_so_is_the_next(
    fitting: int, make_policy: Make, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(eager=5.0)
    free = draw(policy, problems)
    sizes: list[int] = []
    select = GroupCache.select

    def limited(cache: GroupCache, rows: torch.Tensor) -> None:
        if cache.used == max(map(len, free.prompts)):
            sizes.append(len(rows))
        if len(rows) > fitting:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        select(cache, rows)

    monkeypatch.setattr(GroupCache, "select", limited)
    kept = Slots(policy)
    assert all(same(free, p, draw(policy, problems, slots=kept), p) for p in range(3))
    assert kept.at_once(100) == {1: 1, 5: 4}[fitting]
    tried = len(sizes)
    draw(policy, problems, slots=kept)
    assert max(sizes[tried:], default=0) <= fitting


def test_a_sequence_for_which_there_is_no_room_is_one_line(
    make_policy: Make, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)")

    monkeypatch.setattr(GroupCache, "select", fail)
    with pytest.raises(NoRoomError, match="tokens does not fit into the memory of cpu: give a smaller") as one:
        draw(make_policy(), problems)
    assert "\n" not in str(one.value)


def test_other_errors_are_not_taken_for_it(
    make_policy: Make, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(GroupCache, "select", fail)
    with pytest.raises(RuntimeError, match="device-side assert"):
        draw(make_policy(), problems)


def test_the_memory_that_is_free_decides(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    free = 10**9
    monkeypatch.setattr(slots, "spare_bytes", lambda _: free)
    asked = Slots(policy)
    expected = 10**9 // (1000 * _position(policy) + 16 * policy.text.vocab_size)
    assert asked.at_once(1000) == expected
    free = 10
    assert asked.at_once(1000) == 1
