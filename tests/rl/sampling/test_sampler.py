from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.config import SamplingConfig
from rl.learning.logprobs import token_scores
from rl.learning.packing import pack, rows_of
from rl.model.policy import Policy
from rl.records import Problem, Rollouts
from rl.sampling import decoding
from rl.sampling.sampler import as_rollouts, sample
from rl.sampling.scheduling import Draw

Make = Callable[..., Policy]
Exactly = Callable[[PreTrainedModel], PreTrainedModel]

ARCHITECTURES = ("qwen3", "llama", "gpt2")  # tied with grouped heads; untied; tied with learned positions
SHORT = SamplingConfig(max_tokens=10)


def draw(policy: Policy, problems: list[Problem], config: SamplingConfig = SHORT, **changes: object) -> Rollouts:
    wanted = {"samples": 6, "seed": 0, "step": 0, "groups": range(len(problems)), **changes}
    return sample(policy, 4, problems, config, **wanted)  # type: ignore[arg-type]


def same(one: Rollouts, p: int, other: Rollouts, q: int) -> bool:
    """Whether group p of one is group q of the other: tokens exactly, log-probs to rounding."""
    if not np.array_equal(one.lengths[p], other.lengths[q]) or not np.array_equal(one.ended[p], other.ended[q]):
        return False
    longest = one.lengths[p].max()
    close = np.allclose(one.logprobs[p, :, :longest], other.logprobs[q, :, :longest], atol=1e-5)
    return close and np.array_equal(one.tokens[p, :, :longest], other.tokens[q, :, :longest])


# -- log-probs


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_log_probs_are_the_trainers_and_those_of_each_sequence_alone(
    name: str,
    temperature: float,
    make_policy: Make,
    problems: list[Problem],
    exactly: Exactly,
    alone: Callable[..., Tensor],
) -> None:
    policy = make_policy(name, eager=3.5)
    rollouts = draw(policy, problems, SamplingConfig(max_tokens=10, temperature=temperature))
    assert len({len(prompt) for prompt in rollouts.prompts}) == len(problems)
    assert 0 < rollouts.ended.sum() < rollouts.ended.size

    packed = pack(rollouts, rows_of(rollouts, range(len(problems))), policy.device)
    with torch.no_grad():
        trainer, _ = token_scores(policy, packed, temperature)
    assert trainer.dtype == torch.float32
    assert len(trainer) == rollouts.generated_tokens  # no padding, every token
    behaviour = torch.from_numpy(rollouts.logprobs)[packed.group, packed.sample, packed.token_index]
    torch.testing.assert_close(trainer, behaviour, atol=1e-4, rtol=0)

    reference = exactly(policy.model)
    for p, prompt in enumerate(rollouts.prompts):
        for g, length in enumerate(rollouts.lengths[p]):
            with torch.no_grad():
                expected = alone(reference, prompt, rollouts.tokens[p, g, :length], temperature)
            np.testing.assert_allclose(rollouts.logprobs[p, g, :length], expected, atol=1e-4, rtol=0)


def test_log_probs_of_a_policy_in_bfloat16_are_float32_and_near(make_policy: Make, problems: list[Problem]) -> None:
    policy = make_policy("llama", eager=5.0)
    half = Policy(policy.model, policy.tokenizer, policy.device, torch.bfloat16)
    rollouts = draw(policy, problems)
    packed = pack(rollouts, rows_of(rollouts, range(len(problems))), policy.device)
    with torch.no_grad():
        scores, entropy = token_scores(half, packed, 1.0)
    behaviour = torch.from_numpy(rollouts.logprobs)[packed.group, packed.sample, packed.token_index]
    assert scores.dtype == entropy.dtype == torch.float32
    assert 1e-5 < (scores - behaviour).abs().mean() < 0.1


# -- where completions end


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_end_token_is_the_last_of_an_ended_completion_and_others_are_cut_at_the_limit(
    name: str, make_policy: Make, problems: list[Problem]
) -> None:
    policy = make_policy(name, eager=5.0)
    rollouts = draw(policy, problems, samples=12)
    assert 0 < rollouts.ended.sum() < rollouts.ended.size
    for p in range(len(problems)):
        for g, length in enumerate(rollouts.lengths[p]):
            tokens, logprobs = rollouts.tokens[p, g], rollouts.logprobs[p, g]
            assert policy.end not in tokens[: length - 1]
            assert (tokens[length - 1] == policy.end) == rollouts.ended[p, g]
            assert rollouts.ended[p, g] or length == SHORT.max_tokens
            assert (logprobs[:length] < 0).all()
            assert not tokens[length:].any()
            assert not logprobs[length:].any()
            assert rollouts.versions[p, g].tolist() == [4] * length + [0] * (tokens.size - length)
            text = policy.tokenizer.decode(tokens[: length - rollouts.ended[p, g]], skip_special_tokens=True)
            assert rollouts.texts[p][g] == text


