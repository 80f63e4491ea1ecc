"""Completions that go on, turn after turn, from keys and values that were kept: they draw what they draw without."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from rl.model.policy import Policy
from rl.sampling import prefill, prefix_cache
from rl.sampling.engine import Engine
from rl.sampling.prefill import Prefill
from rl.sampling.prefix_cache import CachedPrompt, PrefixCache, SamplerMemory
from rl.sampling.scheduling import Draw
from rl.sampling.slots import Slots
from tests.rl.sampling.test_engine import check_same, run
from tests.rl.sampling.test_sampler import ARCHITECTURES

Make = Callable[..., Policy]
TURNS, OBSERVED, LIMIT = 4, 3, 60


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Positions of all passes over tokens that were given, those left out that pad."""
    found: list[int] = []
    parts = prefill.parts

    def counted(prefills: Sequence[Prefill], **how: bool) -> Iterable[Sequence[Prefill]]:
        found.append(sum(len(one.ids) for one in prefills))
        return parts(prefills, **how)

    monkeypatch.setattr(prefill, "parts", counted)
    return found


def first(policy: Policy) -> list[Draw]:
    """Four of each of three prompts; two are alike, so that both have the same tokens after a turn."""
    prompts = [policy.tokenizer(text)["input_ids"] for text in ("7", "add 3 and 4.", "take 12 minus 5, then add 1.")]
    noise = np.random.default_rng(0).random((12, LIMIT), dtype=np.float32)
    noise[1] = noise[0]
    return [Draw(tuple(prompts[row // 4]), LIMIT, noise[row]) for row in range(12)]


def turn(policy: Policy, slots: Slots, draws: Sequence[Draw], given: int, kept: PrefixCache | None) -> list[Draw]:
    """Those that have ended go on with so many observed tokens, by an engine of their own."""
    engine = Engine(policy, slots, ends=policy.ends, kept=kept)
    made = []
    for number, draw in enumerate(draws):
        observed = np.arange(10 + number, 10 + number + given)
        tokens = np.append(draw.tokens, observed)
        if (draw.ended or not len(draw.tokens)) and len(tokens) < LIMIT:
            made.append(Draw(draw.prompt, draw.limit, draw.noise))
            engine.go_on(made[-1], tokens)
    run(engine)
    return made


def turns(policy: Policy, slots: Slots, kept: PrefixCache | None) -> list[list[Draw]]:
    found = [turn(policy, slots, first(policy), 0, kept)]
    for _ in range(TURNS):
        found.append(turn(policy, slots, found[-1], OBSERVED, kept))
    return found


@pytest.mark.parametrize("strides", [False, True])
@pytest.mark.parametrize("most", [None, 5])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_turns_draw_the_same_and_compute_what_is_new(
    name: str, most: int | None, strides: bool, make_policy: Make, computed: list[int]
) -> None:
    policy = make_policy(name, eager=5.0)
    slots = Slots(policy, most=most, strides=strides)
    without = turns(policy, slots, None)
    all_of_them = sum(computed)
    computed.clear()
    found = turns(policy, slots, PrefixCache())
    assert len(found[-1]) > 3
    for one, other in zip(found, without, strict=True):
        check_same(one, other)
    prompts = sum(len(prompt) for prompt in {draw.prompt for draw in found[0]})
    going_on = sum(len(draws) for draws in found[1:])
    assert sum(computed) == prompts + going_on * (OBSERVED + 1)  # the last token of a turn was given to nobody yet
    assert sum(computed) < all_of_them / 3


def test_where_prompts_are_copied_nothing_is_kept(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, kept = make_policy(eager=5.0), PrefixCache()
    slots = Slots(policy)
    without = turns(policy, slots, None)
    monkeypatch.setattr(slots.backend, "share", False)
    for one, other in zip(turns(policy, slots, kept), without, strict=True):
        check_same(one, other)
    assert kept.nbytes == 0


def written(policy: Policy) -> None:
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)


def test_those_of_other_weights_are_forgotten(make_policy: Make) -> None:
    policy, kept = make_policy(eager=5.0), PrefixCache()
    slots = Slots(policy)
    before = turn(policy, slots, first(policy), 0, kept)
    assert kept.nbytes > 0
    written(policy)
    without = turn(policy, slots, before, OBSERVED, None)
    check_same(turn(policy, slots, before, OBSERVED, kept), without)


def test_what_was_begun_with_other_weights_is_not_kept(make_policy: Make) -> None:
    policy, kept = make_policy(eager=5.0), PrefixCache()
    slots = Slots(policy)
    engine = Engine(policy, slots, ends=policy.ends, kept=kept, version=3)
    draws = first(policy)
    for draw in draws:
        engine.go_on(draw)
    engine.step()
    assert any(draw.ended for draw in draws)
    at_once = [draw.ended for draw in draws]
    written(policy)
    engine.swapped(4, kv_versions=1)
    run(engine)
    assert sum(draw.ended for draw in draws) > sum(at_once)
    for draw in draws:
        assert kept.take(draw.prompt, draw.tokens) is None


def test_memory_that_runs_out_forgets_all(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, kept = make_policy(eager=5.0), PrefixCache()
    slots = Slots(policy)
    before = turn(policy, slots, first(policy), 0, kept)
    without = turn(policy, slots, before, OBSERVED, None)
    engine = Engine(policy, slots, ends=policy.ends, kept=kept)
    going = [Draw(draw.prompt, draw.limit, draw.noise) for draw in before if draw.ended]
    for draw, old in zip(going, (draw for draw in before if draw.ended), strict=True):
        at = before.index(old)
        engine.go_on(draw, np.append(old.tokens, np.arange(10 + at, 10 + at + OBSERVED)))

    def short() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_step", short)
        assert not engine.step()
    assert kept.nbytes == 0
    run(engine)
    check_same(going, without)


def layers(positions: int) -> dict[int, tuple[Tensor, Tensor]]:
    return {0: (torch.zeros(1, 2, positions, 4), torch.zeros(1, 2, positions, 4))}


ROW = 2 * 2 * 4 * 4  # bytes of a position


def test_the_oldest_go_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = PrefixCache()
    monkeypatch.setattr(prefix_cache, "spare_bytes", lambda _: 4 * 10 * ROW - kept.nbytes)
    kept.follow(1, torch.device("cpu"))
    some = [np.array([number] * 5) for number in range(4)]  # four positions each
    for tokens in some:
        kept.put((1,), tokens, lambda: layers(4))
    assert kept.nbytes == 2 * 4 * ROW
    found = [kept.take((1,), np.append(tokens, [7, 7])) for tokens in some]
    assert [one is not None for one in found] == [False, False, True, True]
    assert kept.nbytes == 0
    kept.put((1,), np.arange(50), lambda: layers(49))  # that does not fit at all
    assert kept.nbytes == 0


def test_what_is_kept_already_takes_no_room_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = PrefixCache()
    monkeypatch.setattr(prefix_cache, "spare_bytes", lambda _: 4 * 10 * ROW - kept.nbytes)
    for tokens in (np.arange(9), np.arange(3)):  # one after the other, eight positions and two
        kept.follow(1, torch.device("cpu"))
        kept.put((1,), tokens, lambda tokens=tokens: layers(len(tokens) - 1))  # type: ignore[misc]
    assert kept.nbytes == 10 * ROW


def test_prompts_that_have_no_room_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = PrefixCache()
    monkeypatch.setattr(prefix_cache, "spare_bytes", lambda _: 4 * 10 * ROW)
    kept.follow(1, torch.device("cpu"))
    for first in (1, 2):
        kept.put_prompt((first,), lambda: CachedPrompt(layers(8), torch.zeros(4)))
    assert kept.prompt((1,)) is kept.prompt((2,)) is None
    assert kept.nbytes == 0


def test_each_of_those_that_are_alike_may_take_it_once() -> None:
    kept = PrefixCache()
    kept.follow(1, torch.device("cpu"))
    tokens = np.arange(6)
    made = [kept.put((1, 2), tokens, lambda: layers(5)) for _ in range(2)]
    assert len(made) == 2
    assert kept.nbytes == 5 * ROW
    other = np.append(np.arange(5), 9)
    assert kept.take((1, 2), other) is None
    assert kept.take((1,), np.arange(9)) is None
    assert kept.take((1, 2), np.arange(3)) is None  # it went on from fewer tokens
    for _ in range(2):
        row = kept.take((1, 2), np.arange(9))
        assert row is not None
        assert row.positions == 5
    assert kept.take((1, 2), np.arange(9)) is None
    assert kept.nbytes == 0


def test_the_longest_that_it_begins_with_is_taken() -> None:
    kept = PrefixCache()
    kept.follow(1, torch.device("cpu"))
    for length in (3, 6, 4):
        kept.put((1,), np.arange(length), lambda length=length: layers(length - 1))  # type: ignore[misc]
    found = [kept.take((1,), np.arange(9)) for _ in range(4)]
    assert [one.positions if one else None for one in found] == [5, 3, 2, None]


def test_what_is_kept_counts_and_is_forgotten_where_the_model_leaves_its_device(make_policy: Make) -> None:
    policy, kept = make_policy(), PrefixCache()
    memory = SamplerMemory(policy, kept)
    before = memory.nbytes
    kept.follow(1, policy.device)
    layers = {0: (torch.zeros(1, 2, 8, 16), torch.zeros(1, 2, 8, 16))}
    kept.put((1, 2), np.array([3, 4]), lambda: layers)
    assert memory.nbytes == before + kept.nbytes == before + 2048
    memory.park()
    assert kept.take((1, 2), np.array([3, 4, 5])) is None
    memory.unpark()
    assert memory.nbytes == before
