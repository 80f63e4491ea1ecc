"""Generation: the sampler beside transformers' `generate` and `generate_batch`, on the same prompts.

Legend: P prompts, G completions of each, S longest prompt, T new tokens of a completion.
"""

import logging
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from flows.benches.apart import apart, bandwidth, peak_bytes, reset_peak, seconds_on, taken_bytes
from flows.benches.qwen import random_qwen
from flows.benches.shapes import ENGINES, Shape
from infra.errors import one_line
from rl.config import PolicyConfig
from rl.loading.policy import load_policy
from rl.model.memory import NoRoomError, is_out_of_memory
from rl.model.policy import Policy, choose_device, choose_dtype, dtype_name
from rl.model.skeleton import META, skeleton
from rl.model.tiny import build_model, build_tokenizer
from rl.model.tokenizer import read_tokenizer
from rl.problems.made.arithmetic import stream
from rl.sampling.engine import Engine
from rl.sampling.sampler import uniforms
from rl.sampling.slots import Slots

WARM_UP = 2  # new tokens of a generation before the one that is measured
LENGTHS = (60, 141)  # of prompts of random tokens: about those of GSM8K's questions
PAGE = 16  # positions of a page of generate_batch's cache on a CPU; elsewhere its own default


@dataclass(frozen=True)
class GenerateFigure:
    """One line of the table; without figures where the engine cannot do it here."""

    shape: str
    engine: str
    dtype: str | None  # of the arithmetic
    tokens_per_second: float | None  # of completions, prefill included
    peak_gb: float | None  # weights included
    limit_tokens_per_second: float | None  # where every step reads all weights from memory once, and nothing else


@dataclass(frozen=True)
class Trial:
    """What one process measured."""

    dtype: str = ""
    tokens_per_second: float = 0.0
    peak_gb: float = 0.0
    weight_bytes: int = 0  # that a step reads
    why_not: str = ""  # without figures


def device_bandwidth() -> float:
    """GB a second that the device reads from its memory, measured in a process of its own."""
    measured = apart(bandwidth, choose_device("auto"))
    if measured is None:
        raise RuntimeError("no memory for 1 GiB of numbers to measure the bandwidth with")
    return measured / 1e9


def check_reach(shape: Shape) -> None:
    """Raise ValueError where the sequences are longer than the model can attend to, by its configuration and tokenizer:
    no weights are loaded."""
    if shape.model:
        policy = Policy(skeleton(shape.model), read_tokenizer(shape.model), META, torch.float32)
    else:
        with META:
            policy = policy_of(shape, META, check=False)
    try:
        policy.check_room(max(map(len, prompts_of(shape, policy))), shape.tokens)
    except ValueError as error:
        raise ValueError(str(error).replace("sampling.max_tokens", f"--tokens {shape.tokens}")) from None


def figures(
    shape: Shape, repeats: int, gb_per_second: float, engines: Sequence[str] = ENGINES
) -> Iterator[tuple[GenerateFigure, str]]:
    """A figure for each of these engines, and why there is none: the median speed and the largest memory of generations
    that they make in turns, each in a process of its own. Raises ValueError where the model cannot be loaded.
    """
    ended = Trial(why_not="the system ended it, as one without memory does")
    turns = [(engine, apart(measure, engine, shape) or ended) for _ in range(repeats) for engine in engines]
    read = max(turn.weight_bytes for _, turn in turns)
    limit = shape.sequences * gb_per_second * 1e9 / read if read else None
    dtype = next((turn.dtype for _, turn in turns if turn.dtype), None)
    for engine in engines:
        mine = [turn for name, turn in turns if name == engine]
        if why_not := next((turn.why_not for turn in mine if turn.why_not), ""):
            yield GenerateFigure(shape.name, engine, dtype, None, None, limit), why_not
            continue
        speed = statistics.median(turn.tokens_per_second for turn in mine)
        yield GenerateFigure(shape.name, engine, dtype, speed, max(turn.peak_gb for turn in mine), limit), ""


def measure(engine: str, shape: Shape) -> Trial:
    """One generation, after a short one. All completions have T tokens: no end token ends one, in no engine.

    On a CPU by one thread, in processor time, and the peak is that of the process beyond what it held before it had the
    model; elsewhere in wall time, and on CUDA the peak is the device's.
    """
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(logging.CRITICAL)  # why there is no figure is said in the table
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading
    device = choose_device("auto")
    before = taken_bytes(device)
    policy = policy_of(shape, device, check=engine == "rlvf")
    kind = dtype_name(policy.dtype)
    prompts = prompts_of(shape, policy)
    generate = {"rlvf": by_sampler, "generate": by_generate, "generate_batch": by_generate_batch}[engine]
    try:
        with redirect_stdout(sys.stderr):  # where generate_batch prints
            generate(policy, prompts, shape.samples, WARM_UP)
            reset_peak(device)
            began = seconds_on(device)
            made = generate(policy, prompts, shape.samples, shape.tokens)
            seconds = seconds_on(device) - began
    except Exception as error:
        if isinstance(error, NoRoomError) or is_out_of_memory(error):
            return Trial(kind, why_not="does not fit here")
        if engine == "rlvf":
            raise
        return Trial(kind, why_not=one_line(error))  # the other engines' limits are their own
    assert made == shape.sequences * shape.tokens, f"{engine} made {made} tokens"
    return Trial(kind, made / seconds, (peak_bytes(device) - before) / 1e9, weight_bytes(policy.model))


