"""Audits: log-probs of a lease by another worker at the same version, and what their divergence says.

Legend: P groups, G completions per group, T completion tokens.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rl.records import Maker, Rollouts

STREAM = (1,)  # keeps these draws apart from the sampler's
FEWEST = 64  # tokens that the bound is meant for
Wrong = Literal["maker", "auditor", "undecided"]


class AuditConfig(BaseModel):
    """Log-probs of some leases, computed again by another generator."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="share of the leases that another generator, if there is one, scores again at the same version; "
        "each costs a forward pass over its tokens; 0 audits none",
    )
    bound: float = Field(
        0.02,
        gt=0,
        le=10,
        description="mean divergence (k3) in nats per token above which two workers disagree, of 64 tokens or more; "
        "one that is wrong twice gets no more leases",
    )

    def allowed(self, tokens: int) -> float:
        """The bound for a mean over so many tokens. Of fewer than FEWEST their sum may be what it may be of these: a
        single token that is out of the ordinary is beyond the bound by itself, and no sign of a fault."""
        return self.bound * max(1.0, FEWEST / tokens)


@dataclass(frozen=True)
class AuditScores:
    """What a worker makes of the tokens of a lease."""

    logprobs: NDArray[np.float32]  # [P, G, T], 0 where the policy wrote no token
    dtype: str  # of its arithmetic


@dataclass(frozen=True)
class Audited:
    """The audit of one lease; without an auditor where none could score it."""

    maker: Maker
    auditor: Maker | None = None
    kl: float = 0.0  # divergence of the two, nats per token
    wrong: str = ""  # where they disagree: see `who_is_wrong`


def draws(seed: int, step: int, group: int) -> tuple[float, float]:
    """Two numbers in [0, 1) for the lease of ``step`` that begins with ``group``, always the same: it is audited where
    the first is below the share, and the second chooses by whom."""
    seeds = np.random.SeedSequence([seed, step, group], spawn_key=STREAM)
    first, second = np.random.Generator(np.random.Philox(seeds)).random(2)
    return float(first), float(second)


def drawn(rollouts: Rollouts, start: NDArray[np.int32], end: NDArray[np.int32]) -> NDArray[np.bool_]:
    """[P, G, T] the tokens from ``start`` to ``end`` [P, G] that the policy wrote: what one worker sampled of a
    lease."""
    at = np.arange(rollouts.tokens.shape[2])
    tokens: NDArray[np.bool_] = (at >= start[:, :, None]) & (at < end[:, :, None]) & rollouts.trained
    return tokens


def compared(rollouts: Rollouts, start: NDArray[np.int32], end: NDArray[np.int32]) -> tuple[int, NDArray[np.bool_]]:
    """A version, and [P, G, T] its tokens of those that one worker has `drawn`, of which there are some. What follows a
    swap of weights within a completion depends on keys and values of the version before: of the newest version, which
    others may still have, count completions begun with it; where there are none, the tokens of the oldest do."""
    its = drawn(rollouts, start, end)
    newest = int(rollouts.versions[its].max())
    begun = (~its | (rollouts.versions == newest)).all(axis=2, keepdims=True)
    tokens: NDArray[np.bool_] = its & begun
    if tokens.any():
        return newest, tokens
    oldest = int(rollouts.versions[its].min())
    return oldest, its & (rollouts.versions == oldest)


def divergence(behaviour: NDArray[np.float32], scored: NDArray[np.float32], tokens: NDArray[np.bool_]) -> float:
    """Mean over ``tokens`` [P, G, T] of k3 = exp(q - p) - (q - p) - 1, in nats, of log-probs p of the policy that
    sampled and q of the one that scored: an unbiased estimate of KL(p || q), and never negative (Schulman,
    Approximating KL divergence, 2020). Infinite where a log-prob is not finite."""
    ratio = scored[tokens].astype(np.float64) - behaviour[tokens].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(np.expm1(ratio) - ratio))
    return mean if np.isfinite(mean) else np.inf


def who_is_wrong(maker: float, auditor: float, bound: float) -> Wrong:
    """Which of two workers that disagree, by the divergence of each from a third: the one that is beyond the bound
    alone. Where both are, no two of the three agree; where neither is, the third stands between them."""
    wrong = maker > bound, auditor > bound
    return "undecided" if wrong[0] == wrong[1] else "maker" if wrong[0] else "auditor"


def figures(audits: Sequence[Audited]) -> dict[str, float]:
    """The metrics of a step's audits by name; none where there were none."""
    if not audits:
        return {}
    made = [(each.maker, each.auditor, each.kl) for each in audits if each.auditor is not None]
    pairs: dict[str, list[float]] = defaultdict(list)
    for maker, auditor, kl in made:
        pairs["audit/kl"].append(kl)
        pairs[f"audit/workers/{maker.worker}/{auditor.worker}"].append(kl)
        pairs[f"audit/dtypes/{maker.dtype or 'unknown'}/{auditor.dtype or 'unknown'}"].append(kl)
    return {
        "audit/leases": len(made),
        "audit/missed": len(audits) - len(made),
        "audit/disagreed": sum(each.wrong != "" for each in audits),
        **{name: sum(each) / len(each) for name, each in pairs.items()},
    }
