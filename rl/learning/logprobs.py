"""Log-probs of completions that are there, with the gradient of a loss or without.

Legend: P groups, G completions per group, T tokens of a completion, N completion tokens of a forward pass.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rl.learning.packing import Packed
from rl.learning.passes import Accumulation
from rl.learning.states import predicting_states
from rl.model.blocks import in_blocks
from rl.model.policy import Policy
from rl.model.scores import Loss, target_scores
from rl.records import Rollouts


def token_scores(
    policy: Policy,
    packed: Packed,
    temperature: float,
    loss: Loss | None = None,
    *,
    entropy_weights: Tensor | None = None,
    before: Callable[[Tensor], None] | None = None,
    checkpointing: bool = False,
) -> tuple[Tensor, Tensor]:
    """[N] log-probs of the packed completion tokens at ``temperature`` in float32, and [N] entropies, both detached.

    With ``loss``, its gradient is added to that of the policy's parameters, with ``entropy_weights`` [N] that of -(them
    times the entropies) too; see `checkpointed` for ``checkpointing``. A loss that needs all log-probs of the pass is
    given them ``before`` it is asked of its parts, which makes the logits twice.
    """
    with in_blocks(policy.model, packed.mask):
        with policy.autocast():
            hidden = predicting_states(policy, packed, trained=loss is not None, checkpointing=checkpointing)
            given = policy.model, hidden.detach(), packed.targets, temperature
            if before is not None:
                before(target_scores(*given, chunk=packed.chunk)[0])
            found = target_scores(*given, loss, packed.chunk, entropy_weights)
        logprobs, entropy, gradient = found
        if gradient is not None and hidden.requires_grad:
            hidden.backward(gradient)  # type: ignore[no-untyped-call]
    return logprobs, entropy


def completion_logprobs(
    policy: Policy, rollouts: Rollouts, temperature: float, accumulation: Accumulation, groups: Sequence[int]
) -> NDArray[np.float32]:
    """[P, G, T] log-probs of the completions of these groups under a policy, as `each_token` gives them."""
    return each_token(rollouts, groups, accumulation, lambda packed: token_scores(policy, packed, temperature)[0])


def each_token(
    rollouts: Rollouts, groups: Sequence[int], accumulation: Accumulation, of: Callable[[Packed], Tensor]
) -> NDArray[np.float32]:
    """[P, G, T] what ``of`` gives for the [N] tokens of each forward pass; 0 where the policy wrote none, and in other
    groups. Raises NoRoomError."""
    found = np.zeros(rollouts.tokens.shape, dtype=np.float32)

    def add(packed: Packed, _: bool) -> dict[str, float]:
        where = (packed.group, packed.sample, packed.token_index)
        found[tuple(axis.cpu().numpy() for axis in where)] = of(packed).float().cpu().numpy()
        return {}

    accumulation.add(rollouts, groups, add)
    return found
