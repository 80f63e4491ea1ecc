"""An update of a model with a large vocabulary: memory and speed, beside the computation of all logits at once."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from flows.benches.apart import apart, peak_bytes, reset_peak, seconds_on, taken_bytes
from flows.benches.qwen import random_qwen
from rl.algorithms.algorithm import Tokens, centred
from rl.config import PolicyConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.packing import pack, rows_of
from rl.loading.policy import freeze
from rl.lora_config import LoraConfig
from rl.model.head import head_logits, hidden_states
from rl.model.memory import NoRoomError, free_bytes, is_out_of_memory
from rl.model.policy import Policy, choose_device, choose_dtype, dtype_name
from rl.model.tiny import build_tokenizer
from rl.records import Batch, Problem, Rollouts

RANK = {"rank": 16}  # of adapters, in place of all parameters
ONE_PASS = {"microbatch_tokens": 2**30, "checkpointing": "off"}
CHECKPOINTING = {"microbatch_tokens": 2**30, "checkpointing": "on"}  # in one pass too
METHODS: dict[str, dict[str, Any]] = {  # options of the optimizer, and the rank; `direct` takes none
    "full": {},
    "one pass": ONE_PASS,
    "checkpointing": CHECKPOINTING,
    "lora": RANK,
    "lora, one pass": RANK | ONE_PASS,
    "lora, checkpointing": RANK | CHECKPOINTING,
    "direct": {},
}
SAMPLES = 8  # completions of a group
ROW = 1024  # positions of a group at most: 64 of the prompt, 120 of each completion
COPIES = 4  # float32 tensors of all logits that the direct computation holds


@dataclass(frozen=True)
class UpdateFigure:
    """One line of the table; without figures where it does not fit into the device's memory."""

    positions: int  # of the update's groups, each behind one prompt
    method: str
    dtype: str | None = None  # of the arithmetic
    extra_gb: float | None = None  # at the peak, beyond weights, gradients and optimizer state
    tokens_per_second: float | None = None  # of completions, optimizer step included


def figures(positions: Sequence[int], layers: int, vocabulary: int, repeats: int) -> Iterator[UpdateFigure]:
    """A figure for each number of positions and each method: the largest memory and the median speed of updates that
    the methods make in turns, each in a process of its own."""
    for count in positions:
        turns = [_apart(count, method, layers, vocabulary) for _ in range(repeats) for method in METHODS]
        dtype = next((turn.dtype for turn in turns if turn.dtype), None)
        for method in METHODS:
            measured = [turn for turn in turns if turn.method == method and turn.extra_gb is not None]
            whole = len(measured) == repeats
            yield UpdateFigure(
                count,
                method,
                dtype,
                max(turn.extra_gb or 0 for turn in measured) if whole else None,
                statistics.median(turn.tokens_per_second or 0 for turn in measured) if whole else None,
            )


def _apart(positions: int, method: str, layers: int, vocabulary: int) -> UpdateFigure:
    return apart(measure, positions, method, layers, vocabulary) or UpdateFigure(positions, method)


