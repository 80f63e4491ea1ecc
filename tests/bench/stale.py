"""How well a policy learns from batches of a version of so many updates ago, by algorithm and correction.

    python -m tests.bench.stale --policy $RLVF_HOME/warmup/... --problems math_1k.csv --staleness 0 4 8
        [--seeds 0 1 2] [--steps 120] [--results stale.jsonl] [--set algorithm=grpo optimizer.lr=1e-4 ...]

One process that samples and learns in turns, without a cluster: every batch was sampled exactly `staleness` versions
ago (the first ones by version 0), where a run of that staleness is at most so far behind. A line of JSON a run on
stdout, or behind those in --results, where runs that are there are not made again: the sampled pass rate of each step,
of the version that sampled it, and of the last one at the end. Two minutes a run on one thread.
"""

import argparse
import json
import sys
from collections import deque
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.start.defaults import with_defaults
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.loading.policy import load_policy
from rl.records import Batch
from tasks.sets.problem_set import open_problems
from tests.bench.corrections import drawn

LAST = 20  # steps whose mean is the final pass rate


def taught(batch: Batch, spec: AlgorithmSpec, prompts: int) -> Batch:
    """The first of its groups that teach something, as many as a step learns from."""
    used = batch.teaching(every_group=spec.algorithm.every_group).nonzero()[0][:prompts].tolist()
    return batch.select(used)


def learned(config: TrainConfig, folder: Path, staleness: int) -> dict[str, Any]:
    """The pass rates of a run, and what its corrections kept."""
    problems = open_problems(config.sets, config.verifier, config.held_out, config.seed)
    learner = Learner(load_policy(str(folder), config.policy, master=True), config.optimizer)
    spec, policy = AlgorithmSpec.model_validate(dict(config.algorithm)), deepcopy(learner.policy)
    count = int(config.batch.prompts * config.batch.oversample)  # as many as a step of a run draws at most
    earlier: deque[dict[str, torch.Tensor]] = deque(maxlen=staleness + 1)
    curve, figures = [], []
    for step in range(config.steps):
        earlier.append({name: value.clone() for name, value in learner.policy.model.state_dict().items()})
        policy.model.load_state_dict(earlier[0])
        batch = drawn(policy, step - len(earlier) + 1, problems, config, step, count)
        curve.append(float((batch.rewards > 0).mean()))
        update = learner.update(taught(batch, spec, config.batch.prompts), spec, 1.0, config.sampling.limit)
        figures.append({name: value for name, value in update.metrics.items() if np.isfinite(value)})
    policy.model.load_state_dict(learner.policy.model.state_dict())
    last = drawn(policy, config.steps, problems, config, config.steps, count)
    names = sorted(set().union(*figures))
    return {
        "curve": curve,
        "final": float(np.mean(curve[-LAST:])),
        "last": float((last.rewards > 0).mean()),
        "figures": {name: float(np.mean([each[name] for each in figures if name in each])) for name in names},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--problems", required=True)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 4, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE", help="of rlvf train: algorithm=grpo")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = given.results.read_text("utf-8").splitlines() if given.results and given.results.exists() else []
    there = {json.dumps(json.loads(line)["of"]) for line in lines}
    for seed in given.seeds:
        for staleness in given.staleness:
            of = {"set": given.set, "staleness": staleness, "seed": seed, "steps": given.steps}
            if json.dumps(of) in there:
                continue
            chosen = {"problems": given.problems, "policy.device": "cpu", "seed": str(seed), "steps": str(given.steps)}
            chosen |= dict(option.split("=", 1) for option in given.set)
            config, _ = with_defaults(read_config(TrainConfig, file=None, overrides=chosen))
            found = {"of": of, **learned(config, given.policy, staleness)}
            if given.results:
                with given.results.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(found) + "\n")
            else:
                print(json.dumps(found), flush=True)
            print(f"{of}: {found['curve'][0]:.3f} → {found['final']:.3f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
