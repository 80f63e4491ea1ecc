"""Passes over prompts and tokens that are given: rows of nearly one length, all of them once."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rl.model.policy import Policy
from rl.sampling import prefill
from rl.sampling.engine import Engine
from rl.sampling.prefill import NEARLY, POSITIONS, WORTH, Prefill
from rl.sampling.scheduling import Draw
from rl.sampling.slots import Slots
from tests.rl.sampling.test_engine import LIMIT, check_same, run

Make = Callable[..., Policy]


@pytest.mark.parametrize("seed", range(20))
def test_each_is_in_one_pass_that_is_padded_little_or_short(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.choice((draw.randrange(1, 40), draw.randrange(1, 3000))) for _ in range(draw.randrange(1, 300))]
    fronts = [draw.randrange(0, 200) if seed % 2 else 0 for _ in lengths]
    prefills = [
        Prefill(tuple(range(length)), 0, row, front, front // 2)
        for row, (length, front) in enumerate(zip(lengths, fronts, strict=True))
    ]
    passes = list(prefill.parts(prefills))
    assert sorted(one.row for part in passes for one in part if one.row is not None) == list(range(len(lengths)))
    for part in passes:
        longest = max(len(one.ids) for one in part)
        assert len(part) == 1 or len(part) * (longest + max(one.before for one in part)) <= POSITIONS
        much_shorter = [one for one in part if len(one.ids) < NEARLY * longest]
        assert len(part) * longest < WORTH + longest or not much_shorter


@pytest.mark.parametrize("most", [None, pytest.param(5, marks=pytest.mark.slow)])
def test_completions_of_any_length_go_on_as_each_alone(
    most: int | None, make_policy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy("qwen3", eager=5.0)
    monkeypatch.setattr(prefill, "WORTH", 8)
    monkeypatch.setattr(prefill, "POSITIONS", 60)
    rng = np.random.default_rng(0)
    prompts = [policy.tokenizer(text)["input_ids"] for text in ("7", "add 3 and 4.", "take 12 minus 5, then add 1.")]
    given = [rng.integers(10, 100, length) for length in rng.permutation(30)]
    noise = rng.random((len(given), LIMIT + 30), dtype=np.float32)

    def draws() -> list[Draw]:
        return [Draw(tuple(prompts[at % 3]), LIMIT + 30, noise[at]) for at in range(len(given))]

    alone, together = draws(), draws()
    for draw, tokens in zip(alone, given, strict=True):
        engine = Engine(policy, Slots(policy), ends=policy.ends)
        engine.go_on(draw, tokens)
        run(engine)
    passes: list[int] = []
    parts = prefill.parts

    def counted(prefills: Sequence[Prefill], **how: bool) -> list[list[Prefill]]:
        found = [list(part) for part in parts(prefills, **how)]
        passes.append(len(found))
        return found

    monkeypatch.setattr(prefill, "parts", counted)
    engine = Engine(policy, Slots(policy, most=most), ends=policy.ends)
    for draw, tokens in zip(together, given, strict=True):
        engine.go_on(draw, tokens)
    run(engine)
    assert max(passes) > 1
    check_same(together, alone)
