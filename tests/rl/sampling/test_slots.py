"""How many sequences are decoded at once, where memory is short."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from rl.config import SamplingConfig
from rl.model.memory import NoRoomError
from rl.model.policy import Policy
from rl.records import Problem, Rollouts
from rl.sampling import backend, kernel_trial, slots
from rl.sampling import engine as engine_module
from rl.sampling.cache import DecodePass, KeyValues, PrefillPass, SlotCache
from rl.sampling.engine import Engine
from rl.sampling.rows import Rows
from rl.sampling.sampler import uniforms
from rl.sampling.slots import Slots
from tests.rl.sampling.test_engine import check_same, run
from tests.rl.sampling.test_sampler import ARCHITECTURES, draw, same

Make = Callable[..., Policy]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Bytes of keys and values, and rows in use, at each of a layer's passes over new tokens."""
    found: list[tuple[int, int]] = []
    update = DecodePass.update

    def watched(step: DecodePass, *given: Any, **named: Any) -> Any:
        result = update(step, *given, **named)
        if step.cache.rows.positions > backend.PROBED + 1:  # no probe
            found.append((step.cache.nbytes, len(given[0])))
        return result

    kept = DecodePass.kept

    def read(step: DecodePass, layer: int) -> Any:  # where kernels write to it
        result = kept(step, layer)
        if step.cache.rows.positions not in (1, kernel_trial.LENGTH):  # no probe, no trial
            found.append((step.cache.nbytes, len(step.at)))
        return result

    monkeypatch.setattr(DecodePass, "update", watched)
    monkeypatch.setattr(DecodePass, "kept", read)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("most", [1, 4, 7])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_budget_is_kept_and_changes_no_token(
    name: str, most: int, share: bool, make_policy: Make, problems: list[Problem], held: list[tuple[int, int]]
) -> None:
    policy = make_policy(name, eager=5.0)
    free = draw(policy, problems)
    together = max(nbytes for nbytes, _ in held)
    held.clear()
    prompt = max(map(len, free.prompts))
    positions = most * (10 if share else prompt + 10) + min(3, 2 * -(-most // 6)) * prompt
    budget = positions * _counted(policy) + most * 16 * policy.text.vocab_size
    kept = Slots(policy, budget)
    kept.backend.share = share
    assert kept.capacity(18, 3, prompt, 10)[0] == most
    limited = draw(policy, problems, slots=kept)
    assert all(same(free, p, limited, p) for p in range(3))
    assert max(nbytes for nbytes, _ in held) <= positions * _position(policy)
    assert positions * _position(policy) < together or not share
    assert max(rows for _, rows in held) == most


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute where nothing else runs
def test_a_lease_of_long_completions_keeps_to_a_gigabyte(make_policy: Make, held: list[tuple[int, int]]) -> None:
    """16 x 8 completions of up to 1,000 tokens behind prompts of 200 and more."""
    policy = _wide(make_policy)
    assert _position(policy) == 8192
    problems = [Problem(" ".join(f"{100 * p + number}" for number in range(100))[:480], "1", "test") for p in range(16)]
    config = SamplingConfig(max_tokens=1000)
    free = draw(policy, problems, config, samples=8)
    assert min(map(len, free.prompts)) >= 200
    assert free.lengths.max() > 300
    assert max(nbytes for nbytes, _ in held) > 1.04e9
    held.clear()
    limited = draw(policy, problems, config, samples=8, slots=Slots(policy, 1e9))
    assert max(nbytes for nbytes, _ in held) <= 1e9
    for p in range(16):
        assert same(free, p, limited, p) or all(_part_at_an_edge(policy, free, limited, p, g) for g in range(8))


def _part_at_an_edge(policy: Policy, one: Rollouts, other: Rollouts, p: int, g: int) -> bool:
    """Whether two completions are the same, or part where the number that is drawn by lies, in float64, at the edge
    between their tokens: sums of another batch are rounded otherwise."""
    length = min(one.lengths[p, g], other.lengths[p, g])
    apart = np.flatnonzero(one.tokens[p, g, :length] != other.tokens[p, g, :length])
    at = apart[0] if len(apart) else length
    if not np.allclose(one.logprobs[p, g, :at], other.logprobs[p, g, :at], atol=1e-5):
        return False
    if not len(apart):
        return bool(one.lengths[p, g] == other.lengths[p, g])
    ids = torch.tensor([[*one.prompts[p].tolist(), *one.tokens[p, g, :at].tolist()]])
    with torch.no_grad():
        logits = deepcopy(policy.model).double()(ids, use_cache=False).logits[0, -1]
    lower, upper = sorted((int(one.tokens[p, g, at]), int(other.tokens[p, g, at])))
    edge = float(logits.softmax(-1).cumsum(-1)[lower])
    drawn_by = float(uniforms(0, 0, [p], 8, 1000)[g, at])
    return upper == lower + 1 and abs(drawn_by - edge) < 1e-6


def _wide(make_policy: Make) -> Policy:
    """With keys and values of 8,192 bytes a position."""
    policy = make_policy("qwen3")
    wide = type(policy.model.config)(
        **{
            **policy.model.config.to_dict(),
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 2048,
        }
    )
    torch.manual_seed(0)
    model = type(policy.model)(wide).eval()
    bias = torch.zeros(policy.text.vocab_size)
    bias[policy.end] = 1.0
    model.lm_head.bias = torch.nn.Parameter(bias)
    return Policy(model, policy.tokenizer, policy.device, policy.dtype)


def _position(policy: Policy) -> int:
    """By the configuration: keys and values of each layer, in float32."""
    text = policy.text
    heads = getattr(text, "num_key_value_heads", text.num_attention_heads)
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * 4 * int(text.num_hidden_layers * heads * size)


def _counted(policy: Policy) -> int:
    """With a layer that is there twice while it grows."""
    return _position(policy) * (int(policy.text.num_hidden_layers) + 1) // int(policy.text.num_hidden_layers)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("fitting", [1, 5])
def test_a_lease_out_of_memory_goes_on_with_fewer_at_once_and_so_does_the_next(
    fitting: int, after: int, make_policy: Make, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(eager=5.0)
    free = draw(policy, problems)
    sizes: list[int] = []
    decode = DecodePass.__init__

    def limited(step: DecodePass, cache: SlotCache, at: torch.Tensor, *given: Any, **named: Any) -> None:
        sizes.append(len(at))
        if len(at) > fitting and len(sizes) > after:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        decode(step, cache, at, *given, **named)

    kept = Slots(policy)
    monkeypatch.setattr(DecodePass, "__init__", limited)
    assert all(same(free, p, draw(policy, problems, slots=kept), p) for p in range(3))
    assert kept.capacity(100, 1, 1, 1)[0] <= fitting
    tried = len(sizes)
    draw(policy, problems, slots=kept)
    assert max(sizes[tried:], default=0) <= fitting


@pytest.fixture
def short_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Have so many steps be out of memory, from the first one on with so few rows."""
    decode = DecodePass.__init__

    def of(few: int, steps: int) -> None:
        failed: list[int] = []

        def limited(step: DecodePass, cache: SlotCache, at: torch.Tensor, *given: Any, **named: Any) -> None:
            if len(at) <= few and len(failed) < steps:
                failed.append(len(at))
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            decode(step, cache, at, *given, **named)

        monkeypatch.setattr(DecodePass, "__init__", limited)

    return of


@pytest.mark.parametrize(("count", "few", "steps"), [(4, 1, 1), (64, 3, 1), (4, 1, 2), (1, 1, 1)])
def test_memory_that_is_short_at_the_end_of_a_lease_is_counted_against_the_rows_it_was_taken_for(
    count: int, few: int, steps: int, make_policy: Make, short_for_a_moment: Callable[[int, int], None]
) -> None:
    policy = make_policy()
    limits = [2] * (count - few) + [9] * few
    alone, kept = Engine(policy), Slots(policy)
    expected = [alone.add([5, 9, 17], limit) for limit in limits]
    run(alone)
    short_for_a_moment(few, steps)
    engine = Engine(policy, kept)
    draws = [engine.add([5, 9, 17], limit) for limit in limits]
    run(engine)
    check_same(draws, expected)
    assert kept.capacity(128, 1, 3, 9)[0] == (max(2, count // 2) if count > 1 else 128)


def test_rows_for_which_there_is_no_room_are_asked_for_by_half(
    make_policy: Make, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(eager=5.0)
    free = draw(policy, problems)
    asked: list[int] = []

    class Short(Rows):
        def __init__(self, policy: Policy, slots: Slots, rows: int, *given: int) -> None:
            asked.append(rows)
            if rows > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            super().__init__(policy, slots, rows, *given)

    monkeypatch.setattr(engine_module, "Rows", Short)
    limited = draw(policy, problems)
    assert all(same(free, p, limited, p) for p in range(3))
    assert asked[:4] == [18, 9, 4, 2]


def test_that_fewer_run_is_said_once_and_twice_as_many_are_tried_again(
    make_policy: Make, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Slots(make_policy())
    for rows in (64, 32, 16):  # of one lease
        assert kept.capacity(64, 8, 3, 9)[0] == rows
        kept.ran_out(rows, 12, again=False)
    assert [record.message for record in caplog.records] == [
        "memory has run out for 64 completions at once: fewer from now on"
    ]
    leases = []
    for _ in range(4 * slots.CALM):
        kept.begin_lease()
        leases.append(kept.capacity(64, 8, 3, 9)[0])
    assert leases == sorted(leases)
    assert leases[: slots.CALM] == [8] * slots.CALM
    assert leases[-1] == 64
    kept.ran_out(64, 12, again=False)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(("of", "where"), [(KeyValues, "of"), (SlotCache, "begin"), (DecodePass, "__init__")])
def test_a_sequence_for_which_there_is_no_room_is_one_line(
    of: type, where: str, make_policy: Make, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)")

    policy = make_policy()
    kept = Slots(policy)
    monkeypatch.setattr(of, where, fail)
    with pytest.raises(NoRoomError, match="tokens does not fit into the memory of cpu: give a smaller") as one:
        draw(policy, problems, slots=kept)
    assert "\n" not in str(one.value)


def test_other_errors_are_not_taken_for_it(
    make_policy: Make, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(PrefillPass, "update", fail)
    with pytest.raises(RuntimeError, match="device-side assert"):
        draw(make_policy(), problems)


def test_the_memory_that_is_free_decides(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    free = 10**8
    monkeypatch.setattr(slots, "spare_bytes", lambda _: free)
    asked = Slots(policy)
    position, vocabulary = _counted(policy), 16 * policy.text.vocab_size
    rows, places = asked.capacity(8000, 1000, 200, 1000)
    assert 8 < rows < 8000
    assert places == 2 * -(-rows // 8)

    def taken(rows: int) -> int:
        return rows * (1000 * position + vocabulary) + 2 * -(-rows // 8) * 200 * position

    assert taken(rows) <= free < taken(rows + 1)
    asked.backend.share = False
    assert asked.capacity(8000, 1000, 200, 1000)[0] < rows
    free = 10
    assert asked.capacity(8000, 1000, 200, 1000)[0] == 1
