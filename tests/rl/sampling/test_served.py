"""Sampling by a server, one that does as it should and such as do not."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from rl.config import SamplingConfig
from rl.model.policy import Policy, copied_weights
from rl.records import Problem, Rollouts
from rl.sampling.sampler import sample
from rl.sampling.served import first_seed, require_same, require_taken, sample_served
from rl.sampling.server import Server, ServerError
from tests.conftest import free_port
from tests.rl.sampling.vllm_like import VllmLike, vllm_like

Make = Callable[..., Policy]
SHORT = SamplingConfig(max_tokens=8)


@pytest.fixture
def policy(make_policy: Make) -> Policy:
    return make_policy("llama", eager=4.0)


@pytest.fixture
def like(policy: Policy) -> Iterator[VllmLike]:
    with vllm_like(replace(policy, model=deepcopy(policy.model))) as served:
        yield served


def draw(
    policy: Policy, like: VllmLike, problems: list[Problem], config: SamplingConfig = SHORT, **changes: Any
) -> Rollouts:
    server = Server(like.address)
    server.open()
    wanted = {"samples": 5, "seed": 0, "step": 0, "groups": range(len(problems)), **changes}
    return sample_served(policy, server, 4, problems, config, **wanted)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_the_record_is_that_of_the_engine(
    temperature: float,
    policy: Policy,
    like: VllmLike,
    problems: list[Problem],
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
    alone: Callable[..., Tensor],
) -> None:
    rollouts = draw(policy, like, problems, SamplingConfig(max_tokens=8, temperature=temperature), samples=12)
    assert rollouts.problems == tuple(problems)
    assert [prompt.tolist() for prompt in rollouts.prompts] == [policy.prompt_tokens(p.prompt) for p in problems]
    assert rollouts.tokens.shape == (3, 12, rollouts.lengths.max())
    assert 0 < rollouts.ended.sum() < rollouts.ended.size
    reference = exactly(policy.model)
    for p, prompt in enumerate(rollouts.prompts):
        for g, length in enumerate(rollouts.lengths[p]):
            tokens = rollouts.tokens[p, g, :length]
            assert (tokens[-1] == policy.end) == rollouts.ended[p, g]
            assert rollouts.versions[p, g, :length].tolist() == [4] * length
            text = policy.tokenizer.decode(tokens[: length - rollouts.ended[p, g]], skip_special_tokens=True)
            assert rollouts.texts[p][g] == text
            with torch.no_grad():
                expected = alone(reference, prompt, tokens, temperature)
            np.testing.assert_allclose(rollouts.logprobs[p, g, :length], expected, atol=1e-4, rtol=0)


def test_the_same_group_draws_the_same_and_others_do_not(
    policy: Policy, like: VllmLike, problems: list[Problem]
) -> None:
    once, again = (draw(policy, like, problems, groups=[3, 4, 5]) for _ in range(2))
    alone = draw(policy, like, problems[1:2], groups=[4])
    assert np.array_equal(once.tokens, again.tokens)
    longest = alone.lengths.max()
    assert np.array_equal(alone.tokens[0], once.tokens[1, :, :longest])
    firsts = {first_seed(seed, step, group) for seed in (0, 1) for step in (0, 1) for group in range(50)}
    assert len(firsts) == 200
    assert max(firsts) < 2**62  # what the server adds to one stays in 64 bits


def test_greedy_takes_the_most_likely_tokens(policy: Policy, like: VllmLike, problems: list[Problem]) -> None:
    greedy = {"samples": 1, "seed": 0, "step": 0, "groups": range(3), "greedy": True}
    ours = sample(policy, 4, problems, SHORT, **greedy)  # type: ignore[arg-type]
    rollouts = draw(policy, like, problems, **greedy)
    assert np.array_equal(rollouts.tokens, ours.tokens)
    np.testing.assert_allclose(rollouts.logprobs, ours.logprobs, atol=1e-5)
    assert draw(policy, like, problems, **{**greedy, "samples": 3}).tokens.shape[1] == 3


def test_a_stop_string_ends_a_completion_and_is_no_part_of_its_text(
    policy: Policy, like: VllmLike, problems: list[Problem]
) -> None:
    rollouts = draw(policy, like, problems, SamplingConfig(max_tokens=8, stop=("a",)), samples=12)
    assert not any("a" in text for row in rollouts.texts for text in row)
    last = rollouts.tokens[np.arange(3)[:, None], np.arange(12), rollouts.lengths - 1]
    assert (rollouts.ended & (last != policy.end)).any()


def test_all_that_decides_the_distribution_is_asked_for(
    policy: Policy, like: VllmLike, problems: list[Problem]
) -> None:
    draw(policy, like, problems[:1], SamplingConfig(max_tokens=8, temperature=0.7, stop=("x",)), seed=5, step=2)
    body = like.asked[-1][1]
    neutral = {"top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0}
    neutral |= {"frequency_penalty": 0, "ignore_eos": True, "min_tokens": 0}
    assert body == {
        **neutral,
        "model": "served",
        "prompt": policy.prompt_tokens(problems[0].prompt),
        "n": 5,
        "temperature": 0.7,
        "max_tokens": 8,
        "stop": ["x"],
        "stop_token_ids": list(policy.ends),
        "seed": first_seed(5, 2, 0),
        "return_token_ids": True,
        "logprobs": 0,
        "stream": False,
    }


# -- servers that do as they like


def of_completions(change: Callable[[dict[str, Any]], Any]) -> Callable[[str, Any], Any]:
    """Changes the first choice of each answer."""

    def spoil(path: str, answer: Any) -> Any:
        if path == "/v1/completions":
            change(answer["choices"][0])
        return answer

    return spoil


def cut_short(choice: dict[str, Any]) -> None:
    choice["token_ids"], choice["finish_reason"] = choice["token_ids"][:1], "length"
    choice["logprobs"]["token_logprobs"] = choice["logprobs"]["token_logprobs"][:1]


def set_token(choice: dict[str, Any], token: Any) -> None:
    choice["token_ids"][0] = token


def set_logprob(choice: dict[str, Any], logprob: Any) -> None:
    choice["logprobs"]["token_logprobs"][0] = logprob


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda p, a: 500 if p == "/v1/completions" else a, "answers /v1/completions: status 500"),
        (lambda p, a: [1] if p == "/v1/completions" else a, "something other than a JSON object"),
        (lambda p, a: {"data": []} if p == "/v1/models" else a, "names no model"),
        (lambda p, a: {"data": [{"id": "x"}]} if p == "/v1/models" else a, "is not vLLM.*start it as"),
        (lambda p, a: 404 if p == "/weight_info" else a, "has no /weight_info, by which it is given.*DEV_MODE=1"),
        (lambda p, a: {} if p == "/weight_info" else a, "does not say which weights"),
        (lambda p, a: {"choices": a["choices"][1:]} if p == "/v1/completions" else a, "asked for 5 completions"),
        (of_completions(lambda choice: choice.pop("token_ids")), "returns no token ids"),
        (of_completions(lambda choice: choice.update(logprobs=None)), "no log-probs"),
        (of_completions(lambda choice: choice["prompt_token_ids"].pop()), "another prompt"),
        (of_completions(lambda choice: choice["token_ids"].append(3)), r"returned \d+ tokens with \d+ log-probs"),
        (of_completions(lambda choice: choice.update(token_ids=[])), "returned 0 tokens"),
        (of_completions(lambda choice: set_token(choice, 10**6)), "token id 1000000, of a vocabulary"),
        (of_completions(lambda choice: set_token(choice, -1)), "token id -1"),
        (of_completions(lambda choice: set_token(choice, 1.5)), "token id 1.5"),
        (of_completions(lambda choice: set_logprob(choice, None)), "log-prob None"),
        (of_completions(lambda choice: set_logprob(choice, float("nan"))), "log-prob nan"),
        (of_completions(lambda choice: set_logprob(choice, 0.5)), "log-prob 0.5"),
        (of_completions(lambda choice: choice.update(finish_reason="abort")), "broke a completion off"),
        (of_completions(cut_short), "cut a completion at 1 of 8|ends where the policy's would not"),
        (of_completions(lambda choice: set_token(choice, 2)), "ends where the policy's would not"),
    ],
)
def test_nonsense_names_the_server_and_what_is_wrong(
    spoil: Callable[[str, Any], Any], said: str, policy: Policy, like: VllmLike, problems: list[Problem]
) -> None:
    like.spoil = spoil
    with pytest.raises(ServerError, match=rf"^policy\.engine: .*({said})"):
        draw(policy, like, problems[2:])


def test_nobody_there_and_too_little_room(policy: Policy, like: VllmLike, problems: list[Problem]) -> None:
    with pytest.raises(ServerError, match=r"cannot be reached .*start it as docs/models\.md says"):
        Server(f"http://127.0.0.1:{free_port()}").open()
    like.positions = 20
    with pytest.raises(ServerError, match=r"takes 20 tokens .* start it with --max-model-len \d+"):
        draw(policy, like, problems)
    with pytest.raises(ValueError, match=r"^sampling\.temperature: give at least 0\.01"):
        draw(policy, like, problems, SamplingConfig(max_tokens=8, temperature=0.005))


def test_what_is_raised_between_ends_the_sampling(policy: Policy, like: VllmLike, problems: list[Problem]) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw(policy, like, problems, between_tokens=stop)


# -- weights


def hand_over(server: Server, folder: Path) -> Callable[[Mapping[str, Tensor]], None]:
    def give(weights: Mapping[str, Tensor]) -> None:
        save_file(copied_weights(weights), folder / "model.safetensors")
        server.load(folder, "ours")

    return give


def test_a_server_that_takes_weights_is_seen_to(policy: Policy, like: VllmLike, tmp_path: Path) -> None:
    server, give = Server(like.address), hand_over(Server(like.address), tmp_path)
    server.open()
    weights = copied_weights(policy.weights())
    require_taken(policy, server, weights, give)
    assert all(torch.equal(value, weights[name]) for name, value in policy.weights().items())
    with pytest.raises(ServerError, match=r"nats from the policy's, 0\.1 are allowed"):
        require_same(policy, server)  # it has the moved ones
    give(weights)
    require_same(policy, server)
    assert server.weights() == "ours"
    assert not like.paused


@pytest.mark.slow
@pytest.mark.parametrize("keeps", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"])
def test_one_that_keeps_a_part_of_what_it_began_with_is_refused(
    keeps: str, policy: Policy, like: VllmLike, tmp_path: Path
) -> None:
    kept = dict(like.policy.weights())[keeps]
    before = kept.clone()

    def spoil(path: str, answer: Any) -> Any:
        if path == "/collective_rpc":
            kept.copy_(before)
        return answer

    like.spoil = spoil
    server = Server(like.address)
    server.open()
    with pytest.raises(ServerError, match="does not compute with the weights that it is given"):
        require_taken(policy, server, copied_weights(policy.weights()), hand_over(server, tmp_path))


@pytest.mark.slow
def test_log_probs_without_the_temperature_are_refused(policy: Policy, like: VllmLike, tmp_path: Path) -> None:
    def raw(path: str, answer: Any) -> Any:
        if path == "/v1/completions":
            prompt = like.asked[-1][1]["prompt"]
            for choice in answer["choices"]:
                ids = torch.tensor([[*prompt, *choice["token_ids"]]])
                with torch.no_grad():
                    scores = like.policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
                said = scores.gather(1, ids[0, len(prompt) :, None]).squeeze(1)
                choice["logprobs"]["token_logprobs"] = said.tolist()
        return answer

    like.spoil = raw
    server = Server(like.address)
    server.open()
    with pytest.raises(ServerError, match="processed_logprobs"):
        require_taken(policy, server, copied_weights(policy.weights()), hand_over(server, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/collective_rpc", 500, "could not take the weights in .*, which it has to be able to read: status 500"),
        ("/collective_rpc", 404, "has no /collective_rpc"),
        ("/reset_prefix_cache", {"success": False}, "did not forget the prompts"),
        ("/weight_info", {"weight_version": "another's"}, "is given weights by another program, too"),
    ],
)
def test_a_hand_over_that_fails_leaves_no_name_and_no_pause(
    path: str, answer: Any, said: str, policy: Policy, like: VllmLike, tmp_path: Path
) -> None:
    like.spoil = lambda asked, given: answer if asked == path else given
    save_file(copied_weights(policy.weights()), tmp_path / "model.safetensors")
    with pytest.raises(ServerError, match=said):
        Server(like.address).load(tmp_path, "ours")
    assert like.named == "being loaded: ours"
    assert not like.paused