def by_sampler(policy: Policy, prompts: Sequence[Sequence[int]], samples: int, tokens: int) -> int:
    """Tokens that our sampler made, each with its log-prob."""
    noise = uniforms(0, 0, range(len(prompts)), samples, tokens)
    engine = Engine(policy, slots_of(policy))
    made = [engine.add(prompts[row // samples], tokens, one) for row, one in enumerate(noise)]
    engine.run()
    return sum(len(draw.tokens) for draw in made)


@cache
def slots_of(policy: Policy) -> Slots:
    """As a worker has them from one lease to the next."""
    return Slots(policy)


def by_generate(policy: Policy, prompts: Sequence[Sequence[int]], samples: int, tokens: int) -> int:
    """Tokens that `generate` made, without log-probs: it would keep the logits of all tokens for them."""
    P, S = len(prompts), max(map(len, prompts))  # noqa: N806
    ids = torch.full((P, S), policy.end)
    mask = torch.zeros((P, S), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, S - len(prompt) :] = torch.tensor(prompt)
        mask[row, S - len(prompt) :] = 1
    # in place of the model's own, which would fill in what is left out here
    policy.model.generation_config = _settings(policy, samples, tokens, end=None)
    made = policy.model.generate(ids.to(policy.device), attention_mask=mask.to(policy.device))  # type: ignore[operator]
    return int(made[:, S:].numel())


def by_generate_batch(policy: Policy, prompts: Sequence[Sequence[int]], samples: int, tokens: int) -> int:
    """Tokens that `generate_batch` made, each with its log-prob. Its cache and its batch have the size of the work: by
    default they are made for most of the device's memory, which takes longer and says nothing."""
    sequences = len(prompts) * samples
    config = ContinuousBatchingConfig(return_logprobs=True, safety_margin=0.0)
    if policy.device.type == "cpu":
        config.page_size = PAGE
    pages = 1 + (max(map(len, prompts)) + tokens) // config.page_size
    config.num_blocks = sequences * (pages + 1)
    config.max_batch_tokens = max(sequences, sum(map(len, prompts)))
    made = policy.model.generate_batch(  # type: ignore[operator]
        [list(prompt) for prompt in prompts],
        generation_config=_settings(policy, samples, tokens, end=-1),
        continuous_batching_config=config,
    )
    if error := next((each.error for each in made.values() if each.error), None):
        raise RuntimeError(error)
    if len(made) < sequences:
        raise RuntimeError(f"it gave up, with {len(made)} of {sequences} completions")
    return sum(len(each.generated_tokens) for each in made.values())


def _settings(policy: Policy, samples: int, tokens: int, end: int | None) -> GenerationConfig:
    """Sampling from the whole distribution, as ours; ``end`` is no token."""
    return GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=samples,
        max_new_tokens=tokens,
        pad_token_id=policy.end,
        eos_token_id=end,
    )


def policy_of(shape: Shape, device: torch.device, *, check: bool) -> Policy:
    """The shape's policy; ``check`` sees that our sampler agrees with a model that is loaded."""
    if shape.model:
        return load_policy(shape.model, PolicyConfig(model=shape.model, dtype=shape.dtype), check=check)
    tokenizer = build_tokenizer()
    model: PreTrainedModel = (
        random_qwen(device, torch.float32, shape.layers)
        if shape.layers
        else build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, seed=0)
    )
    dtype = choose_dtype(shape.dtype, device, model.num_parameters)
    model.to(device, dtype)  # type: ignore[arg-type]  # transformers wraps it
    model.eval()  # type: ignore[no-untyped-call]
    return Policy(model, tokenizer, device, dtype)


def prompts_of(shape: Shape, policy: Policy) -> list[list[int]]:
    """[P] prompts, all different: arithmetic problems; random tokens for a model without a tokenizer of its own."""
    if shape.layers:
        draws = np.random.default_rng(0)
        vocabulary = policy.text.vocab_size
        return [draws.integers(vocabulary, size=draws.integers(*LENGTHS)).tolist() for _ in range(shape.prompts)]
    drawn = islice(stream(0, 0), 4 * shape.prompts)
    problems = list(dict.fromkeys(problem.prompt for problem in drawn))[: shape.prompts]
    return [policy.prompt_tokens(problem) for problem in problems]


def weight_bytes(model: PreTrainedModel) -> int:
    """Of the weights that a step reads: all, tied ones once, but not a table of embeddings that is no head as well."""
    read = {id(weight): weight.nbytes for weight in model.parameters()}
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if embeddings.weight is not head.weight:
        del read[id(embeddings.weight)]
    return sum(read.values())
