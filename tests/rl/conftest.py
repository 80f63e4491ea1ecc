"""Small real models, and the computation that everything is compared with: one sequence at a time, without padding,
packing or cache, in float64, through the model's own forward pass."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rl.config import SamplingConfig
from rl.model import scores
from rl.model.policy import Policy
from rl.model.tiny import build_tokenizer
from rl.records import Batch, Problem, Rollouts
from rl.sampling.sampler import sample
from tests.rl.updates import REWARDS, Judged, Make, off_policy

settings.register_profile("rl", deadline=None)  # another process may take the processor in the middle of an example
settings.load_profile("rl")

PROMPTS = ("7", "add 3 and 4.", "take 12 minus 5, then multiply that by 31 and add 17 to the result.")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return build_tokenizer()


@pytest.fixture(scope="session")
def build_small(tokenizer: PreTrainedTokenizerBase) -> Callable[..., PreTrainedModel]:
    """A model of two layers; its weights are large enough that tokens differ clearly in probability."""

    def build(name: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
        ids = {"vocab_size": len(tokenizer), "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
        size = {"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.15}
        small = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.15}
        torch.manual_seed(seed)
        match name:
            case "qwen3":
                tied = {"head_dim": 8, "tie_word_embeddings": True}
                model = Qwen3ForCausalLM(Qwen3Config(**{**ids, **heads, **size, **tied, **changes}))
            case "llama":
                model = LlamaForCausalLM(
                    LlamaConfig(**{**ids, **heads, **size, "tie_word_embeddings": False, **changes})
                )
            case "gemma2":
                capped = {"head_dim": 8, "attn_implementation": "eager"}
                model = Gemma2ForCausalLM(Gemma2Config(**{**ids, **heads, **size, **capped, **changes}))
            case _:
                model = GPT2LMHeadModel(GPT2Config(**{**ids, **small, **changes}))
        return model.eval()

    return build


@pytest.fixture(scope="session")
def make_policy(
    tokenizer: PreTrainedTokenizerBase, build_small: Callable[..., PreTrainedModel]
) -> Callable[..., Policy]:
    """A new policy around a small model. ``eager`` is added to the logit of the end token, by a bias on the head, so
    that completions end early: at 5 after about nine tokens."""

    def make(name: str = "qwen3", seed: int = 0, eager: float = 0.0) -> Policy:
        model = build_small(name, seed)
        if eager:
            bias = torch.zeros(len(tokenizer))
            bias[tokenizer.eos_token_id] = eager
            model.lm_head.bias = nn.Parameter(bias)
        return Policy(model, tokenizer, torch.device("cpu"), torch.float32)

    return make


@pytest.fixture(scope="session")
def problems() -> list[Problem]:
    """Of clearly unequal lengths."""
    return [Problem(prompt, "1", f"test:{index}") for index, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="session")
def make_rollouts() -> Callable[..., Rollouts]:
    """Rollouts of given token ids: a prompt and G completions for each group."""

    def make(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[Sequence[int]]]) -> Rollouts:
        problems = [Problem(f"{p}", "1", "test") for p in range(len(prompts))]
        return Rollouts.padded(problems, prompts, [ids for group in completions for ids in group])

    return make


@pytest.fixture(scope="session")
def judged() -> Callable[..., Batch]:
    """Rollouts with the given [P, G] rewards."""

    def judge(rollouts: Rollouts, rewards: Sequence[Sequence[float]]) -> Batch:
        words = tuple(tuple("right" if reward else "wrong_value" for reward in row) for row in rewards)
        return Batch(rollouts, np.asarray(rewards, dtype=np.float32), words)

    return judge


@pytest.fixture(scope="session")
def exactly() -> Callable[[PreTrainedModel], PreTrainedModel]:
    """The model in float64, a copy."""
    return lambda model: deepcopy(model).double().eval()


@pytest.fixture(scope="session")
def alone() -> Callable[..., Tensor]:
    """[T] log-probs of one completion behind its prompt, differentiable."""

    def logprobs(
        model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0
    ) -> Tensor:
        ids = torch.tensor([[*map(int, prompt), *map(int, completion)]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1] / temperature
        scores: Tensor = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None]).squeeze(1)
        return scores

    return logprobs


@pytest.fixture
def drawn(problems: list[Problem], judged: Judged) -> Callable[..., Batch]:
    """A batch of three groups of four, sampled from the policy."""

    def draw(policy: Policy, temperature: float = 1.0, step: int = 0) -> Batch:
        config = SamplingConfig(max_tokens=8, temperature=temperature)
        return judged(sample(policy, 0, problems, config, samples=4, seed=0, step=step, groups=range(3)), REWARDS)

    return draw


@pytest.fixture
def sequences(
    make_policy: Make,
    drawn: Callable[..., Batch],
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
    alone: Callable[..., Tensor],
) -> Callable[..., tuple[Policy, Batch, PreTrainedModel, dict[tuple[int, int], Tensor], dict[tuple[int, int], Tensor]]]:
    """An off-policy batch, and of each completion of the groups that vary log pi, differentiable, and log mu."""

    def make(name: str = "qwen3", spread: float = 0.3) -> Any:
        policy = make_policy(name, eager=4.0)
        batch = off_policy(drawn(policy), spread)
        model, pi, mu = exactly(policy.model), {}, {}
        for p, row in enumerate(REWARDS):
            for g in range(4) if len(set(row)) > 1 else ():
                length = int(batch.rollouts.lengths[p, g])
                pi[p, g] = alone(model, batch.rollouts.prompts[p], batch.rollouts.tokens[p, g, :length])
                mu[p, g] = torch.from_numpy(batch.rollouts.logprobs[p, g, :length]).double()
        return policy, batch, model, pi, mu

    return make


@pytest.fixture
def several_chunks(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of a few tokens at a time, as those of a real vocabulary are."""
    monkeypatch.setattr(scores, "CHUNK", 5 * len(tokenizer))


@pytest.fixture
def flex_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let FlexAttention's plain computation, which makes all scores, have a gradient on a CPU: it does, and is refused
    there because no kernel has one."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
