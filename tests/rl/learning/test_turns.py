"""Updates on completions of several turns: what the policy wrote is learned from, what others wrote is only read."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rl.algorithms import ALGORITHMS
from rl.algorithms.algorithm import Tokens
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.objective import divergence
from rl.learning.packing import pack, rows_of
from rl.learning.scoring import Scoring
from rl.learning.shaping import shaped
from rl.records import Batch, Problem, Rollouts
from tests.rl.turns import OURS, REWARDS, THEIRS, conversations, squeezed
from tests.rl.updates import MAX_TOKENS, PLAIN, Make, compare, gradient_of, identical, weights


def by_hand(
    model: PreTrainedModel, alone: Callable[..., Tensor], batch: Batch, spec: AlgorithmSpec
) -> tuple[Tensor, float]:
    """The loss by one forward pass of each whole sequence, of which a mask takes the policy's tokens, and the mean
    divergence from the reference. Advantages and weights are those of completions of one turn."""
    algorithm, single = spec.algorithm, squeezed(batch)
    if spec.kl.in_reward:
        gap = single.rollouts.logprobs - single.reference_logprobs
        single = replace(single, penalties=spec.kl.coefficient * gap * single.rollouts.inside)
    single = replace(single, rollouts=single.rollouts.only(~np.isnan(single.rewards)))
    used = batch.teaching(every_group=algorithm.every_group).nonzero()[0]
    single = single.select(used)
    inside = single.rollouts.inside
    advantage = algorithm.advantages(single)
    advantage = np.broadcast_to(advantage if advantage.ndim == 3 else advantage[..., None], inside.shape)
    weight = algorithm.token_weights(single.rollouts.lengths, MAX_TOKENS)
    pi = {}
    for (p, g), length in np.ndenumerate(single.rollouts.lengths):
        if length:
            end = int(batch.rollouts.lengths[used[p], g])
            scores = alone(model, batch.rollouts.prompts[used[p]], batch.rollouts.tokens[used[p], g, :end])
            pi[p, g] = scores[torch.from_numpy(batch.rollouts.trained[used[p], g, :end])]
    gaps = torch.cat([of.detach() - torch.from_numpy(single.rollouts.logprobs[at][: len(of)]) for at, of in pi.items()])
    kept = torch.from_numpy(algorithm.token_mask(gaps.float().numpy(), advantage[inside]))
    total, apart, place = torch.zeros((), dtype=torch.float64), 0.0, 0
    for at, of in pi.items():
        mu, a = (
            torch.from_numpy(each[at][: len(of)]).double() for each in (single.rollouts.logprobs, advantage.copy())
        )
        terms = algorithm.token_loss(Tokens(of, mu, a, (of.detach() - mu).mean().expand_as(of))).value
        terms = terms * kept[place : place + len(of)]
        if spec.kl.coefficient and not spec.kl.in_reward:
            kl = divergence(of, torch.from_numpy(single.reference_logprobs[at][: len(of)]).double(), spec.kl.chosen)
            terms, apart = terms + spec.kl.coefficient * kl, apart + float(kl.detach().sum())
        total, place = total + float(weight[at]) * terms.sum(), place + len(of)
    return total, apart / place


SPECS = {
    **{name: {"name": name, "overlong": 0} for name in ALGORITHMS},
    "kl": {"name": "grpo", "kl": {"coefficient": 0.1}},
    "kl_in_reward": {"name": "reinforce_pp", "kl": {"coefficient": 0.1, "in_reward": True}},
}


@pytest.mark.parametrize("case", SPECS)
def test_the_gradient_is_that_of_one_forward_pass_with_a_mask(
    case: str,
    make_policy: Make,
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
    alone: Callable[..., Tensor],
) -> None:
    spec, policy = AlgorithmSpec(**SPECS[case]), make_policy()
    batch = conversations(policy, 0.3 if case != "gspo" else 0.002)
    model = exactly(policy.model)
    loss, apart = by_hand(model, alone, batch, spec)
    learner = Learner(policy, PLAIN, step=3)
    compare(gradient_of(learner, batch, spec), model, loss)
    assert learner.learned is not None
    if case == "kl":
        assert learner.learned.metrics["loss/kl_reference"] == pytest.approx(apart, rel=1e-4)
    else:
        assert learner.learned.metrics["loss/policy"] == pytest.approx(float(loss.detach()), abs=1e-4)


def test_entropy_mismatch_and_staleness_are_means_over_what_the_policy_wrote(
    make_policy: Make, exactly: Callable[[PreTrainedModel], PreTrainedModel]
) -> None:
    policy = make_policy()
    batch = conversations(policy, 0.3)
    of, model = batch.rollouts, exactly(policy.model)
    entropies, mismatches, ages = [], [], []
    for p, g in zip(*(~np.isnan(REWARDS) & batch.with_signal[:, None]).nonzero(), strict=True):
        end, prompt = int(of.lengths[p, g]), of.prompts[p]
        ids = torch.tensor([[*prompt.tolist(), *of.tokens[p, g, :end].tolist()]])
        with torch.no_grad():
            scores = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        for t in of.trained[p, g].nonzero()[0]:
            gap = float(scores[t, of.tokens[p, g, t]]) - float(of.logprobs[p, g, t])
            entropies.append(-float((scores[t].exp() * scores[t]).sum()))
            mismatches.append(math.exp(gap) - gap - 1)
            ages.append(3 - int(of.versions[p, g, t]))
    learned = Learner(policy, PLAIN, step=3).update(batch, AlgorithmSpec(), 1.0)
    assert learned.metrics["policy/entropy"] == pytest.approx(np.mean(entropies), rel=1e-4)
    assert learned.metrics["policy/mismatch_kl"] == pytest.approx(np.mean(mismatches), rel=1e-3)
    assert learned.metrics["staleness/mean"] == pytest.approx(np.mean(ages), rel=1e-6)
    assert learned.metrics["staleness/max"] == max(ages)


EVERYWHERE = [
    {"name": "ppo"},
    {"name": "m2po"},
    {"name": "gspo", "kl": {"coefficient": 0.1}},
    {"name": "reinforce_pp", "kl": {"coefficient": 0.1, "in_reward": True}},
    {"name": "grpo", "minibatches": 2, "epochs": 2, "proximal": "interpolated"},
    {"name": "grpo", "minibatches": 2, "proximal": "recomputed", "entropy": 0.01},
    {"name": "reinforce", "correction": {"kind": "sequence_mask"}},
    {"name": "dapo", "overlong": 60, "mask_truncated": True},
]


@pytest.mark.parametrize("spec", EVERYWHERE, ids=lambda spec: "-".join(map(str, spec)) + "-" + spec["name"])
def test_nothing_of_an_observation_is_read_but_its_token(spec: dict[str, Any], make_policy: Make) -> None:
    learners = []
    for other in (False, True):
        policy = make_policy()
        batch = conversations(policy, 0.3)
        learners.append(Learner(policy, PLAIN, step=3))
        if other:
            apart, random = ~batch.rollouts.trained, np.random.default_rng(9)

            def noise(of: NDArray[Any], apart: NDArray[np.bool_] = apart, random: Any = random) -> NDArray[Any]:
                return np.where(apart, random.integers(-50, 50, of.shape), of).astype(of.dtype)

            of = batch.rollouts
            batch = replace(
                batch,
                rollouts=replace(of, logprobs=noise(of.logprobs), versions=noise(of.versions)),
                reference_logprobs=noise(batch.reference_logprobs),
                values=noise(batch.values),
            )
        learners[-1].update(batch, AlgorithmSpec(**spec), 1.0, MAX_TOKENS)
        assert learners[-1].learned.applied
    assert identical(*map(weights, learners))
    assert learners[0].learned == learners[1].learned


def test_observations_are_conditioned_on(make_policy: Make) -> None:
    batch = conversations(make_policy(), 0.0)
    of = batch.rollouts
    others = replace(of, tokens=np.where(of.inside & ~of.trained, of.tokens + 1, of.tokens))
    before, after = (Scoring(make_policy()).logprobs(each, 1.0) for each in (of, others))
    behind = of.trained & (np.cumsum(of.inside & ~of.trained, axis=2) > 0)
    assert np.abs(after - before)[behind].min() > 1e-6
    assert np.abs(after - before)[~behind].max() < 1e-6
    assert not before[~of.trained].any()


@settings(max_examples=5)
@given(
    turns=st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=12, max_size=12),
    order=st.permutations(range(3)),
    positions=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_packing_changes_nothing(
    make_policy: Make, turns: list[list[bool]], order: list[int], positions: int, seed: int
) -> None:
    """Random masks; a completion may hold nothing of the policy's at all."""
    turns[0], turns[1], turns[8], turns[9] = [OURS], [THEIRS, OURS], [OURS, THEIRS], [OURS, OURS]  # two groups teach
    batch = conversations(make_policy(), 0.3, turns, seed)
    one = Learner(make_policy(), PLAIN, step=3)
    other = Learner(make_policy(), PLAIN.model_copy(update={"microbatch_tokens": positions}), step=3)
    spec = AlgorithmSpec(name="ppo")
    found, expected = gradient_of(one, batch.select(order), spec), gradient_of(other, batch, spec)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)


