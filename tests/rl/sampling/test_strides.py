"""Steps of a fixed shape draw what steps of any shape draw, and nothing in them follows from what is drawn."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.cuda import _POOL_HANDLE
from torch.utils._pytree import tree_map

from rl.model.policy import Policy
from rl.sampling.cache import DecodePass, SlotCache
from rl.sampling.engine import Engine
from rl.sampling.sampler import uniforms
from rl.sampling.scheduling import Draw
from rl.sampling.slots import Slots
from rl.sampling.strides import STRIDE, Program, Shape, Strides, Watch
from tests.rl.sampling.test_engine import check_same
from tests.rl.sampling.test_sampler import ARCHITECTURES

Make = Callable[..., Policy]
PROMPTS = ("7", "add 3 and 4.", "take 12 minus 5, then add 1.")
LIMIT = 3 * STRIDE + 2
POOL = _POOL_HANDLE((0, 1))  # of graphs


def made(policy: Policy, most: int | None = None, *, strides: bool = True) -> Engine:
    return Engine(policy, Slots(policy, most=most, strides=strides), ends=policy.ends)


def added(engine: Engine, policy: Policy, samples: int = 5, *, greedy: bool = True) -> list[Draw]:
    """Of several lengths and limits; of each prompt the last takes the most likely tokens."""
    found = []
    for p, text in enumerate(PROMPTS):
        noise = uniforms(0, 0, [p], samples, LIMIT)
        for g, row in enumerate(noise):
            limit = LIMIT - g
            most_likely = greedy and g == samples - 1
            found.append(engine.add(policy.tokenizer(text)["input_ids"], limit, None if most_likely else row[:limit]))
    return found


def run(engine: Engine) -> int:
    """How many steps it took."""
    steps = 0
    while engine.busy:
        engine.step()
        steps += 1
    return steps


@pytest.fixture(params=ARCHITECTURES)
def policy(request: pytest.FixtureRequest, make_policy: Make) -> Policy:
    return make_policy(request.param, eager=3.5)


@pytest.fixture
def expected(policy: Policy) -> list[Draw]:
    engine = made(policy, strides=False)
    draws = added(engine, policy)
    run(engine)
    assert 0 < sum(draw.ended for draw in draws) < len(draws)
    return draws


@pytest.mark.slow
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("most", [1, 6, None])
def test_they_draw_the_same_tokens_in_fewer_steps(
    most: int | None, share: bool, policy: Policy, expected: list[Draw]
) -> None:
    engine = made(policy, most)
    engine.slots.backend.share = share
    draws = added(engine, policy)
    steps = run(engine)
    check_same(draws, expected)
    longest = max(len(draw.tokens) for draw in expected)
    if most is None:
        assert steps == 1 + -(-(longest - 1) // STRIDE)


def test_what_is_taken_back_from_them_goes_on_elsewhere(policy: Policy, expected: list[Draw]) -> None:
    first, second = made(policy, 7), made(policy, 3)
    draws = added(first, policy)
    for _ in range(3):
        first.step()
    for draw in first.take_back():
        second.go_on(draw)
    run(second)
    check_same(draws, expected)


def test_a_row_that_was_never_used_is_computed_and_dropped(make_policy: Make) -> None:
    """Places keep it empty: there are two, a half of what four rows would need of sixteen completions' prompts."""
    policy, found = make_policy(), []
    for strides in (True, False):
        engine = made(policy, 4, strides=strides)
        prompts = [[5], [5], [6], [7], *([[8]] * 12)]
        noise = uniforms(0, 0, [0], len(prompts), 4)
        found.append([engine.add(prompt, 4, row) for prompt, row in zip(prompts, noise, strict=True)])
        engine.step()
        assert (len(engine.schedule.rows), engine.schedule.most_rows) == (3, 4)
        run(engine)
    check_same(*found)


def test_weights_that_change_between_two_strides_count_from_the_next_one_on(make_policy: Make) -> None:
    policy, other = make_policy(seed=0), make_policy(seed=1)
    weights = {name: value.clone() for name, value in other.weights().items()}
    noise = uniforms(0, 0, [0], 1, LIMIT)[0]
    found = []
    for strides in (True, False):
        policy = make_policy(seed=0)
        engine = Engine(policy, Slots(policy, strides=strides))
        draw = engine.add([5, 9, 17], LIMIT, noise)
        for _ in range(2 if strides else 1 + STRIDE):
            engine.step()
        policy.load_weights(weights)
        run(engine)
        found.append(draw)
    check_same(found[:1], found[1:])


def test_a_stop_string_is_looked_for_at_each_token(make_policy: Make) -> None:
    policy = make_policy()
    found = []
    for strides in (True, False):
        engine = Engine(policy, Slots(policy, strides=strides), stop=["1", "a"])
        found.append(added(engine, policy))
        run(engine)
    assert any(draw.ended for draw in found[0])
    check_same(*found)


