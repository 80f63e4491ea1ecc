"""GAE: Generalized Advantage Estimation (arXiv 1506.02438) of completions that are rewarded at their end.

Legend: P groups, G completions per group, T completion tokens. V_t: the value of the state before token t.
"""

import numpy as np
from numpy.typing import NDArray


def gae(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    lengths: NDArray[np.int32],
    gamma: float = 1.0,
    lam: float = 1.0,
) -> NDArray[np.float32]:
    """[P, G, T] advantages from [P, G] rewards, [P, G, T] values and [P, G] lengths.

    A_t = delta_t + gamma * lam * A_{t+1} with delta_t = r_t + gamma * V_{t+1} - V_t (equations 11 and 16). The reward
    is r_t at a completion's last token, 0 at others; behind the last token V and A are 0. ``lam`` 1 gives the
    discounted reward less V_t, ``lam`` 0 delta_t. 0 past a completion's length, and where its reward is unknown
    (NaN). A return, which a critic learns, is advantage + value. Summed up in float64.
    """
    advantages = np.zeros(values.shape, dtype=np.float64)
    reward = np.where(np.isnan(rewards), 0, rewards).astype(np.float64)
    ahead = following = np.zeros(rewards.shape)  # A and V of the token after this one
    for t in reversed(range(values.shape[2])):
        inside, last = t < lengths, t == lengths - 1
        value = values[:, :, t].astype(np.float64)
        delta = np.where(last, reward, gamma * following) - value
        ahead = np.where(inside, delta + gamma * lam * ahead, 0.0)
        following = np.where(inside, value, 0.0)
        advantages[:, :, t] = ahead
    advantages[np.isnan(rewards)] = 0
    result: NDArray[np.float32] = advantages.astype(np.float32)
    return result
