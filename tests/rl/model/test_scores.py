"""Log-probs, entropies and gradients of target_scores against log_softmax and autograd in float64."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.learning.learner import Learner
from rl.model import products, scores
from rl.model.head import head_logits
from rl.model.scores import target_scores
from rl.records import Batch
from tests.rl.saved import Build
from tests.rl.updates import PLAIN, REINFORCE, Make, gradient_of, identical, weights

N, H = 23, 32
HEADS: dict[str, tuple[str, dict[str, Any]]] = {  # the model, and what its configuration says of logits
    "tied": ("qwen3", {}),
    "untied": ("llama", {}),
    "bias": ("bias", {}),
    "cohere": ("llama", {"logit_scale": 0.3}),
    "granite": ("llama", {"logits_scaling": 4.0}),
    "gemma": ("qwen3", {"final_logit_softcapping": 2.0}),
    "all": ("bias", {"logit_scale": 0.7, "logits_scaling": 0.5, "final_logit_softcapping": 3.0}),
}


@pytest.fixture(scope="module")
def build_head(build_small: Build) -> Callable[..., PreTrainedModel]:
    def build(head: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        name, changes = HEADS[head]
        model = build_small("llama" if name == "bias" else name)
        if name == "bias":
            model.lm_head.bias = nn.Parameter(torch.linspace(-2, 2, model.config.vocab_size))
        for key, value in changes.items():
            setattr(model.config, key, value)
        return model.to(dtype)

    return build


def at_random(model: PreTrainedModel, count: int = N, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states [N, H], targets [N] and the weights [N] of a loss."""
    draws = torch.Generator().manual_seed(seed)
    hidden = 2 * torch.randn(count, H, generator=draws, dtype=torch.float64)
    targets = torch.randint(model.config.vocab_size, (count,), generator=draws)
    weights = torch.randn(count, generator=draws, dtype=torch.float64)
    return hidden.to(model.dtype), targets, weights


Found = tuple[Tensor, Tensor, list[Tensor]]  # log-probs, entropies, gradients of hidden states, weight and bias


def in_float64(model: PreTrainedModel, hidden: Tensor, targets: Tensor, weights: Tensor, temperature: float) -> Found:
    """By the formulas, all at once."""
    config = model.config
    leaves = [one.detach().double().requires_grad_() for one in (hidden, *model.lm_head.parameters())]
    logits = leaves[0] @ leaves[1].T
    if len(leaves) > 2:
        logits = logits + leaves[2]
    logits = logits * getattr(config, "logit_scale", 1) / getattr(config, "logits_scaling", 1)
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    every = torch.distributions.Categorical(logits=logits / temperature)
    logprobs = every.log_prob(targets)
    (weights * logprobs).sum().backward()
    return logprobs.detach(), every.entropy().detach(), [one.grad for one in leaves if one.grad is not None]


def found(
    model: PreTrainedModel,
    hidden: Tensor,
    targets: Tensor,
    weights: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> Found:
    model.zero_grad()
    logprobs, entropy, of_hidden = target_scores(
        model, hidden, targets, temperature, lambda logprobs, part: (weights[part] * logprobs).sum(), chunk
    )
    gradients = [of_hidden, *(one.grad for one in model.lm_head.parameters())]
    return logprobs, entropy, [gradient for gradient in gradients if gradient is not None]


def summed(logprobs: Tensor, _: slice) -> Tensor:
    return logprobs.sum()


def near(one: Found, other: Found, scores: float, gradients: float) -> None:
    for index in (0, 1):
        torch.testing.assert_close(one[index].double(), other[index].double(), atol=scores, rtol=scores)
    for mine, theirs in zip(one[2], other[2], strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), atol=gradients, rtol=gradients)


@pytest.mark.parametrize("chunk", [1, 7, N, 100, None])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("head", HEADS)
def test_scores_and_gradients_are_those_of_a_log_softmax_in_float64(
    head: str, temperature: float, chunk: int | None, build_head: Callable[..., PreTrainedModel]
) -> None:
    for dtype, of_scores, of_gradients in ((torch.float32, 1e-6, 1e-5), (torch.float64, 1e-12, 1e-12)):
        model = build_head(head, dtype)
        given = at_random(model)
        one = found(model, *given, temperature, chunk)
        assert one[0].dtype == one[1].dtype == dtype
        assert len(one[2]) == (3 if model.lm_head.bias is not None else 2)
        near(one, in_float64(model, *given, temperature), of_scores, of_gradients)


