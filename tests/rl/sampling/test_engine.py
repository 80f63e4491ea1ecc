"""Sequences that enter, leave, are taken back and gone on with: each draws what it draws alone."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.model.policy import Policy
from rl.sampling import engine as engine_module
from rl.sampling.engine import Engine
from rl.sampling.rows import Rows
from rl.sampling.sampler import uniforms
from rl.sampling.scheduling import Draw, Scheduler
from rl.sampling.slots import Slots
from tests.rl.sampling.test_sampler import ARCHITECTURES

Make = Callable[..., Policy]
LIMIT = 10


def made(policy: Policy, most: int | None = None) -> Engine:
    return Engine(policy, Slots(policy, most=most), ends=policy.ends)


def added(engine: Engine, policy: Policy, samples: int = 4) -> list[Draw]:
    prompts = [policy.tokenizer(text)["input_ids"] for text in ("7", "add 3 and 4.", "take 12 minus 5, then add 1.")]
    noise = uniforms(0, 0, range(len(prompts)), samples, LIMIT)
    return [engine.add(prompts[row // samples], LIMIT, noise[row]) for row in range(len(noise))]


def run(engine: Engine) -> None:
    while engine.busy:
        engine.step()


def check_same(one: list[Draw], other: list[Draw]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.prompt == b.prompt
        assert a.ended == b.ended
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


@pytest.fixture(params=ARCHITECTURES)
def policy(request: pytest.FixtureRequest, make_policy: Make) -> Policy:
    return make_policy(request.param, eager=5.0)


@pytest.fixture
def expected(policy: Policy) -> list[Draw]:
    """Each alone."""
    found = []
    for index in range(12):
        engine = made(policy)
        draw = added(engine, policy)[index]
        engine.schedule.waiting.clear()
        engine.schedule.waiting.append(draw)
        run(engine)
        found.append(draw)
    assert 0 < sum(draw.ended for draw in found) < 12
    assert len({len(draw.tokens) for draw in found}) > 3
    return found


@pytest.mark.parametrize("most", [1, 2, 5, None])
def test_however_many_run_at_once(most: int | None, policy: Policy, expected: list[Draw]) -> None:
    engine = made(policy, most)
    draws = added(engine, policy)
    running = []
    finished: list[Draw] = []
    while engine.busy:
        engine.step()
        running.append(len(engine.schedule.rows))
        finished += engine.finished()
    assert max(running) <= (most or 12)
    assert sorted(draw.number for draw in finished) == list(range(12))
    assert engine.finished() == []
    check_same(draws, expected)


def test_prompts_are_shared_where_attention_allows_it_and_repeated_elsewhere(
    policy: Policy, expected: list[Draw], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(policy)
    assert slots.backend.share
    monkeypatch.setattr(slots.backend, "share", False)
    engine = Engine(policy, slots, ends=policy.ends)
    draws = added(engine, policy)
    run(engine)
    check_same(draws, expected)


def test_prompts_are_repeated_where_a_layer_attends_by_itself_though_it_adds_nothing_yet(make_policy: Make) -> None:
    policy = make_policy()
    attention = policy.model.get_decoder().layers[1].self_attn  # type: ignore[no-untyped-call]
    attention.config = deepcopy(attention.config)  # which nobody sets to `rl.model.attention.NAME`
    with torch.no_grad():
        attention.o_proj.weight.zero_()
    assert not Slots(policy).backend.share


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_what_is_taken_back_goes_on_elsewhere_as_if_nothing_had_happened(
    steps: int, share: bool, policy: Policy, expected: list[Draw]
) -> None:
    first, second = made(policy, 7), made(policy, 3)
    first.slots.backend.share = second.slots.backend.share = share
    draws = added(first, policy)
    for _ in range(steps):
        first.step()
    back = first.take_back()
    assert not first.busy
    assert {id(draw) for draw in back} | {id(draw) for draw in first.finished()} == {id(draw) for draw in draws}
    assert sum(len(draw.tokens) for draw in back) > 0 or steps == 0
    for draw in back:
        second.go_on(draw)
    run(second)
    check_same(draws, expected)


def test_given_tokens_have_no_log_prob_and_what_follows_has_that_behind_them(
    policy: Policy, exactly: Callable[[PreTrainedModel], PreTrainedModel], alone: Callable[..., Tensor]
) -> None:
    engine = made(policy)
    engine.ends = engine.ends[:0]
    draws = added(engine, policy, samples=2)
    for _ in range(3):
        engine.step()
    given = policy.tokenizer("is 12")["input_ids"]
    for draw in engine.take_back():
        engine.go_on(draw, given)
    run(engine)
    for draw in draws:
        assert draw.tokens[3 : 3 + len(given)].tolist() == given
        assert np.isnan(draw.logprobs).tolist() == [3 <= at < 3 + len(given) for at in range(LIMIT)]
        with torch.no_grad():
            scores = alone(exactly(policy.model), draw.prompt, draw.tokens).numpy()
        drawn = ~np.isnan(draw.logprobs)
        np.testing.assert_allclose(draw.logprobs[drawn], scores[drawn], atol=1e-4)


def test_those_that_are_added_later_enter_beside_the_others(policy: Policy, expected: list[Draw]) -> None:
    engine = made(policy)
    draws = added(engine, policy)
    for draw in draws[1:]:
        engine.schedule.waiting.remove(draw)
    for draw in draws[1:]:
        engine.step()
        engine.go_on(draw)
    run(engine)
    check_same(draws, expected)


def test_longer_ones_that_are_added_later_get_room(make_policy: Make) -> None:
    policy = make_policy()
    engine, alone = made(policy), made(policy)
    noise = uniforms(0, 0, [0], 1, 30)[0]
    engine.add([5, 9], 3, noise[:3])
    engine.step()
    draw, other = engine.add([5, 9, 17], 30, noise), alone.add([5, 9, 17], 30, noise)
    run(engine)
    run(alone)
    check_same([draw], [other])


def test_rows_are_made_anew_for_twice_as_many(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Counted(Rows):
        def __init__(self, policy: Policy, slots: Slots, rows: int, *given: Any) -> None:
            asked.append(rows)
            super().__init__(policy, slots, rows, *given)

    monkeypatch.setattr(engine_module, "Rows", Counted)
    engine = made(make_policy())
    for more in (2, 1, 1):
        for _ in range(more):
            engine.add([5, 9], LIMIT)
        engine.step()
    assert asked == [2, 4]
    assert len(engine.schedule.rows) == 4


def test_weights_that_change_between_two_tokens_count_from_the_next_one_on(make_policy: Make) -> None:
    policy, other = make_policy(seed=0), make_policy(seed=1)
    weights = {name: value.clone() for name, value in other.weights().items()}
    engine = Engine(policy, Slots(policy, most=2))
    noise = uniforms(0, 0, [0], 3, LIMIT)
    prompt = [5, 9, 17]
    draws = [engine.add(prompt, limit, row[:limit]) for limit, row in zip((2, LIMIT, LIMIT), noise, strict=True)]
    engine.step()
    engine.step()
    before = draws[1].logprobs.copy()
    policy.load_weights(weights)
    run(engine)
    # the third entered after the change: it knows nothing of the old weights, its prompt's keys neither
    fresh = Engine(other, Slots(other))
    expected = fresh.add(prompt, LIMIT, noise[2])
    run(fresh)
    check_same([draws[2]], [expected])
    assert draws[1].logprobs[: len(before)].tolist() == before.tolist()


@pytest.mark.parametrize("most", [1, 2])
def test_weights_that_change_as_all_rows_leave_do_not_keep_the_next_ones_out(most: int, make_policy: Make) -> None:
    policy, other = make_policy(seed=0), make_policy(seed=1)
    weights = {name: value.clone() for name, value in other.weights().items()}
    engine, fresh = Engine(policy, Slots(policy, most=most)), Engine(other)
    noise = uniforms(0, 0, [0], 4, 4)
    draws = [engine.add([5, 9, 17], 4, row) for row in noise]
    for _ in range(4):
        engine.step()
    policy.load_weights(weights)
    run(engine)
    expected = [fresh.add([5, 9, 17], 4, row) for row in noise]
    run(fresh)
    check_same(draws[most:], expected[most:])


def test_a_completion_that_is_over_is_refused(make_policy: Make) -> None:
    policy = make_policy()
    engine = made(policy)
    draw = engine.add([5], 1, None)
    engine.step()
    assert engine.finished() == [draw]
    with pytest.raises(ValueError, match="1 of 1 tokens"):
        engine.go_on(draw)
    with pytest.raises(ValueError, match="2 uniform numbers for 3 tokens"):
        engine.add([5], 3, np.zeros(2, dtype=np.float32))


def test_greedy_ones_run_beside_drawn_ones(make_policy: Make) -> None:
    policy = make_policy()
    noise = uniforms(0, 0, [0], 1, LIMIT)[0]
    apart = []
    for one in (None, noise):
        engine = made(policy)
        apart.append(engine.add([5, 9], LIMIT, one))
        run(engine)
    engine = made(policy)
    together = [engine.add([5, 9], LIMIT, one) for one in (None, noise)]
    run(engine)
    check_same(together, apart)
    assert together[0].tokens.tolist() != together[1].tokens.tolist()


def test_memory_that_runs_out_once_for_each_sequence_ends_none(
    make_policy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    engine, alone = made(policy, 1), made(policy)
    draws, expected = ([each.add([5, 9], 3) for _ in range(3)] for each in (engine, alone))
    run(alone)
    decode, failed = Rows.decode, set[int]()

    def once(rows: Rows, policy: Policy, schedule: Scheduler) -> Tensor:
        if (number := schedule.rows[0].number) not in failed:
            failed.add(number)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return decode(rows, policy, schedule)

    monkeypatch.setattr(Rows, "decode", once)
    run(engine)
    assert failed == {0, 1, 2}
    check_same(draws, expected)


def test_memory_that_runs_out_when_a_sequence_ends_carries_it_no_further(
    policy: Policy, expected: list[Draw], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, calls = made(policy), 0
    draws = added(engine, policy)
    kept = Rows._kept

    def fail(*given: object) -> object:
        nonlocal calls
        calls += given[1] != []
        if calls == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return kept(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(Rows, "_kept", fail)
    run(engine)
    check_same(draws, expected)
    assert sorted(draw.number for draw in engine.finished()) == list(range(len(draws)))
