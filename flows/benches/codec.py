"""Differences between versions of weights: how small they are and how long they take."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from flows.benches.qwen import HIDDEN, KEYS, LAYERS, MLP, QUERIES, VOCABULARY
from infra import disk
from infra.weights.difference import apply_difference, weights_digest, write_difference
from rl.model.policy import copied_weights, read_weights
from rl.model.rounding import all_in

SCALE = 0.03  # standard deviation of the weights
RATES = ("1e-6", "1e-5", "1e-4")  # learning rates of the runs
REPEATS = 5  # a model this small takes milliseconds: the median
UPDATES = 6  # of each: the last one is measured, when Adam has its moments
# steps of Adam that change about this share of bfloat16 weights of that scale
STEPS = {0.009: 3.2e-7, 0.02: 8.2e-7, 0.06: 3.1e-6, 0.43: 5.1e-5}


@dataclass(frozen=True)
class CodecFigure:
    """One line of the codec's table. Speeds are of the whole bfloat16 weights, in MB/s on one core, with digests."""

    source: str
    changed: float  # share of the cells
    ratio: float  # bytes of the weights by bytes of the difference
    encode_mb_s: float
    decode_mb_s: float


def measure(source: str, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> CodecFigure:
    """Encode `new` as a difference from `old`, decode it, and see that it is `new`."""
    size = sum(tensor.nbytes for tensor in new.values())
    with tempfile.TemporaryDirectory(dir=disk.own_folder()) as folder:
        path = Path(folder, "difference")
        began = time.process_time()
        cells, changed = write_difference(path, new, old)
        digest = weights_digest(new)
        encoded = time.process_time() - began
        weights = {name: tensor.clone() for name, tensor in old.items()}
        began = time.process_time()
        apply_difference(path, weights, digest, size)
        decoded = time.process_time() - began
        sent = path.stat().st_size
    return CodecFigure(source, changed / cells, size / sent, size / encoded / 1e6, size / decoded / 1e6)


def shaped_like_qwen(layers: int = LAYERS) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of a model of 0.6B parameters."""
    block = {
        "self_attn.q_proj": (QUERIES, HIDDEN),
        "self_attn.k_proj": (KEYS, HIDDEN),
        "self_attn.v_proj": (KEYS, HIDDEN),
        "self_attn.o_proj": (HIDDEN, QUERIES),
        "mlp.gate_proj": (MLP, HIDDEN),
        "mlp.up_proj": (MLP, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    named = {f"model.layers.{i}.{name}.weight": shape for i in range(layers) for name, shape in block.items()}
    return {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), **named, "model.norm.weight": (HIDDEN,)}


def drawn(layers: int, draws: torch.Generator) -> dict[str, Tensor]:
    """The float32 weights of such a model."""
    return {name: torch.randn(shape, generator=draws) * SCALE for name, shape in shaped_like_qwen(layers).items()}


def stepped(masters: Mapping[str, Tensor], step: float, draws: torch.Generator) -> dict[str, Tensor]:
    """The weights after an update like Adam's, whose every cell moves by about `step`, at most twice as far."""
    return {
        name: master + step * torch.randn(master.shape, generator=draws).clamp_(-2, 2)
        for name, master in masters.items()
    }


def synthetic(layers: int = LAYERS) -> Iterator[CodecFigure]:
    """Differences of a model of 0.6B parameters with updates like Adam's, by the share of weights that they change."""
    torch.set_num_threads(1)
    draws = torch.Generator().manual_seed(0)
    masters = drawn(layers, draws)
    old = copied_weights(masters, all_in(torch.bfloat16))
    for step in STEPS.values():
        new = copied_weights(stepped(masters, step, draws), all_in(torch.bfloat16))
        yield measure(f"synthetic {sum(t.numel() for t in new.values()) / 1e9:.1f}B", old, new)


def trained(updates: int = UPDATES) -> Iterator[CodecFigure]:
    """Differences between the last two checkpoints of real runs of the tiny policy, rounded to bfloat16, by learning
    rate. The warm-up is kept in the home folder, as always; the runs are not.

    Raises:
        RuntimeError: a run failed; the message is what it said last.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=disk.own_folder()) as folder:
        for rate in RATES:
            run = Path(folder, f"lr-{rate}")
            _train(run, rate, updates)
            old, new = (
                copied_weights(read_weights(run / "state" / str(step)), all_in(torch.bfloat16))
                for step in (updates - 1, updates)
            )
            repeats = [measure(f"tiny, lr {rate}", old, new) for _ in range(REPEATS)]
            yield sorted(repeats, key=lambda figure: figure.encode_mb_s)[REPEATS // 2]


def _train(run: Path, rate: str, updates: int) -> None:
    """A run of its own process, as a user would start it."""
    options = {
        "run": run,
        "steps": updates,
        "staleness": 0,
        "optimizer.lr": rate,
        "optimizer.warmup_steps": 0,
        "batch.prompts": 16,
        "held_out": 1,
        "tracking.report": "false",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-c", "from flows.cli import main; main()", "train", "--json", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "RLVF_STORAGE": ""})
    if ended.returncode:
        raise RuntimeError(f"rlvf train at learning rate {rate} failed: {ended.stderr.strip().splitlines()[-1]}")
