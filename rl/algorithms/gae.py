"""Generalised advantage estimation (Schulman et al., arXiv 1506.02438, equation 16) over the tokens of completions.

Legend: P groups, G completions per group, T tokens of a completion.
"""

import numpy as np
from numpy.typing import NDArray

from rl.algorithms.algorithm import Floats
from rl.records import Batch


def gae(
    rewards: Floats,
    values: Floats,
    lengths: NDArray[np.int32],
    gamma: float,
    lam: float,
    penalties: Floats | None = None,
) -> Floats:
    """[P, G, T] advantages A_t = delta_t + gamma lam A_{t+1} with delta_t = r_t + gamma V_{t+1} - V_t, for completions
    of ``lengths`` [P, G]; 0 beyond them.

    ``values`` [P, G, T] are of the state before each token; after the last one there is none, V = 0, also where the
    completion was cut at the limit of tokens. The reward [P, G] comes with the last token; of each token its penalty
    [P, G, T] is taken off. A completion whose reward is NaN has advantages 0.
    """
    known = ~np.isnan(rewards)
    given = np.where(known, rewards, 0).astype(np.float64)
    there = (np.arange(values.shape[2]) < lengths[..., None]) & known[..., None]
    found = np.zeros(values.shape)
    next_value = next_advantage = np.zeros(rewards.shape)
    for t in reversed(range(values.shape[2])):
        reward = np.where(lengths == t + 1, given, 0) - (0 if penalties is None else penalties[..., t])
        advantage = reward + gamma * next_value - values[..., t] + gamma * lam * next_advantage
        found[..., t] = next_advantage = np.where(there[..., t], advantage, 0)
        next_value = np.where(there[..., t], values[..., t], 0)
    return found.astype(np.float32)


def returns_to_go(batch: Batch) -> Floats:
    """[P, G, T] Monte-Carlo returns: the reward less the penalties from each token on; 0 beyond a completion's length,
    and of one whose reward is NaN."""
    nothing = np.zeros(batch.rollouts.tokens.shape, np.float32)
    return gae(batch.rewards, nothing, batch.rollouts.lengths, 1.0, 1.0, batch.penalties)