def test_memory_that_runs_out_in_a_stride_costs_no_token(
    policy: Policy, expected: list[Draw], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, calls = DecodePass.__init__, 0

    def limited(step: DecodePass, cache: SlotCache, at: torch.Tensor, *given: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        if len(at) > 4 and calls > STRIDE // 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        decode(step, cache, at, *given, **named)

    engine = made(policy)
    monkeypatch.setattr(DecodePass, "__init__", limited)
    draws = added(engine, policy)
    run(engine)
    check_same(draws, expected)
    assert engine.slots.capacity(100, 1, 1, 1)[0] <= 7


class Recorder(Watch):
    """The operations of a step, with the shapes that they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_map(lambda each: each.shape if isinstance(each, torch.Tensor) else each, (args, kwargs))
        self.steps[-1].append((func, given))
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("share", [True, False])
def test_a_step_is_the_same_operations_on_the_same_shapes_whatever_is_drawn(
    share: bool, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a graph of it, captured once, is each of them."""
    recorded: dict[Shape, list[list[tuple[Any, ...]]]] = {}
    step = Strides._step

    def record(self: Strides, shape: Shape, *given: Any) -> None:
        recorder = Recorder()
        recorder.steps = recorded.setdefault(shape, [])
        recorder.steps.append([])
        places = [kept.data_ptr() for kept in (self._rows.tokens, self._rows.drawn, self._ended, self._limits)]
        with recorder:
            step(self, shape, *given)
        assert recorder.found == ""
        assert places == [kept.data_ptr() for kept in (self._rows.tokens, self._rows.drawn, self._ended, self._limits)]

    monkeypatch.setattr(Strides, "_step", record)
    engine = made(policy)
    engine.slots.backend.share = share
    added(engine, policy)
    run(engine)
    assert sum(map(len, recorded.values())) >= 2 * STRIDE
    for _, *steps in recorded.values():  # the first one takes memory, and is not what is captured
        assert all(len(each) > 20 and each == steps[0] for each in steps)


@pytest.mark.parametrize(
    "wait",
    [
        lambda drawn: drawn.sum().item(),
        lambda drawn: drawn.nonzero(),
        lambda drawn: drawn[drawn > 0],
        lambda drawn: drawn.to("meta"),  # as good as any other device
    ],
)
def test_what_no_graph_can_hold_is_seen(wait: Callable[[torch.Tensor], object]) -> None:
    drawn = torch.ones(3)
    with Watch() as watch:
        drawn.add_(1).cumsum(0)
    assert watch.found == ""
    with Watch() as watch:
        wait(drawn)
    assert watch.found.startswith("aten.")


class Replayed:
    """In place of a graph: nothing."""

    captured = 0
    replayed = 0

    def replay(self) -> None:
        Replayed.replayed += 1


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[Replayed]:
    @contextmanager
    def capture(_: Replayed, pool: object, capture_error_mode: str) -> Any:
        assert (pool, capture_error_mode) == (POOL, "thread_local")
        Replayed.captured += 1
        yield

    Replayed.captured = Replayed.replayed = 0
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Replayed)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    return Replayed


def test_the_first_step_of_a_shape_runs_the_second_is_captured_and_replayed_as_all_others(
    graphs: type[Replayed],
) -> None:
    shape = Shape(4, 2, 2, 64, drawn=True, greedy=False)
    program, calls = Program(shape, torch.device("cpu")), 0

    def step(given: Shape, grid: object) -> None:
        nonlocal calls
        assert given is shape
        assert grid is program.grid
        calls += 1

    program.run(step, POOL)
    assert (calls, graphs.captured, graphs.replayed) == (1, 0, 0)
    for _ in range(3):
        program.run(step, POOL)
    assert (calls, graphs.captured, graphs.replayed) == (2, 1, 3)  # the second call was the capture's


@pytest.mark.usefixtures("graphs")
def test_a_model_whose_step_waits_for_the_device_is_never_captured_and_said_once(
    make_policy: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of experts does, or of positions that are looked at."""
    policy = make_policy()
    decode = DecodePass.__init__

    def looking(step: DecodePass, cache: SlotCache, at: torch.Tensor, *given: Any, **named: Any) -> None:
        assert int(at.max()) < LIMIT
        decode(step, cache, at, *given, **named)

    monkeypatch.setattr(DecodePass, "__init__", looking)
    slots = Slots(policy, strides=True)
    slots.backend.graphs = True
    for _ in range(2):
        plain, engine = made(policy, strides=False), Engine(policy, slots, ends=policy.ends)
        expected, draws = added(plain, policy), added(engine, policy)
        run(plain)
        run(engine)
        check_same(draws, expected)
    assert Replayed.captured == 0
    assert caplog.text.count("waits for aten.item") == 1
