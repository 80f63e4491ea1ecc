"""Training adapters on the shape of Qwen3-0.6B: the memory of the trainer's process in all, and what a version takes.

python -m tests.bench.lora            8 groups of 8 completions of 256 tokens, rank 16, a base in bfloat16
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from flows.benches.apart import apart, peak_bytes
from flows.benches.qwen import LAYERS, VOCABULARY, random_qwen
from flows.benches.update import random_batch
from flows.start.defaults import ADAPTERS, RATE
from infra.weights.difference import DIFFERENCE, write_difference
from rl.config import PolicyConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.loading.policy import load_policy
from rl.lora_config import LoraConfig
from rl.model.tiny import build_tokenizer
from tasks.calls.published import as_published, published_type

PROMPT = 64  # tokens


@dataclass(frozen=True)
class Figures:
    """What training took."""

    dtype: str  # of the arithmetic
    loaded_gb: float  # the largest memory of the process until the model was there
    peak_gb: float  # and after the updates
    seconds: float  # of an update
    passes: str
    published: tuple[int, ...]  # bytes of each version, the first one whole
    full: int  # bytes of all weights in bfloat16


def train(folder: str, dtype: str, groups: int, samples: int, tokens: int, updates: int) -> Figures:
    """Load the model and make updates, as a trainer does."""
    lora = LoraConfig(rank=16, base="bfloat16")
    device = torch.device("cpu")
    policy = load_policy(folder, PolicyConfig(device="cpu", dtype=dtype, lora=lora), master=True)
    loaded = peak_bytes(device)
    learner = Learner(policy, OptimizerConfig(lr=ADAPTERS * RATE, warmup_steps=0))
    batch = random_batch(groups, samples, PROMPT, tokens, VOCABULARY)
    kind = published_type("auto", policy)
    before = as_published(policy.weights(), kind, policy)
    published = [sum(value.nbytes for value in before.values())]
    began = time.perf_counter()
    for _ in range(updates):
        assert learner.update(batch, AlgorithmSpec(), 1.0).applied
        after = as_published(policy.weights(), kind, policy)
        path = Path(folder, DIFFERENCE)
        write_difference(path, after, before)
        published.append(path.stat().st_size)
        before = after
    seconds = (time.perf_counter() - began) / updates
    learner.save(Path(folder, "state"))
    full = 2 * sum(p.numel() for p in policy.model.parameters() if not p.requires_grad)
    passes = str(learner.accumulation.passes)
    return Figures(dtype, loaded / 1e9, peak_bytes(device) / 1e9, seconds, passes, tuple(published), full)


def write_model(folder: str, layers: int) -> None:
    """Random weights in bfloat16, as a hub has them."""
    model = random_qwen(torch.device("cpu"), torch.bfloat16, layers)
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)


def figures(
    dtypes: Sequence[str], layers: int, groups: int, samples: int, tokens: int, updates: int
) -> list[Figures | None]:
    """For each type of the arithmetic; None where the process was ended for its memory."""
    with tempfile.TemporaryDirectory() as folder:
        apart(write_model, folder, layers)
        return [apart(train, folder, dtype, groups, samples, tokens, updates) for dtype in dtypes]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    for name, default in (("layers", LAYERS), ("groups", 8), ("samples", 8), ("tokens", 256), ("updates", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    transformers.logging.disable_progress_bar()
    for found in figures(
        given.dtypes.split(","), given.layers, given.groups, given.samples, given.tokens, given.updates
    ):
        print(found, flush=True)