def test_an_end_token_sampled_as_the_last_allowed_token_counts_as_ended(
    make_policy: Make, problems: list[Problem]
) -> None:
    rollouts = draw(make_policy(eager=50.0), problems, SamplingConfig(max_tokens=1))
    assert rollouts.ended.all()
    assert (rollouts.lengths == 1).all()
    assert set(sum(rollouts.texts, ())) == {""}


def test_each_of_the_models_end_tokens_ends_a_completion(make_policy: Make, problems: list[Problem]) -> None:
    def ended_by(tokens: list[int]) -> Rollouts:
        policy = make_policy()
        policy.model.generation_config.eos_token_id = tokens
        return draw(policy, problems, samples=12)

    free = ended_by([])
    other = int(np.bincount(free.tokens[..., :5].ravel())[3:].argmax()) + 3  # not a special token: one that shows
    rollouts = ended_by([2, other])
    assert 0 < rollouts.ended.sum() < rollouts.ended.size
    for p in range(len(problems)):
        for g, length in enumerate(rollouts.lengths[p]):
            tokens = rollouts.tokens[p, g, :length].tolist()
            assert np.array_equal(tokens, free.tokens[p, g, :length])
            assert not {2, other} & set(tokens[:-1])
            assert (tokens[-1] in (2, other)) == rollouts.ended[p, g]
            said = tokens[: length - rollouts.ended[p, g]]
            assert rollouts.texts[p][g] == make_policy().tokenizer.decode(said, skip_special_tokens=True)


def test_a_stop_string_ends_a_completion_and_is_no_part_of_its_text(make_policy: Make, problems: list[Problem]) -> None:
    policy = make_policy()
    free = draw(policy, problems, samples=12)
    # over two tokens that were drawn one after the other, the first letter of one and all of the other
    said = next(text for row in free.texts for text in row if len(text.split()) > 2)
    stop = said[2:5]
    rollouts = draw(policy, problems, SamplingConfig(max_tokens=10, stop=("never", stop)), samples=12)
    stopped = [(p, g) for p in range(3) for g in range(12) if stop in free.texts[p][g]]
    assert 0 < len(stopped) < rollouts.ended.size
    for p in range(len(problems)):
        for g, length in enumerate(rollouts.lengths[p]):
            tokens = free.tokens[p, g, :length]
            assert np.array_equal(rollouts.tokens[p, g, :length], tokens)
            np.testing.assert_allclose(rollouts.logprobs[p, g, :length], free.logprobs[p, g, :length], atol=1e-5)
            assert rollouts.texts[p][g] == free.texts[p][g].partition(stop)[0]
            if (p, g) in stopped:
                assert rollouts.ended[p, g]
                decode = policy.tokenizer.decode
                assert stop in decode(tokens, skip_special_tokens=True)
                assert stop not in decode(tokens[:-1], skip_special_tokens=True)
            else:
                assert rollouts.ended[p, g] == free.ended[p, g]


