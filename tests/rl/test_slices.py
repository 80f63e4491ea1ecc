"""Leases in slices: what was drawn in several, by several engines, is what one would have drawn alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from rl.admission import Asked, refusal
from rl.config import SamplingConfig
from rl.model.policy import Policy
from rl.records import Maker, Problem, Rollouts
from rl.sampling.engine import Hooks, to_the_end
from rl.sampling.sampler import sample
from rl.sampling.slots import Slots
from rl.slices import SHARE, SliceEnd, SoFar, joined, over

Make = Callable[..., Policy]
LIMIT = 10


def after(steps: int) -> Callable[[], bool]:
    """Ends a slice behind so many steps."""
    so_far = count(1)
    return lambda: next(so_far) >= steps


def drawn(
    policies: Sequence[Policy],
    problems: list[Problem],
    steps: Sequence[int],
    *,
    stop: tuple[str, ...] = (),
    most: int | None = None,
    strides: bool = False,
    greedy: bool = False,
) -> tuple[Rollouts, int]:
    """A lease in slices of so many steps, the last of them to its end, and how many there were; each is drawn by the
    next of the policies, and is what was asked for."""
    config = SamplingConfig(max_tokens=LIMIT, stop=stop)
    found: Rollouts | None = None
    for number in count():
        policy = policies[number % len(policies)]
        so_far = None if found is None else SoFar.of(found, LIMIT)
        more = sample(
            policy,
            4,
            problems,
            config,
            samples=4,
            seed=0,
            step=0,
            groups=range(len(problems)),
            greedy=greedy,
            slots=Slots(policy, most=most, strides=strides),
            so_far=so_far,
            hooks=Hooks(stop_now=after(steps[number]) if number < len(steps) else to_the_end),
        )
        more = replace(more, makers=(Maker(f"w{number % len(policies)}", "float32"),) * len(problems))
        asked = Asked(tuple(problems), 4, LIMIT, range(4, 5), None, so_far, unfinished=number < len(steps))
        assert refusal(more, asked) == ""
        found = more if found is None else joined(found, more)
        if over(found, LIMIT).all():
            return found, number + 1
    raise AssertionError


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
@pytest.mark.parametrize("steps", [[1], [4], [9], [1, 1, 1], [3, 2]])
def test_a_lease_in_slices_is_the_lease(
    name: str, steps: list[int], make_policy: Make, problems: list[Problem]
) -> None:
    policies = [make_policy(name, eager=4.0) for _ in range(2)]
    whole, one = drawn(policies, problems, [])
    found, slices = drawn(policies, problems, steps)
    assert (one, slices) == (1, len(steps) + 1)
    assert whole.lengths.min() < sum(steps) or steps[0] == 1  # some were over in the first of them
    check_same(found, whole)
    assert {maker.worker for maker in found.makers} == {"w0, w1"}
    assert {maker.dtype for maker in found.makers} == {"float32"}


def check_same(found: Rollouts, whole: Rollouts) -> None:
    """Tokens and texts exactly; log-probs to the rounding of keys and values that were computed all at once."""
    for name in ("tokens", "lengths", "ended", "versions"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    np.testing.assert_allclose(found.logprobs, whole.logprobs, atol=1e-5)
    assert found.texts == whole.texts
    assert all(map(np.array_equal, found.prompts, whole.prompts))
    assert found.seconds > 0


def test_the_first_slice_of_a_lease_has_its_very_bits(make_policy: Make, problems: list[Problem]) -> None:
    policy = make_policy(eager=4.0)
    whole, _ = drawn([policy], problems, [])
    found, _ = drawn([policy], problems, [5])
    assert found.logprobs[:, :, :5].tobytes() == whole.logprobs[:, :, :5].tobytes()


def test_so_is_one_that_nobody_ends(make_policy: Make, problems: list[Problem]) -> None:
    policy = make_policy(eager=4.0)
    whole, _ = drawn([policy], problems, [])
    found, slices = drawn([policy], problems, [LIMIT + 1])
    assert slices == 1
    assert found.logprobs.tobytes() == whole.logprobs.tobytes()


@pytest.mark.parametrize("how", [{"most": 2}, {"strides": True}, {"greedy": True}])
def test_however_it_is_decoded(how: dict[str, bool], make_policy: Make, problems: list[Problem]) -> None:
    policy = make_policy(eager=2.0)
    whole, _ = drawn([policy], problems, [], **how)  # type: ignore[arg-type]
    found, slices = drawn([policy, make_policy(eager=2.0)], problems, [1, 1, 1], **how)  # type: ignore[arg-type]
    assert slices > 1
    check_same(found, whole)


def test_a_stop_string_over_the_tokens_of_two_slices_ends_a_completion(
    make_policy: Make, problems: list[Problem]
) -> None:
    policy = make_policy(eager=2.0)
    free, _ = drawn([policy], problems, [])
    said = next(text for row in free.texts for text in row if len(text.split()) > 3)
    stop = said[2:5]  # of two tokens
    whole, _ = drawn([policy], problems, [], stop=("never", stop))
    assert 0 < sum(stop in text for row in free.texts for text in row) < whole.ended.size
    assert (whole.lengths < free.lengths).any()
    for steps in ([1], [2], [3], [1, 1, 1, 1, 1]):
        found, _ = drawn([policy, make_policy(eager=2.0)], problems, steps, stop=("never", stop))
        check_same(found, whole)


@pytest.mark.parametrize("swapped", [False, True])
def test_under_newer_weights_each_token_has_the_log_prob_of_those_that_drew_it(
    swapped: bool,
    make_policy: Make,
    problems: list[Problem],
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
    alone: Callable[..., Tensor],
) -> None:
    old, new = make_policy(seed=0, eager=2.0), make_policy(seed=1, eager=2.0)
    config, asked = SamplingConfig(max_tokens=LIMIT), {"samples": 4, "seed": 0, "step": 0, "groups": range(3)}
    first = sample(old, 4, problems, config, **asked, hooks=Hooks(stop_now=after(4)))  # type: ignore[arg-type]
    first = replace(first, makers=(Maker(),) * 3)
    weights = {name: value.clone() for name, value in new.weights().items()}
    policy, versions = (make_policy(seed=0, eager=2.0), iter([6])) if swapped else (new, iter([]))

    def fresh() -> int | None:  # it comes before the first token
        if (version := next(versions, None)) is not None:
            policy.load_weights(weights)
        return version

    so_far = SoFar.of(first, LIMIT)
    rest = sample(policy, 5, problems, config, **asked, so_far=so_far, hooks=Hooks(fresh=fresh))  # type: ignore[arg-type]
    found = joined(first, replace(rest, makers=(Maker(),) * 3))
    scored = {4: exactly(old.model), 6 if swapped else 5: exactly(new.model)}
    assert set(found.versions[found.inside]) == set(scored)
    for p, prompt in enumerate(found.prompts):
        for g, length in enumerate(found.lengths[p]):
            tokens, versions_of = found.tokens[p, g, :length], found.versions[p, g, :length]
            assert versions_of.tolist() == sorted(versions_of)
            assert (versions_of == 4).sum() == min(4, length)
            for version, model in scored.items():
                with torch.no_grad():
                    expected = alone(model, prompt, tokens).numpy()
                drew = versions_of == version
                np.testing.assert_allclose(found.logprobs[p, g, :length][drew], expected[drew], atol=1e-4)


def test_two_types_of_arithmetic_are_none(make_policy: Make, problems: list[Problem]) -> None:
    found, _ = drawn([make_policy()], problems, [3])
    before = replace(found, makers=(Maker("a", "float32"),) * 3)
    none = replace(found, lengths=np.zeros_like(found.lengths), ended=np.zeros_like(found.ended))
    more = replace(
        none, lengths=none.lengths + np.array([[1], [0], [0]], np.int32), makers=(Maker("b", "bfloat16"),) * 3
    )
    assert joined(before, more).makers == (Maker("a, b", ""), Maker("a", "float32"), Maker("a", "float32"))
    assert joined(replace(none, makers=before.makers), more).makers[0] == Maker("b", "bfloat16")  # a drew nothing of it


# -- what is refused

PROBLEMS = (Problem("add 1 to 2", "1 + 2", "a:1"), Problem("add 2 to 2", "2 + 2", "a:2"))
BEFORE = Rollouts.padded(
    PROBLEMS, [[5], [6]], [[1, 2], [1], [3, 3, 3, 3], []], version=5, ended=[False, True, False, False]
)
SO_FAR = SoFar.of(BEFORE, 4)
ASKED = Asked(PROBLEMS, 2, 4, range(5, 8), 100, SO_FAR, unfinished=True)


def more(*rows: Sequence[int], ended: Sequence[bool] = (False,) * 4, version: int = 6, **other: object) -> Rollouts:
    return replace(Rollouts.padded(PROBLEMS, [[5], [6]], rows, version=version, ended=ended), **other)  # type: ignore[arg-type]


def test_what_is_over_is_not_gone_on_with() -> None:
    rows = [None if tokens is None else tokens.tolist() for tokens in SO_FAR.tokens]
    assert rows == [[1, 2], None, None, []]
    assert over(BEFORE, 4).tolist() == [[False, True], [True, False]]


def test_a_part_that_is_none_is_refused_in_words() -> None:
    assert refusal(more([7], [], [], [1, 2]), ASKED) == ""
    assert refusal(more([7, 8], [], [], []), ASKED) == ""
    assert refusal(more([7, 8], [], [], [1], ended=[False, False, False, True]), replace(ASKED, unfinished=False)) == ""
    nonsense = {
        "it goes on with a completion that was over": [
            more([7], [8], [], []),
            more([7], [], [8], []),
            more([7], [], [], [], ended=[False, True, False, False]),
        ],
        "a completion has 5 tokens with those before, not 4 at most": [more([7, 7, 7], [], [], [])],
        "a completion has 5 of 4 tokens": [more([7], [], [], [1] * 4, lengths=np.array([[1, 0], [0, 5]], np.int32))],
        "it has drawn no token": [more([7], [], [], [], lengths=np.zeros((2, 2), np.int32))],
        "a completion has ended without a token": [more([7], [], [], [], ended=[False, False, False, True])],
        "its prompts are others than before": [
            more([7], [], [], [], prompts=(np.array([5], np.int32), np.array([7], np.int32)))
        ],
        "a token was sampled with v4, not with v5 to v7": [more([7], [], [], [], version=4)],
        "token id 100 is not in the vocabulary, 0 to 99": [more([100], [], [], [])],
    }
    for why, given_back in nonsense.items():
        assert [refusal(each, ASKED) for each in given_back] == [why] * len(given_back)
    short = refusal(more([7], [], [], [1]), replace(ASKED, unfinished=False))
    assert short == "a completion is not over, and has not 4 tokens"
    first = replace(ASKED, so_far=None)
    assert refusal(more([7], [], [1], [1, 2]), first) == ""  # one that has waited for room
    assert refusal(more([7], [], [1], [1, 2]), replace(first, unfinished=False)) == "a completion has 0 of 2 tokens"


@given(st.data())
def test_no_nonsense_raises(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(0, 120), max_size=5), min_size=4, max_size=4))
    if not any(rows):
        return
    ended = data.draw(st.lists(st.booleans(), min_size=4, max_size=4))
    part = more(*rows, ended=ended, version=data.draw(st.integers(3, 8)))
    if refusal(part, ASKED) == "":
        found = joined(replace(BEFORE, makers=(Maker(),) * 2), replace(part, makers=(Maker(),) * 2))
        assert (found.lengths <= 4).all()
        assert not found.ended[1, 0]
        assert found.tokens[found.inside].max() < 100
        for before, row, whole, t in zip(
            ([1, 2], [1], [3] * 4, []), rows, found.tokens.reshape(4, -1).tolist(), found.lengths.ravel(), strict=True
        ):
            assert whole[:t] == [*before, *row]
            assert not any(whole[t:])


# -- when one ends


def test_a_slice_ends_in_time_or_as_its_worker_leaves_and_never_before_it_was_worth_its_beginning() -> None:
    now, leaves = 0.0, False
    ends = [SliceEnd(seconds, lambda: leaves, lambda: now) for seconds in (1.0, 60.0)]
    now = 2.0
    assert [end() for end in ends] == [False, False]  # the first step took 2 s
    now = 2 / SHARE - 0.01
    assert [end() for end in ends] == [False, False]
    now = 2 / SHARE
    assert [end() for end in ends] == [True, False]
    now = 60.0
    assert [end() for end in ends] == [True, True]
    now, end = 0.0, SliceEnd(60, lambda: leaves, lambda: now)
    now = 0.1
    assert not end()
    leaves = True
    assert end()


def test_what_the_policy_wrote_stays_known_behind_an_observation() -> None:
    problems, prompts = [Problem("", "", "t:0")], [[1]]
    makers = {"makers": (Maker("a", "float32"),)}
    first = replace(Rollouts.padded(problems, prompts, [[5, 6], [7]]), **makers)
    flags = [[False, False, True], [False, True]]
    more = replace(Rollouts.padded(problems, prompts, [[8, 8, 9], [8, 9]], trained=flags), **makers)
    found = joined(first, more)
    assert found.tokens.tolist() == [[[5, 6, 8, 8, 9], [7, 8, 9, 0, 0]]]
    assert found.trained.tolist() == [[[True, True, False, False, True], [True, False, True, False, False]]]
    assert found.trained_lengths.tolist() == [[3, 2]]
