"""How much of the returns a critic explains, and how much could be: on batches that one policy has sampled.

    python -m tests.bench.critic --policy $RLVF_HOME/warmup/... --problems math_1k.csv [--set critic.lr=1e-3]

The critic is trained as PPO trains it, batch by batch, each valued before it is learned from. Beside it, what other
regressions on the same states explain of the last fifth of the batches when they have seen the others all at once: on
the policy's hidden states, and with what the sampler knew beside them, its entropy now and the log-probs so far. `all`
is over all tokens, `first` and `last` over those of completions; a prompt's own share is what a perfect value of the
first token would explain. Some four minutes on one thread.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.start.defaults import with_defaults
from rl.algorithms.gae import returns_to_go
from rl.learning.critic import CriticLearner, explained_variance, token_values
from rl.learning.packing import Packed
from rl.learning.scoring import Scoring
from rl.learning.states import predicting_states
from rl.loading.policy import load_policy
from rl.model.blocks import in_blocks
from rl.model.policy import Policy
from rl.model.value import value_model
from rl.records import Batch
from rl.sampling.sampler import sample
from tasks.judge import judge
from tasks.sets.problem_set import open_problems

Floats = NDArray[np.float64]
PLACES = ("all", "first", "last")


@dataclass(frozen=True)
class States:
    """The states before N tokens of completions."""

    hidden: Floats  # [N, H] the policy's last layer
    known: Floats  # [N, 4] entropy, the sum and the least of the log-probs so far, the number of tokens so far
    returns: Floats  # [N]
    first: NDArray[np.bool_]  # [N]
    last: NDArray[np.bool_]  # [N]

    @classmethod
    def join(cls, parts: Sequence["States"]) -> "States":
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def explained(self, values: Floats) -> dict[str, float]:
        """Of the returns, by values [N]."""
        inside = (np.ones(len(self.returns), dtype=bool), self.first, self.last)
        of = (explained_variance(values[at], self.returns[at]) for at in inside)  # type: ignore[arg-type]
        return {place: round(float(one), 3) for place, one in zip(PLACES, of, strict=True)}


def batches(policy: Policy, config: TrainConfig, count: int) -> Iterator[Batch]:
    """What the policy samples for the first steps of a run, judged."""
    problems = open_problems(config.sets, config.verifier, config.held_out, config.seed)
    for step in range(count):
        drawn = problems.draw(step, config.batch.prompts, 0)
        wanted = {"samples": config.batch.samples, "seed": config.seed, "step": step, "groups": range(len(drawn))}
        rollouts = sample(policy, 0, drawn, config.sampling, **wanted)  # type: ignore[arg-type]
        judgement = judge(drawn, rollouts.texts, problems.verifiers)
        yield Batch(rollouts, judgement.rewards, judgement.reasons)


def states_of(policy: Policy, scoring: Scoring, batch: Batch) -> States:
    """All of a batch's."""
    logprobs = np.pad(batch.rollouts.logprobs.astype(np.float64), ((0, 0), (0, 0), (1, 0)))
    so_far = np.stack([np.cumsum(logprobs, 2), np.minimum.accumulate(logprobs, 2)], axis=-1)
    found: list[States] = []

    def look(packed: Packed) -> torch.Tensor:
        with in_blocks(policy.model, packed.mask), torch.no_grad():
            hidden = predicting_states(policy, packed, trained=False).float()
            likely = policy.model.get_output_embeddings()(hidden).log_softmax(-1)  # type: ignore[no-untyped-call]
        entropy = -(likely.exp() * likely).sum(-1)
        at = tuple(each.numpy() for each in (packed.group, packed.sample, packed.token_index))
        known = np.column_stack([entropy.numpy(), so_far[at], at[2]])
        last = at[2] == batch.rollouts.lengths[at[:2]] - 1
        found.append(States(hidden.double().numpy(), known, batch.rewards[at[:2]].astype(np.float64), at[2] == 0, last))
        return torch.zeros(len(hidden))

    scoring.scores(batch.rollouts, look)
    return States.join(found)


def learned(policy: Policy, config: TrainConfig, given: Sequence[Batch]) -> list[dict[str, float]]:
    """What the critic explains of each batch, before it has learned from it."""
    model = value_model(policy)
    learner = CriticLearner(model, config.critic.optimizer(config.optimizer))
    scoring, algorithm, found = Scoring(model), config.algorithm.built_in(), []
    for batch in given:
        values = scoring.scores(batch.rollouts, lambda packed: token_values(model, packed))
        valued = replace(batch, values=values)
        returns = returns_to_go(valued)
        learner.update(valued, algorithm.value_targets(valued), config.critic, monte_carlo=returns)
        ends = np.maximum(batch.rollouts.lengths - 1, 0)[..., None]
        inside = batch.rollouts.inside
        places = (
            (values[inside], returns[inside]),
            (values[..., 0], returns[..., 0]),
            (np.take_along_axis(values, ends, 2), np.take_along_axis(returns, ends, 2)),
        )
        found.append({place: explained_variance(*each) for place, each in zip(PLACES, places, strict=True)})
    return found


def regressions(shown: States, held: States) -> dict[str, dict[str, float]]:
    """What others explain of `held` once they have seen `shown`."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge

    found = {}
    for name, of in (
        ("hidden states", lambda states: states.hidden),
        ("entropy and log-probs", lambda states: states.known),
        ("both", lambda states: np.concatenate([states.hidden, states.known], axis=1)),
    ):
        for kind, model in (("linear", Ridge(10.0)), ("trees", HistGradientBoostingRegressor(max_iter=200))):
            found[f"{kind}, {name}"] = held.explained(model.fit(of(shown), shown.returns).predict(of(held)))
    return found


def prompts_share(given: Sequence[Batch]) -> float:
    """The share of the rewards' variance that lies between prompts, unbiased."""
    rewards = np.concatenate([batch.rewards for batch in given]).astype(np.float64)
    return float(1 - rewards.var(axis=1, ddof=1).mean() / rewards.var())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--problems", required=True)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE", help="of rlvf train: critic.lr=1e-3")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {"problems": given.problems, "algorithm": "ppo", "policy.device": "cpu"}
    chosen |= dict(option.split("=", 1) for option in given.set)
    config, _ = with_defaults(read_config(TrainConfig, file=None, overrides=chosen))
    policy = load_policy(str(given.policy), config.policy)
    all_of = list(batches(policy, config, given.batches))
    scoring = Scoring(policy)
    states = [states_of(policy, scoring, batch) for batch in all_of]
    cut = given.batches - max(1, given.batches // 5)
    print(json.dumps({"reward": float(np.mean([batch.rewards.mean() for batch in all_of]))}))
    print(json.dumps({"a prompt's own share": round(prompts_share(all_of), 3)}), flush=True)
    for name, of in regressions(States.join(states[:cut]), States.join(states[cut:])).items():
        print(json.dumps({name: of}), flush=True)
    found = learned(policy, config, all_of)
    for at in range(0, len(found), 10):
        means = {place: round(float(np.nanmean([one[place] for one in found[at : at + 10]])), 3) for place in PLACES}
        print(json.dumps({f"the critic, batches {at + 1} to {min(at + 10, len(found))}": means}), flush=True)


if __name__ == "__main__":
    main()
