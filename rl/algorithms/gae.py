"""Generalised advantage estimation (Schulman et al., arXiv 1506.02438, equation 16) over the tokens of completions.

Legend: P groups, G completions per group, T tokens of a completion.
"""

import numpy as np
from numpy.typing import NDArray

from rl.records import Batch


def gae(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    trained: NDArray[np.bool_],
    gamma: float,
    lam: float,
    penalties: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """[P, G, T] advantages A_t = delta_t + gamma lam A_{t+1} with delta_t = r_t + gamma V_{t+1} - V_t, for the tokens
    that are ``trained`` [P, G, T]; 0 elsewhere.

    Actions are the policy's tokens alone: an observation is part of the transition, so that t + 1 is the policy's next
    token, and from the last one of a turn to the first one of the next it is one step of gamma and lam, however much
    was observed between them. ``values`` [P, G, T] are of the state before each token: before the first one of a turn
    it holds the observation. After the last token there is no state, V = 0, also where the completion was cut at the
    limit of tokens. The reward [P, G] comes with the policy's last token; of each token its penalty [P, G, T] is taken
    off. A completion whose reward is NaN has advantages 0.
    """
    known = ~np.isnan(rewards)
    there = trained & known[..., None]
    due = np.where(known, rewards, 0).astype(np.float64)  # until the last token has got it
    found = np.zeros(values.shape)
    next_value = next_advantage = np.zeros(rewards.shape)
    for t in reversed(range(values.shape[2])):
        now, reward = there[..., t], due - (0 if penalties is None else penalties[..., t])
        advantage = reward + gamma * next_value - values[..., t] + gamma * lam * next_advantage
        found[..., t] = np.where(now, advantage, 0)
        next_advantage = np.where(now, advantage, next_advantage)
        next_value = np.where(now, values[..., t], next_value)
        due = np.where(now, 0, due)
    return found.astype(np.float32)


def returns_to_go(batch: Batch) -> NDArray[np.float32]:
    """[P, G, T] Monte-Carlo returns: the reward less the penalties from each token on; 0 where the policy wrote none,
    and of a completion whose reward is NaN."""
    nothing = np.zeros(batch.rollouts.tokens.shape, np.float32)
    return gae(batch.rewards, nothing, batch.rollouts.trained, 1.0, 1.0, batch.penalties)