def measure(positions: int, method: str, layers: int, vocabulary: int) -> UpdateFigure:
    """One update of the shape of Qwen3-0.6B with fewer layers, with gradients and optimizer state in memory before it.

    On a CPU of one core, in processor time, and the peak is that of the process; on CUDA that of the device, and it is
    the second of its size: the first loads the kernels, which took longer than the update.
    """
    torch.set_num_threads(1)
    learner = learner_of(layers, vocabulary, **METHODS[method])
    learner.update(batch_of(ROW // 16, vocabulary), AlgorithmSpec(), 1.0)  # makes the optimizer state
    for parameter in learner.parameters:
        parameter.grad = torch.zeros_like(parameter)
    batch = batch_of(positions, vocabulary)
    nothing = UpdateFigure(positions, method, dtype_name(learner.policy.dtype))
    tokens = batch.rollouts.generated_tokens
    device = learner.policy.device
    if method == "direct" and COPIES * 4 * tokens * vocabulary > free_bytes(device):
        return nothing
    turns = 1 if device.type == "cpu" else 2
    try:
        for _ in range(turns):
            reset_peak(device)
            standing = taken_bytes(device)
            began = seconds_on(device)
            if method == "direct":
                update_directly(learner, batch)
            else:
                learner.update(batch, AlgorithmSpec(), 1.0)
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, NoRoomError) and not is_out_of_memory(error):
            raise
        return nothing
    seconds = seconds_on(device) - began
    assert learner.optimizer_steps == 1 + turns
    extra = max(0, peak_bytes(device) - standing)
    return replace(nothing, extra_gb=extra / 1e9, tokens_per_second=tokens / seconds)


def learner_of(
    layers: int, vocabulary: int, rank: int = 0, sizes: Mapping[str, int] | None = None, **options: Any
) -> Learner:
    """A learner with random weights in float32, or adapters on such as are in the type of the arithmetic, with these
    options of its optimizer; `sizes` other than those of Qwen3-0.6B."""
    device = choose_device("auto")
    model = random_qwen(device, torch.float32, layers, vocabulary, sizes)
    dtype = choose_dtype("auto", device, model.num_parameters)
    if rank:
        model.to(dtype)  # type: ignore[arg-type]  # transformers wraps it
    base = freeze(model, "", PolicyConfig(lora=LoraConfig(rank=rank)), dtype, None, master=True) if rank else None
    policy = Policy(model, build_tokenizer(), device, dtype, base)
    return Learner(policy, OptimizerConfig(lr=1e-6, warmup_steps=0, **options))


def update_directly(learner: Learner, batch: Batch) -> None:
    """The same update by autograd, from the logits of all tokens at once."""
    policy, rollouts = learner.policy, batch.rollouts
    packed = pack(rollouts, rows_of(rollouts, range(len(rollouts.prompts))), policy.device)
    with policy.autocast():
        states = hidden_states(
            policy.model, mask=packed.mask, input_ids=packed.tokens, position_ids=packed.positions, use_cache=False
        )
        scores = head_logits(policy.model, states[packed.rows, packed.logit_positions]).log_softmax(-1)
    with torch.no_grad():
        entropy = -(scores.exp() * scores).sum(-1)
    where = packed.group, packed.sample
    advantage = torch.from_numpy(centred(batch.rewards)).to(policy.device)[where]
    behaviour = torch.from_numpy(rollouts.logprobs).to(policy.device)[*where, packed.token_index]
    logprobs = scores.gather(1, packed.targets[:, None]).squeeze(1)
    value = AlgorithmSpec().algorithm.token_loss(Tokens(logprobs, behaviour, advantage)).value.mean()
    value.backward()  # type: ignore[no-untyped-call]
    assert entropy.isfinite().all()
    learner.optimizer_step()


def batch_of(positions: int, vocabulary: int) -> Batch:
    """Groups of random tokens that take so many positions, half of their completions right."""
    row = min(positions, ROW)
    length = (row - row // 16) // SAMPLES
    return random_batch(positions // row, SAMPLES, row - SAMPLES * length, length, vocabulary)


def random_batch(groups: int, samples: int, prompt: int, tokens: int, vocabulary: int) -> Batch:
    """Prompts and completions of so many random tokens, half of a group's completions right."""
    draws = np.random.default_rng(0)
    prompts = draws.integers(vocabulary, size=(groups, prompt))
    completions = draws.integers(vocabulary, size=(groups * samples, tokens))
    logprobs = np.full(completions.shape, -np.log(vocabulary))
    rollouts = Rollouts.padded([Problem("", "", "bench")] * groups, prompts, completions, logprobs=logprobs)
    rewards = np.tile(np.arange(samples, dtype=np.float32) % 2, (groups, 1))
    return Batch(rollouts, rewards, rollouts.texts)
