"""What a CUDA device does with the shape of Qwen3-0.6B, in one process and a few minutes: a line for each figure.

    python -m tests.bench.cuda [--parts update,methods,lora,generate] [--layers 28]

`update`: seconds of updates of 8 completions a prompt, of several lengths, by masks of whole rows and in blocks; each
length twice, as the first one may compile. `methods`: those of `rlvf bench update` at 16,384 positions.
`lora`: updates of adapters of rank 16 on the shape of Qwen3-4B. `generate`: 64 prompts x 8 completions x 512 tokens,
twice, and how long a step of each shape takes as it is replayed, apart from what it takes to capture it.
"""

import argparse
import gc
import json
import time
from collections import defaultdict
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from flows.benches.qwen import LARGER, LAYERS, VOCABULARY, random_qwen
from flows.benches.update import learner_of, measure, random_batch
from rl.learning import passes
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.model.policy import Policy
from rl.model.tiny import build_tokenizer
from rl.records import Batch
from rl.sampling.engine import Engine
from rl.sampling.sampler import uniforms
from rl.sampling.slots import Slots
from rl.sampling.strides import Program

CUDA = torch.device("cuda")
SIZES = ((8, 128), (8, 256), (8, 512), (4, 1024), (2, 2048))  # prompts, and tokens of their completions
PROMPT = 100


def said(**figures: Any) -> None:
    print(json.dumps({name: round(v, 4) if isinstance(v, float) else v for name, v in figures.items()}), flush=True)


def clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def updated(learner: Learner, batch: Batch) -> dict[str, Any]:
    """What one update took."""
    torch.cuda.reset_peak_memory_stats()
    began = clock()
    learner.update(batch, AlgorithmSpec(), 1.0)
    seconds = clock() - began
    peak, by = torch.cuda.max_memory_allocated() / 1e9, str(learner.accumulation.passes)
    speed = batch.rollouts.generated_tokens / seconds
    return {"seconds": seconds, "tokens_per_second": speed, "peak_gb": peak, "passes": by}


def update(layers: int) -> None:
    """Whole rows first: blocks compile."""
    passes.LONG = 0
    for blocks in (False, True):
        learner = learner_of(layers, VOCABULARY)
        learner.accumulation.blocks = blocks
        for prompts, tokens in (size for size in SIZES for _ in range(2)):
            figures = updated(learner, random_batch(prompts, 8, PROMPT, tokens, VOCABULARY))
            said(part="update", blocks=blocks, prompts=prompts, tokens=tokens, **figures)
        del learner
        gc.collect()
        torch.cuda.empty_cache()


def methods(layers: int) -> None:
    for method in ("full", "lora", "direct"):
        said(part="methods", **asdict(measure(16384, method, layers, VOCABULARY)))
        gc.collect()
        torch.cuda.empty_cache()


def lora(layers: int) -> None:
    """Of 36 layers, or fewer where fewer than 28 are asked for."""
    learner = learner_of(36 if layers == LAYERS else layers, VOCABULARY, rank=16, sizes=LARGER)
    parameters = learner.policy.model.num_parameters()
    for _ in range(3):
        said(part="lora", parameters=parameters, **updated(learner, random_batch(8, 8, PROMPT, 256, VOCABULARY)))


def generate(layers: int) -> None:
    policy = Policy(random_qwen(CUDA, torch.bfloat16, layers), build_tokenizer(), CUDA, torch.bfloat16)
    draws = np.random.default_rng(0)
    prompts = [draws.integers(VOCABULARY, size=draws.integers(60, 141)).tolist() for _ in range(64)]
    slots, noise = Slots(policy), uniforms(0, 0, range(64), 8, 512)
    run, spent = Program.run, defaultdict[str, list[float]](list)

    def timed(program: Program, step: Any, pool: Any, **given: Any) -> None:
        began, captured = clock(), program._graph is not None
        run(program, step, pool, **given)
        kind = f"replayed, {program.shape.own} positions" if captured else "captured" if program._graph else "first"
        spent[kind].append(clock() - began)

    for apart in (False, False, True):
        Program.run = timed if apart else run  # type: ignore[method-assign]
        torch.cuda.reset_peak_memory_stats()
        began = clock()
        engine = Engine(policy, slots)
        draws = [engine.add(prompts[row // 8], 512, one) for row, one in enumerate(noise)]
        engine.run()
        made = sum(len(draw.tokens) for draw in draws)
        seconds = clock() - began
        if not apart:
            peak = torch.cuda.max_memory_allocated() / 1e9
            said(part="generate", lean=slots.backend.lean is not None, tokens_per_second=made / seconds, peak_gb=peak)
    said(part="steps", **{kind: [len(each), 1000 * sum(each) / len(each)] for kind, each in spent.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="update,methods,lora,generate")
    parser.add_argument("--layers", type=int, default=28)
    given = parser.parse_args()
    said(device=torch.cuda.get_device_name(), torch=torch.__version__)
    for part in given.parts.split(","):
        {"update": update, "methods": methods, "lora": lora, "generate": generate}[part](given.layers)


if __name__ == "__main__":
    main()
