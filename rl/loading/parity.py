"""Whether sampler, learner and model agree on a log-prob.

The sampler keeps keys and values in slots that sequences enter and leave, the learner packs a group into one row, and
both lay out their own attention masks and run the head apart from the decoder. A model that keeps other state than keys
and values, mixes neighbouring positions, or treats its logits in a way of its own can take all that without a word and
be wrong. So it is tried at load: two prompts of unequal length, a few tokens, three ways; the sampler with fewer slots
than sequences, which end one by one and are taken back once and gone on with.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.learning.logprobs import token_scores
from rl.learning.packing import pack, rows_of
from rl.model.lora import moved_adapters
from rl.model.memory import is_out_of_memory
from rl.model.policy import Policy, UnknownModelError
from rl.model.tolerances import LENGTHS, TEXT, TOLERANCES
from rl.records import Problem, Rollouts
from rl.sampling.engine import Engine
from rl.sampling.sampler import uniforms
from rl.sampling.scheduling import Draw
from rl.sampling.slots import Slots

LIMITS = ((3, 6), (6, 4))  # tokens of the completions of each
AT_ONCE, UNTIL = 3, 4  # sequences, and steps before they are taken back

LIST = "docs/models.md lists the architectures that can be trained"
# what a few tokens cannot show
BY_PLACE = {"gpt_neo": "its local attention counts places in a row, where the completions of a group lie side by side"}


@dataclass(frozen=True)
class Parity:
    """Distance of log-probs from those of the model's own forward pass, in nats."""

    sampler: float
    learner: float
    tolerance: float

    @property
    def gap(self) -> float:
        return max(self.sampler, self.learner)


@torch.no_grad()
def measure(policy: Policy) -> Parity:
    """The parity of a policy, in the type that its parameters are kept in: a learner's float32 whatever it computes in.
    A frozen model that is kept in a narrower type is measured in that of the arithmetic, and its adapters a little away
    from where they are, because new ones do nothing.

    Raises:
        ArithmeticError: its own log-probs are not finite.
    """
    with moved_adapters(policy.model):
        return _measured(policy)


def _measured(policy: Policy) -> Parity:
    policy = replace(policy, dtype=torch.promote_types(policy.model.dtype, policy.dtype))
    words = list(policy.tokenizer(TEXT)["input_ids"])
    prompts = [words[:length] for length in LENGTHS]
    drawn = _drawn(policy, prompts)
    plain = torch.cat([_plain(policy, draw) for draw in drawn])
    if not torch.isfinite(plain).all():
        raise ArithmeticError("its logits are not finite: broken weights, or an overflow")
    problems = [Problem("", "", "parity")] * len(prompts)
    rollouts = Rollouts.padded(problems, prompts, [draw.tokens for draw in drawn], ended=False)
    packed = pack(rollouts, rows_of(rollouts, range(len(prompts))), policy.device)
    learned = torch.empty_like(plain)
    first = np.cumsum(rollouts.lengths) - rollouts.lengths.ravel()
    sequence = packed.group * len(LIMITS[0]) + packed.sample
    learned[torch.from_numpy(first).to(policy.device)[sequence] + packed.token_index] = token_scores(
        policy, packed, 1.0
    )[0]
    sampled = torch.from_numpy(np.concatenate([draw.logprobs for draw in drawn])).to(policy.device)
    whole = policy.dtype == torch.float32
    gaps = [(one - plain).abs() for one in (sampled, learned)]
    sampler, learner = (float(gap.max() if whole else gap.mean()) for gap in gaps)
    return Parity(sampler, learner, TOLERANCES[policy.dtype])


def _named(model: PreTrainedModel, path: str) -> str:
    return f"policy.model {path!r} ({type(model).__name__})"


def refuse_by_type(model: PreTrainedModel, path: str) -> None:
    """Raise UnknownModelError with one line for a type of models of which it is known that they do not agree."""
    if (why := BY_PLACE.get(model.config.model_type)) is not None:
        raise UnknownModelError(f"{_named(model, path)}: {why}; {LIST}")


def require_parity(policy: Policy, path: str) -> None:
    """Raise UnknownModelError with one line unless sampler and learner agree with the model."""
    refuse_by_type(policy.model, path)
    named = _named(policy.model, path)
    try:
        parity = measure(policy)
    except ArithmeticError as error:
        raise UnknownModelError(f"{named}: {error}") from error
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise  # a matter of the machine
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnknownModelError(
            f"{named}: it keeps other state than keys and values, or wants other inputs than tokens: {reason}; {LIST}"
        ) from error
    if not parity.gap <= parity.tolerance:
        raise UnknownModelError(
            f"{named}: log-probs of the sampler are {parity.sampler:.2g} nats and those of the learner "
            f"{parity.learner:.2g} from the model's own, {parity.tolerance:g} are allowed; {LIST}"
        )


def _drawn(policy: Policy, prompts: list[list[int]]) -> list[Draw]:
    """Completions of each prompt, as the engine makes them."""
    engine = Engine(policy, Slots(policy, most=AT_ONCE))
    noise = uniforms(0, 0, range(len(prompts)), len(LIMITS[0]), np.max(LIMITS)).reshape(
        len(prompts), len(LIMITS[0]), -1
    )
    drawn = [
        engine.add(prompt, limit, row[:limit])
        for prompt, limits, rows in zip(prompts, LIMITS, noise, strict=True)
        for limit, row in zip(limits, rows, strict=True)
    ]
    for _ in range(UNTIL):
        engine.step()
    for draw in engine.take_back():
        engine.go_on(draw)
    engine.run()
    return drawn


def _plain(policy: Policy, draw: Draw) -> Tensor:
    """[T] log-probs of one completion through the model's own forward pass, nothing beside it."""
    ids = torch.tensor([[*draw.prompt, *draw.tokens.tolist()]], device=policy.device)
    first = len(draw.prompt)
    logits = policy.model(input_ids=ids, use_cache=False).logits[0, first - 1 : -1].float()
    scores: Tensor = logits.log_softmax(-1).gather(1, ids[0, first:, None]).squeeze(1)
    return scores