@given(chunk=st.integers(1, 30), count=st.integers(0, 25), seed=st.integers(0, 9))
def test_the_size_of_a_chunk_changes_nothing(
    build_head: Callable[..., PreTrainedModel], chunk: int, count: int, seed: int
) -> None:
    model = build_head("all", torch.float64)
    given = at_random(model, count, seed)
    near(found(model, *given, 0.9, chunk), found(model, *given, 0.9), 1e-12, 1e-12)


@pytest.mark.parametrize("chunk", [None, 4])
def test_no_tokens_have_no_scores_and_no_gradient(
    chunk: int | None, build_head: Callable[..., PreTrainedModel]
) -> None:
    logprobs, entropy, gradients = found(model := build_head("bias"), *at_random(model, 0), 1.0, chunk)
    assert logprobs.shape == entropy.shape == (0,)
    assert not any(gradient.any() for gradient in gradients)


def by_autograd(model: PreTrainedModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """The sum of the log-probs, differentiable, from the logits of all tokens at once."""
    logits = head_logits(model, hidden)
    return -nn.functional.cross_entropy(logits, targets, reduction="sum")


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_the_gradient_of_several_backward_passes_adds_up_with_that_of_the_embedding(
    head: str, build_head: Callable[..., PreTrainedModel]
) -> None:
    model = build_head(head, torch.float64)
    tokens = torch.tensor([[5, 90, 300, 17, 44, 90]])
    gradients = []
    for chunk in (None, 2):
        model.zero_grad()
        for _ in range(2):
            hidden = model.model(tokens).last_hidden_state[0, :-1]
            if chunk is None:
                by_autograd(model, hidden, tokens[0, 1:]).backward()
            else:
                hidden.backward(target_scores(model, hidden, tokens[0, 1:], 1.0, summed, chunk)[2])
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert other.any()
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("how", ["in slices", "rounded", "at once"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_narrow_arithmetic_are_exact_and_gradients_as_good_as_autocast_s(
    dtype: torch.dtype, how: str, build_head: Callable[..., PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "AT_ONCE", ("cpu",) if how == "at once" else ())
    monkeypatch.setattr(scores, "gradient_type", lambda *_: dtype if how == "rounded" else torch.float32)
    monkeypatch.setattr(products, "CPU_SLICE", 2000)  # several slices
    model = build_head("gemma", dtype)
    hidden, targets, _ = at_random(model)
    hidden = hidden.float().requires_grad_()
    exact = in_float64(model.float(), hidden, targets, torch.ones(N), 1.0)
    with torch.autocast("cpu", dtype=dtype):
        by_autograd(model, hidden, targets).backward()
        autograd: list[Any] = [hidden.grad, model.lm_head.weight.grad]
        one = found(model, hidden, targets, torch.ones(N), 1.0, 7)
    assert {of.dtype for of in (*one[:2], *one[2])} == {torch.float32}
    near((*one[:2], []), (*exact[:2], []), 1e-5, 0)
    for mine, theirs, wanted in zip(one[2], autograd, exact[2], strict=True):
        far, as_far = (float((of.double() - wanted).norm() / wanted.norm()) for of in (mine, theirs))
        assert (0 if how == "in slices" else 1e-5) < far < 1.2 * as_far  # of as many roundings


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_what_is_frozen_gets_no_gradient(frozen: str, build_head: Callable[..., PreTrainedModel]) -> None:
    model = deepcopy(build_head("bias"))
    hidden, targets, _ = at_random(model)
    model.lm_head.get_parameter(frozen).requires_grad_(False)
    assert target_scores(model, hidden, targets, 1.0, summed, 7)[2] is not None
    assert [name for name, one in model.lm_head.named_parameters() if one.grad is None] == [frozen]


def test_without_a_loss_there_is_no_gradient(build_head: Callable[..., PreTrainedModel]) -> None:
    model = deepcopy(build_head("all"))
    hidden, targets, _ = at_random(model)
    plain = target_scores(model, hidden, targets, 1.0, chunk=7)
    with_loss = target_scores(model, hidden, targets, 1.0, summed, chunk=7)
    assert plain[2] is None
    assert all(torch.equal(*pair) for pair in zip(plain[:2], with_loss[:2], strict=True))


def test_a_head_that_is_no_plain_matrix_is_left_to_autograd(build_head: Callable[..., PreTrainedModel]) -> None:
    model = deepcopy(build_head("untied"))
    given = at_random(model)
    expected = found(model, *given)
    model.lm_head = nn.Sequential(model.lm_head)
    near(found(model, *given, chunk=7), expected, 1e-6, 1e-6)


def test_a_state_that_is_no_number_makes_all_its_scores_none(build_head: Callable[..., PreTrainedModel]) -> None:
    model = build_head("tied")
    hidden, targets, weights = at_random(model)
    hidden[9, 3] = torch.nan
    for chunk in (None, 7):
        logprobs, entropy, gradients = found(model, hidden, targets, weights, 1.0, chunk)
        wrong = torch.arange(N) == 9
        assert torch.equal(logprobs.isnan(), wrong)
        assert torch.equal(entropy.isnan(), wrong)
        assert torch.equal(gradients[0].isnan().any(1), wrong)
        assert gradients[1].isnan().all()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch, tokenizer: PreTrainedTokenizerBase) -> None:
    """Five tokens at a time, however few there are."""
    monkeypatch.setattr(scores, "CHUNK", 5 * len(tokenizer))


@pytest.mark.parametrize("name", ["qwen3", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_update_in_chunks_is_the_same(
    name: str, dtype: torch.dtype, make_policy: Make, drawn: Callable[..., Batch], request: pytest.FixtureRequest
) -> None:
    batch = drawn(make_policy(name, eager=4.0))
    learners = [Learner(replace(make_policy(name, eager=4.0), dtype=dtype), PLAIN) for _ in range(2)]
    whole = gradient_of(learners[0], batch)
    request.getfixturevalue("small_chunks")
    in_chunks = gradient_of(learners[1], batch)
    near = {torch.float32: 1e-5, torch.float16: 2e-3}[dtype]
    for one, other in zip(whole, in_chunks, strict=True):
        torch.testing.assert_close(one, other, atol=near, rtol=10 * near)
    learned = [learner.learned.metrics for learner in learners if learner.learned]
    assert learned[0] == pytest.approx(learned[1], rel=10 * near, abs=near)


@pytest.mark.usefixtures("small_chunks")
def test_an_update_with_hidden_states_that_are_no_numbers_is_refused(
    make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    learner = Learner(make_policy(eager=4.0), PLAIN)
    batch = drawn(learner.policy)
    norm = learner.policy.model.model.norm.weight
    with torch.no_grad():
        norm[0] = torch.inf
    before = weights(learner)
    assert learner.update(batch, REINFORCE, 1.0).refused == "the loss of update 1 is not finite"
    assert identical(weights(learner), before)
    assert all(parameter.grad is None for parameter in learner.parameters)
    with torch.no_grad():
        norm[0] = 1
    assert learner.update(batch, REINFORCE, 1.0).applied


class Made(TorchDispatchMode):
    """The sizes of all tensors that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = set[tuple[int, ...]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.sizes |= {tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_of_an_update_has_the_logits_of_more_tokens_than_a_chunk(
    dtype: torch.dtype, make_policy: Make, drawn: Callable[..., Batch], request: pytest.FixtureRequest
) -> None:
    batch = drawn(make_policy(eager=4.0))
    tokens = int(batch.rollouts.lengths[[0, 2]].sum())
    rows = []
    for fixture in (None, "small_chunks"):
        if fixture:
            request.getfixturevalue(fixture)
        learner = Learner(replace(make_policy(eager=4.0), dtype=dtype), PLAIN)
        vocabulary = learner.policy.model.config.vocab_size
        with Made() as made:
            assert learner.update(batch, REINFORCE, 1.0).applied
        logits = {size for size in made.sizes if vocabulary in size and set(size) != {vocabulary, H}}
        rows.append(max(math.prod(size) // vocabulary for size in logits))
    assert rows == [tokens, 5]
