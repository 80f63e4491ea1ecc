"""What an audit costs, and how far apart it finds two that compute the same policy: in other types, or one of them with
a perturbed layer.

    python -m tests.bench.audit --policy $RLVF_HOME/warmup/...

A row for each: the divergence (k3, nats per token) of who sampled from who scored, of a lease of 16 problems of the
arithmetic set with 8 completions each, both ways round. A perturbed layer has noise added to each of its weights, of so
many times their spread. Then the processor time of scoring the lease, by that of sampling it, the median of five.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import torch

from rl.audit import divergence
from rl.config import PolicyConfig, SamplingConfig
from rl.learning.scoring import Scoring
from rl.loading.policy import load_policy
from rl.model.policy import Policy
from rl.problems.made.arithmetic import stream
from rl.records import Rollouts
from rl.sampling.sampler import sample

T = TypeVar("T")
GROUPS, SAMPLES, TOKENS = 16, 8, 40
NOISE = (0.1, 0.3, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", required=True, help="a folder, in Hugging Face layout")
    folder = parser.parse_args().policy
    wide = loaded(folder, "float32")
    pairs = {dtype: loaded(folder, dtype) for dtype in ("float32", "bfloat16", "float16")}
    for layer in range(len(wide.model.model.layers)):
        pairs |= {f"layer {layer}, noise {noise:g}": perturbed(folder, layer, noise) for noise in NOISE}
    for name, other in pairs.items():
        there, back = apart(sampled(wide), other), apart(sampled(other), wide)
        print(f"{name:<22} float32 sampled: {there:.2g}   float32 scored: {back:.2g}")
    lease = sampled(wide)
    sampling = median(seconds(lambda: sampled(wide)) for _ in range(5))
    scoring = median(seconds(lambda: apart(lease, wide)) for _ in range(5))
    print(f"{lease.generated_tokens} tokens: scored in {scoring / sampling:.2f} of the time that sampling takes")


def loaded(folder: str, dtype: str) -> Policy:
    return load_policy(folder, PolicyConfig.model_validate({"device": "cpu", "dtype": dtype}))


def perturbed(folder: str, layer: int, noise: float) -> Policy:
    policy, draws = loaded(folder, "float32"), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in policy.model.model.layers[layer].parameters():
            weight += noise * weight.std() * torch.randn(weight.shape, generator=draws)
    return policy


def sampled(policy: Policy) -> Rollouts:
    drawn = stream(0, 0, "train")
    problems = [next(drawn) for _ in range(GROUPS)]
    config = SamplingConfig(max_tokens=TOKENS)
    return sample(policy, 0, problems, config, samples=SAMPLES, seed=0, step=0, groups=range(GROUPS))


def apart(rollouts: Rollouts, by: Policy) -> float:
    return divergence(rollouts.logprobs, Scoring(by).logprobs(rollouts, 1.0), rollouts.inside)


def seconds(work: Callable[[], T]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
