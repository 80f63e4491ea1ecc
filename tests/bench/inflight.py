"""How much less stale a batch is when generators go on with newer weights in the middle of completions.

    python -m tests.bench.inflight [--tokens 256] [--steps 16] [--staleness 1 2 4] [--generators 1 2] [--turns 2]

`rlvf train` as a user would run it, with `inflight.weights` on and off in turns: the tiny architecture with weights for
which an end token is next to impossible, so that every completion has all of its tokens, and a reward that is 1 for one
completion in 8, so that most groups teach nothing and generation takes longer than an update. A table in Markdown on
stdout: means over the steps after the third, of all turns.

    python -m tests.bench.inflight --kept [--tokens 256]

What keys and values cost that are kept over so many versions: the log-probs that the sampler gives, against those of
the weights alone. k3 is an estimate of the KL in nats a token; beside it that of the older weights themselves, which is
what the trainer would see without a swap.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infra.runs.metric_log import read_metrics
from rl.config import PolicyConfig, SamplingConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.scoring import Scoring
from rl.loading.policy import load_policy
from rl.model.policy import Policy, save_policy
from rl.model.tiny import build_model, build_tokenizer
from rl.records import Batch, Problem, Rollouts
from rl.sampling.engine import Hooks
from rl.sampling.sampler import sample

OLDER = (1, 2, 4)  # versions
FIRST = 3  # steps that are left out: the first versions come late
REWARD = """
def reward(problem, completion):
    return float(sum(map(ord, completion)) % 8 == 0)
"""
MEANS = (
    *("staleness/mean", "staleness/swapped", "completion/tokens_mean"),
    *("perf/step_seconds", "perf/update_seconds", "perf/generator_busy"),
)


def endless(folder: Path) -> Path:
    """A policy that never ends: what all embeddings have in common tells the end token from the others."""
    tokenizer = build_tokenizer()
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    model = build_model(len(tokenizer), end, 0, seed=0)
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings[:, 0] = 0.5
        embeddings[end] = 0
        embeddings[end, 0] = -8
    save_policy(Policy(model, tokenizer, torch.device("cpu"), torch.float32), folder)
    return folder


def measured(options: Sequence[str], steps: int) -> dict[str, float]:
    """The means of a run over the steps after the first."""
    rlvf = Path(sys.executable).with_name("rlvf")
    command = [str(rlvf), "train", "--json", "--held_out", "0", "--steps", str(steps), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    run = Path(json.loads(done.stdout)["run"])
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for line in read_metrics(run / "metrics.jsonl"):
        for name in MEANS:
            if line.step > FIRST and name in line.metrics:
                by_name[name].append(line.metrics[name])
    return {name: fmean(values) for name, values in by_name.items()}


def runs(given: argparse.Namespace, folder: Path) -> None:
    """The table of runs."""
    policy = endless(folder / "policy")
    (folder / "reward.py").write_text(REWARD, "utf-8")
    shared = ["--policy", str(policy), "--verifier", f"{folder / 'reward.py'}:reward", "--verifier.sandbox", "none"]
    shared += ["--sampling.max_tokens", str(given.tokens), "--batch.prompts", "8", "--batch.samples", "4"]
    shared += ["--batch.oversample", "1", "--cluster.threads", "1", "--tracking.report", "false"]
    print(
        "| staleness | generators | tokens | staleness/mean: off | on | lower by | swapped | step, update: off | on |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for staleness in given.staleness:
        for generators in given.generators:
            found: dict[str, list[dict[str, float]]] = {"false": [], "true": []}
            lease = str(8 // generators)  # a generator has one lease of each batch
            options = ["--staleness", str(staleness), "--cluster.generators", str(generators), "--batch.lease", lease]
            for turn in range(given.turns):
                for on, of in found.items():
                    seed = ["--seed", str(turn), "--inflight.weights", on]
                    of.append(measured([*shared, *options, *seed], given.steps))
                    print(staleness, generators, on, of[-1], file=sys.stderr, flush=True)
            off, on = ({name: fmean(each[name] for each in of) for name in MEANS} for of in found.values())
            lower = 1 - on["staleness/mean"] / off["staleness/mean"]
            cells = [staleness, generators, f"{on['completion/tokens_mean']:.0f}", f"{off['staleness/mean']:.2f}"]
            cells += [f"{on['staleness/mean']:.2f}", f"{lower:.0%}", f"{on['staleness/swapped']:.0%}"]
            cells += [f"{each['perf/step_seconds']:.1f}, {each['perf/update_seconds']:.1f} s" for each in (off, on)]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def k3(behaviour: NDArray[np.float32], of: NDArray[np.float32]) -> float:
    """KL(behaviour || other), as estimated on its own tokens, nats a token."""
    gap = (of - behaviour).astype(np.float64)
    return float((np.exp(gap) - gap - 1).mean())


def versions(policy: Policy, tokens: int, count: int) -> list[dict[str, Tensor]]:
    """The weights after each of so many updates on random rewards, at the learning rate that the tiny policy has."""
    learner = Learner(policy, OptimizerConfig(lr=3e-4, warmup_steps=0))
    problems = [Problem(f"add {a} and {a + 3}", "1", "bench") for a in range(4)]
    made = []
    for step in range(count):
        asked = {"samples": 4, "seed": 0, "step": step, "groups": range(4)}
        rollouts = sample(policy, step, problems, SamplingConfig(max_tokens=tokens), **asked)  # type: ignore[arg-type]
        rewards = np.random.default_rng(step).integers(0, 2, (4, 4)).astype(np.float32)
        learner.update(Batch(rollouts, rewards, (("",) * 4,) * 4), AlgorithmSpec(), 1.0)
        made.append({name: value.clone() for name, value in policy.weights().items()})
    return made


def kept(given: argparse.Namespace, folder: Path) -> None:
    """The table of keys that are kept."""
    policy = load_policy(str(endless(folder / "policy")), PolicyConfig(device="cpu"))
    there = versions(policy, given.tokens, max(OLDER) + 1)
    problems, half = [Problem(f"add {a} and {a + 3}", "1", "bench") for a in range(8)], given.tokens // 2

    def swapped(old: int, keep: int) -> Rollouts:
        """The last version goes on from half a completion of one that is so many versions older."""
        policy.load_weights(there[-1 - old])
        looks = 0

        def fresh() -> int | None:
            nonlocal looks
            looks += 1
            if looks != half + 1:
                return None
            policy.load_weights(there[-1])
            return old

        config, asked = SamplingConfig(max_tokens=given.tokens), {"samples": 4, "seed": 0, "step": 0}
        hooks = Hooks(fresh=fresh, kv_versions=keep)
        return sample(policy, 0, problems, config, **asked, groups=range(8), hooks=hooks)

    def scored(rollouts: Rollouts, weights: dict[str, Tensor]) -> NDArray[np.float32]:
        policy.load_weights(weights)
        return Scoring(policy).logprobs(rollouts, 1.0)[..., half:]

    print("| versions older | k3 of kept keys | of keys computed again | of the older weights |")
    print("| --- | --- | --- | --- |")
    for old in OLDER:
        by = [swapped(old, keep) for keep in (old, 0)]
        new = [k3(each.logprobs[..., half:], scored(each, there[-1])) for each in by]
        stale = k3(scored(by[1], there[-1]), scored(by[1], there[-1 - old]))
        print(f"| {old} | {new[0]:.2g} | {new[1]:.2g} | {stale:.2g} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--generators", type=int, nargs="+", default=[1, 2], choices=[1, 2, 4, 8])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--kept", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (kept if given.kept else runs)(given, Path(folder))


if __name__ == "__main__":
    main()
