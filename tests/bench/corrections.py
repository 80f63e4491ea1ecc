"""How far a policy moves from a batch while it learns from others, and what corrections leave out of that batch then.

    python -m tests.bench.corrections --policy $RLVF_HOME/warmup/... --problems math_1k.csv [--seeds 0 1 2]
        [--set optimizer.lr=1e-4]

A batch of version 0 is looked at after 1, 2, 4 and 8 updates on batches that were sampled just before, as a run of that
staleness would see it. A table in Markdown on stdout, the mean over seeds: the KL of mu to pi by k3; the share of the
tokens that each correction would leave out, with its default bounds and others, and for `truncate` the share that it
would cut; the effective sample size of the ratios as they are. Half a minute a seed on one thread.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.start.defaults import with_defaults
from rl.learning import corrections
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.correction_config import CorrectionConfig
from rl.learning.learner import Learner
from rl.learning.logprobs import completion_logprobs
from rl.loading.policy import load_policy
from rl.model.policy import Policy
from rl.records import Batch
from rl.sampling.sampler import sample
from tasks.judge import judge
from tasks.sets.problem_set import ProblemSet, open_problems

AGES = (1, 2, 4, 8)
CHOICES = {
    "mask 0.5-5": CorrectionConfig(kind="mask"),
    "sequence_mask 0.8-1.25": CorrectionConfig(kind="sequence_mask"),
    **{
        f"sequence_mask {low}-{high}": CorrectionConfig(kind="sequence_mask", low=low, high=high)
        for low, high in ((0.999, 1.001), (0.9, 1.1), (0.5, 2.0), (0.1, 10.0))
    },
    "divergence 0.2": CorrectionConfig(kind="divergence"),
}


def drawn(policy: Policy, version: int, problems: ProblemSet, config: TrainConfig, step: int, count: int) -> Batch:
    """So many groups of a step, by the policy as it is."""
    some = problems.draw(step, count, 0)
    wanted = {"samples": config.batch.samples, "seed": config.seed, "step": step, "groups": range(len(some))}
    rollouts = sample(policy, version, some, config.sampling, **wanted)  # type: ignore[arg-type]
    judgement = judge(some, rollouts.texts, problems.verifiers)
    return Batch(rollouts, judgement.rewards, judgement.reasons)


def seen(learner: Learner, batch: Batch, spec: AlgorithmSpec) -> dict[str, float]:
    """What is left out of a batch of an older version, of its tokens in groups that teach."""
    used = batch.with_signal.nonzero()[0].tolist()
    inside = batch.rollouts.inside & batch.with_signal[:, None, None]
    now = completion_logprobs(learner.policy, batch.rollouts, 1.0, learner.accumulation, used)
    groups, samples, _ = inside.nonzero()
    completion = torch.from_numpy(groups * inside.shape[1] + samples)
    pi, mu = torch.from_numpy(now[inside]), torch.from_numpy(batch.rollouts.logprobs[inside])
    wide = np.broadcast_to(spec.algorithm.advantages(batch)[..., None], inside.shape)
    advantage, gap = torch.from_numpy(wide[inside]), pi - mu
    ratio = corrections.truncated(gap, np.inf)
    found = {"KL": float((ratio - gap - 1).mean()), "truncate 2": float((ratio > 2).float().mean())}
    for name, of in CHOICES.items():
        among = corrections.completion_means(gap, completion) if of.kind == "sequence_mask" else gap
        found[name] = 1 - float(corrections.kept_by(of, among, pi, mu, advantage).float().mean())
    return found | {"effective sample size": float(ratio.sum() ** 2 / (len(ratio) * ratio.square().sum()))}


def by_age(config: TrainConfig, folder: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The age of the batch of version 0, and what is left out of it then."""
    problems = open_problems(config.sets, config.verifier, config.held_out, config.seed)
    learner = Learner(load_policy(str(folder), config.policy, master=True), config.optimizer)
    spec = AlgorithmSpec.model_validate(dict(config.algorithm))

    def batch(step: int) -> Batch:
        return drawn(learner.policy, step, problems, config, step, config.batch.prompts)

    first = batch(0)
    for step in range(1, AGES[-1] + 1):
        learner.update(batch(step), spec, 1.0, config.sampling.limit)
        if step in AGES:
            yield step, seen(learner, first, spec)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--problems", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE", help="of rlvf train: optimizer.lr=1e-4")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in given.seeds:
        chosen = {"problems": given.problems, "policy.device": "cpu", "seed": str(seed)}
        chosen |= dict(option.split("=", 1) for option in given.set)
        config, _ = with_defaults(read_config(TrainConfig, file=None, overrides=chosen))
        for age, figures in by_age(config, given.policy):
            for name, value in figures.items():
                rows[name][age].append(value)
    print(f"| after updates | {' | '.join(map(str, AGES))} |")
    print(f"| --- |{' --- |' * len(AGES)}")
    for name, of in rows.items():
        print(f"| {name} | {' | '.join(f'{np.mean(of[age]):.3f}' for age in AGES)} |")


if __name__ == "__main__":
    main()