def test_only_what_the_policy_wrote_is_predicted() -> None:
    flags = [[OURS, THEIRS, OURS], [THEIRS, THEIRS]]
    rollouts = Rollouts.padded([Problem("", "", "")], [[1, 2]], [[5, 6, 7], [8, 9]], trained=flags)
    packed = pack(rollouts, rows_of(rollouts, [0]), torch.device("cpu"))
    assert packed.tokens.tolist() == [[1, 2, 5, 6, 7, 8, 9]]
    assert packed.targets.tolist() == [5, 7]
    assert packed.logit_positions.tolist() == [1, 3]
    assert packed.token_index.tolist() == [0, 2]
    nothing = replace(rollouts, trained=np.zeros_like(rollouts.trained))
    assert rows_of(nothing, [0]) == []


def test_overlong_penalties_and_those_of_the_reference_are_of_what_the_policy_wrote(make_policy: Make) -> None:
    batch = conversations(make_policy(), 0.3)
    kl = {"coefficient": 0.1, "in_reward": True}
    for spec in (AlgorithmSpec(name="dapo", overlong=5), AlgorithmSpec(name="grpo", kl=kl)):
        found, single = (shaped(each, spec, 6, 0.1) for each in (batch, squeezed(batch)))
        np.testing.assert_array_equal(found.rewards, single.rewards)
        np.testing.assert_allclose(found.returns, single.returns, atol=1e-5)
    assert len(np.unique(found.returns[~np.isnan(found.returns)])) > 3


def test_a_batch_in_which_the_policy_wrote_nothing_teaches_nothing(make_policy: Make) -> None:
    batch = conversations(make_policy(), 0.3)
    nothing = replace(batch, rollouts=replace(batch.rollouts, trained=np.zeros_like(batch.rollouts.trained)))
    learned = Learner(make_policy(), PLAIN).update(nothing, AlgorithmSpec(), 1.0)
    assert (learned.applied, learned.refused, learned.groups) == (False, "", 0)
