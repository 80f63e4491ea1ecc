"""Whether sampler, learner and model agree on a log-prob.

The sampler has its own cache and pads on the left, the learner packs a group into one row, and both lay out their own
attention masks and run the head apart from the decoder. A model that keeps other state than keys and values, mixes
neighbouring positions, or treats its logits in a way of its own can take all that without a word and be wrong. So it is
tried at load: two prompts of unequal length, a few tokens, three ways.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rl.decoding import complete
from rl.learning.learner import token_scores
from rl.learning.packing import pack, rows_of
from rl.model.policy import Policy, UnknownModelError
from rl.records import Problem, Rollouts
from rl.sampler import uniforms

TEXT = "How many apples are 7 apples and 15 more apples?"
LENGTHS = (3, 7)  # of the prompts, in tokens
SAMPLES, TOKENS = 2, 5
# nats: of the worst token in float32; of the mean over tokens in half precision, where single ones say little
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}

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

    Raises:
        ArithmeticError: its own log-probs are not finite.
    """
    policy = replace(policy, dtype=policy.model.dtype)
    words = list(policy.tokenizer(TEXT)["input_ids"])
    prompts = [words[:length] for length in LENGTHS]
    found = complete(
        policy,
        prompts,
        uniforms(0, 0, range(len(prompts)), SAMPLES, TOKENS).to(policy.device),
        samples=SAMPLES,
        max_tokens=TOKENS,
    )
    tokens = found.tokens.cpu().numpy().reshape(len(prompts), SAMPLES, TOKENS)
    plain = torch.stack(
        [_plain(policy, prompt, row) for prompt, drawn in zip(prompts, tokens, strict=True) for row in drawn]
    )
    if not torch.isfinite(plain).all():
        raise ArithmeticError("its logits are not finite: broken weights, or an overflow")
    rollouts = _rollouts(prompts, tokens)
    packed = pack(rollouts, rows_of(rollouts, range(len(prompts))), policy.device)
    learned = torch.empty_like(plain)
    learned[packed.group * SAMPLES + packed.sample, packed.token_index] = token_scores(policy, packed, 1.0)[0]
    whole = policy.model.dtype == torch.float32
    gaps = [(one - plain).abs() for one in (found.logprobs, learned)]
    sampler, learner = (float(gap.max() if whole else gap.mean()) for gap in gaps)
    return Parity(sampler, learner, TOLERANCES[policy.model.dtype])


def require_parity(policy: Policy, path: str) -> None:
    """Raise UnknownModelError with one line unless sampler and learner agree with the model."""
    named = f"policy.model {path!r} ({type(policy.model).__name__})"
    if policy.model.config.model_type in BY_PLACE:
        raise UnknownModelError(f"{named}: {BY_PLACE[policy.model.config.model_type]}; {LIST}")
    try:
        parity = measure(policy)
    except torch.OutOfMemoryError:
        raise  # a matter of the machine
    except ArithmeticError as error:
        raise UnknownModelError(f"{named}: {error}") from error
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnknownModelError(
            f"{named}: it keeps other state than keys and values, or wants other inputs than tokens: {reason}; {LIST}"
        ) from error
    if not parity.gap <= parity.tolerance:
        raise UnknownModelError(
            f"{named}: log-probs of the sampler are {parity.sampler:.2g} nats and those of the learner "
            f"{parity.learner:.2g} from the model's own, {parity.tolerance:g} are allowed; {LIST}"
        )


def _plain(policy: Policy, prompt: list[int], completion: np.ndarray) -> Tensor:
    """[T] log-probs of one completion through the model's own forward pass, nothing beside it."""
    ids = torch.tensor([[*prompt, *completion.tolist()]], device=policy.device)
    logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    scores: Tensor = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None]).squeeze(1)
    return scores


def _rollouts(prompts: list[list[int]], tokens: np.ndarray) -> Rollouts:
    count = len(prompts)
    return Rollouts(
        problems=tuple(Problem("", "", "parity") for _ in prompts),
        prompts=tuple(np.asarray(prompt, dtype=np.int32) for prompt in prompts),
        tokens=tokens,
        logprobs=np.zeros(tokens.shape, dtype=np.float32),
        versions=np.zeros_like(tokens),
        lengths=np.full((count, SAMPLES), TOKENS, dtype=np.int32),
        ended=np.zeros((count, SAMPLES), dtype=np.bool_),
        texts=tuple(("",) * SAMPLES for _ in prompts),
    )