def test_what_is_judged_is_what_was_sampled_to_the_letter(
    make_policy: Make, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    said = np.array([policy.tokenizer("what is 3 . 5 ?")["input_ids"]], dtype=np.int32)
    found = [Draw((), 20, None, said[0], np.zeros(said.shape[1], dtype=np.float32))]
    monkeypatch.setattr(policy.tokenizer, "clean_up_tokenization_spaces", True)  # as many models' files say
    assert policy.tokenizer.decode(said[0]) == "what is 3. 5?"
    for stop, text in (((), "what is 3 . 5 ?"), ((" .",), "what is 3"), (("3.",), "what is 3 . 5 ?")):
        assert as_rollouts(policy, problems[:1], [[7]], found, stop, 0.0).texts == ((text,),)
    assert decoding.StopStrings(policy, ["5 ?"]).reached(said) == [True]
    assert decoding.StopStrings(policy, ["5?"]).reached(said) == [False]


@pytest.mark.parametrize("between", range(4))
def test_a_stop_string_is_seen_over_special_tokens(between: int, make_policy: Make) -> None:
    policy = make_policy()
    said = policy.tokenizer("what is 3 . 5 ?")["input_ids"]
    special = [policy.tokenizer.pad_token_id] * between
    tokens = np.array([*said[:-1], *special, said[-1]])
    stops = decoding.StopStrings(policy, ["5 ?"])
    assert stops.cut(policy.tokenizer.decode(tokens, **decoding.TO_THE_LETTER)) == "what is 3 . "
    assert stops.reached([tokens, tokens[:-1], tokens[-1:]]) == [True, False, False]
    spread = np.array([part for token in said for part in (token, *special)])
    assert stops.reached([spread, spread[: -1 - between]]) == [True, False]


def test_a_stop_string_that_is_a_special_tokens_own_text_is_that_token(make_policy: Make) -> None:
    policy = make_policy()
    said = policy.tokenizer("what is 3 . 5 ?")["input_ids"]
    stops = decoding.StopStrings(policy, [policy.tokenizer.pad_token, "nothing"])
    assert stops.ends == {policy.tokenizer.pad_token_id}
    ended = np.array([*said, policy.tokenizer.pad_token_id])
    assert stops.reached([ended, ended[:-1], ended[:0]]) == [True, False, False]


def test_the_record_holds_what_was_asked(make_policy: Make, problems: list[Problem]) -> None:
    policy = make_policy(eager=5.0)
    rollouts = draw(policy, problems)
    assert rollouts.problems == tuple(problems)
    assert [prompt.tolist() for prompt in rollouts.prompts] == [policy.prompt_tokens(p.prompt) for p in problems]
    assert rollouts.tokens.shape == rollouts.logprobs.shape == (3, 6, rollouts.lengths.max())
    assert (rollouts.tokens.dtype, rollouts.logprobs.dtype, rollouts.lengths.dtype) == (np.int32, np.float32, np.int32)
    assert rollouts.seconds > 0


# -- which noise


def test_a_group_is_the_same_alone_beside_others_and_in_any_order(make_policy: Make, problems: list[Problem]) -> None:
    policy = make_policy(eager=5.0)
    together = draw(policy, problems, groups=[10, 11, 12])
    backwards = draw(policy, problems[::-1], groups=[12, 11, 10])
    for p, problem in enumerate(problems):
        assert same(together, p, draw(policy, [problem], groups=[10 + p]), 0)
        assert same(together, p, backwards, 2 - p)


@pytest.mark.parametrize("other", [{"step": 1}, {"seed": 1}, {"groups": [1]}])
def test_another_step_seed_or_group_is_other_noise(
    other: dict[str, object], make_policy: Make, problems: list[Problem]
) -> None:
    policy = make_policy()
    first = draw(policy, problems[:1], groups=[0])
    assert same(first, 0, draw(policy, problems[:1], groups=[0]), 0)
    assert not same(first, 0, draw(policy, problems[:1], **{"groups": [0], **other}), 0)


def test_more_samples_of_a_group_are_not_copies(make_policy: Make, problems: list[Problem]) -> None:
    assert len({tuple(row) for row in draw(make_policy(), problems[:1]).tokens[0].tolist()}) == 6


def test_sampling_leaves_the_global_stream_alone(make_policy: Make, problems: list[Problem]) -> None:
    policy = make_policy()
    state = torch.get_rng_state()
    draw(policy, problems)
    assert torch.equal(torch.get_rng_state(), state)


# -- which tokens


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.slow), 0.7])
def test_first_tokens_follow_the_softmax(
    temperature: float, make_policy: Make, problems: list[Problem], exactly: Exactly
) -> None:
    policy, samples = make_policy(eager=5.0), 4000
    config = SamplingConfig(max_tokens=1, temperature=temperature)
    rollouts = draw(policy, problems, config, samples=samples)
    reference = exactly(policy.model)
    for p, prompt in enumerate(rollouts.prompts):
        with torch.no_grad():
            logits = reference(torch.tensor([prompt.tolist()]), use_cache=False).logits[0, -1]
        probability = (logits / temperature).softmax(-1).numpy()
        likely = np.argsort(probability)[::-1][:10]
        expected = np.append(probability[likely], 1 - probability[likely].sum()) * samples
        seen = np.array([(rollouts.tokens[p] == token).sum() for token in likely])
        seen = np.append(seen, samples - seen.sum())
        assert ((seen - expected) ** 2 / expected).sum() < 35.6  # 10 degrees of freedom: one in 10,000 is above


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_takes_the_most_likely_token_of_each_sequence_alone(
    name: str, make_policy: Make, problems: list[Problem], exactly: Exactly
) -> None:
    policy = make_policy(name, eager=4.0)
    rollouts = draw(policy, problems, samples=1, greedy=True)
    reference = exactly(policy.model)
    for p, prompt in enumerate(rollouts.prompts):
        tokens = prompt.tolist()
        while len(tokens) - len(prompt) < SHORT.max_tokens and policy.end not in tokens[len(prompt) :]:
            with torch.no_grad():
                tokens.append(int(reference(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        assert rollouts.tokens[p, 0, : rollouts.lengths[p, 0]].tolist() == tokens[len(prompt) :]
