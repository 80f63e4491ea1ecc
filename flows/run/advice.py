"""What a run's figures call for: plain functions of a step's metrics."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median

from infra.runs.metric_log import MetricLine

STEPS = 5  # that a hint looks at: it is of their median, as one step says little
CUT = 0.9  # share of truncated completions
MISMATCH = 0.1  # nats per token
LEFT_OUT = 0.5  # share of the tokens, by a correction
UNJUDGED = 0.05  # share of the completions
COLLAPSED = 0.05, 0.1  # an entropy below so many nats per token, and below this share of the first one


class Advice:
    """Hints on a run, and why a step had no update."""

    def __init__(self, max_tokens: int, *, turns: bool = False) -> None:
        """``turns``: whether an environment is acted on."""
        self.max_tokens, self.turns = max_tokens, turns
        self._idle = 0  # steps in a row without a group to train on
        self._nothing = 0  # such steps altogether
        self._truncated: deque[float] = deque(maxlen=STEPS)
        self._unjudged: deque[float] = deque(maxlen=STEPS)
        self._mismatches: deque[float] = deque(maxlen=STEPS)  # of the steps with an update
        self._left_out: deque[float] = deque(maxlen=STEPS)  # of those with a correction
        self._entropies: tuple[float, float] | None = None  # of the first and the last step with an update
        self._said: set[str] = set()

    def begin(self, logged: Iterable[MetricLine]) -> None:
        """Take the figures that a resumed run has logged so far."""
        for line in logged:
            self._saw_entropy(line.metrics)

    def without_update(self, step: int, refused: str, with_signal: int) -> list[str]:
        """The line to say after a step whose update was `refused` for that, or that had nothing to learn from, with so
        many groups whose rewards differ: of the first such step, the 10th, the 100th."""
        if refused:
            return [f"step {step}: {refused}"]
        self._nothing += 1
        if self._nothing not in (1, 10, 100, 1000, 10_000):
            return []
        why = "no group has rewards that differ, so there was nothing to learn from"
        if with_signal:
            why = "every completion that could teach was cut, and algorithm.mask_truncated leaves those out"
        return [f"step {step}: {why}{f' ({self._nothing} such steps)' if self._nothing > 1 else ''}"]

    def after(self, figures: Mapping[str, float]) -> list[str]:
        """The lines to say after a step with these figures, each of a kind once."""
        self._idle = self._idle + 1 if figures["groups/used"] == 0 else 0
        self._truncated.append(figures["completion/truncated"])
        self._unjudged.append(figures["reward/error_rate"])
        if math.isfinite(mismatch := figures.get("policy/mismatch_kl", math.nan)):
            self._mismatches.append(mismatch)
        if "correction/kept" in figures:
            self._left_out.append(1 - figures["correction/kept"])
        self._saw_entropy(figures)
        unjudged = self._without_verdict(_usual(self._unjudged))
        found = {
            "cut": self._cut(_usual(self._truncated)),
            "unjudged": unjudged,
            # of a few that could be judged rewards say little
            "stuck": "" if unjudged else self._stuck(figures["reward/mean"], figures["reward/pass_rate"]),
            "mismatch": self._mismatch(_usual(self._mismatches)),
            "left out": self._without(_usual(self._left_out)),
        }
        new = {name: line for name, line in found.items() if line and name not in self._said}
        self._said |= set(new)
        return list(new.values())

    def _cut(self, truncated: float) -> str:
        if truncated < CUT:
            return ""
        return (
            f"hint: {truncated:.0%} of the completions were cut at sampling.max_tokens {self.max_tokens}, before an "
            "answer at their end: go on with a higher one (--resume), or begin a run "
            + ("with fewer turns" if self.turns else "that asks for less in problems.system or has a sampling.stop")
        )

    def _without_verdict(self, unjudged: float) -> str:
        if unjudged < UNJUDGED:
            return ""
        return (
            f"hint: {unjudged:.0%} of the completions could not be judged. They teach nothing, so that the policy may "
            "learn to write more of them: where the verifier raises on what it cannot read, have it return 0, and go "
            "on by --resume"
        )

    def _saw_entropy(self, figures: Mapping[str, float]) -> None:
        if math.isfinite(entropy := figures.get("policy/entropy", math.nan)):
            self._entropies = (self._entropies[0] if self._entropies else entropy, entropy)

    def _stuck(self, reward: float, pass_rate: float) -> str:
        if self._idle < STEPS:
            return ""
        seen = f"hint: no group had rewards that differ for {STEPS} steps (mean reward {reward:.3f}): "
        if pass_rate > 0.5:
            return seen + "nearly all is solved; take harder problems, or stop here"
        first, last = self._entropies or (0.0, 0.0)
        if last < min(COLLAPSED[0], COLLAPSED[1] * first):
            return seen + (
                f"the policy has collapsed, its entropy fell from {first:.2g} to {last:.2g} nats per token; start a "
                "new run with a lower optimizer.lr"
            )
        look = "are tools called?" if self.turns else "does the verifier find their answers?"
        return seen + (
            f"read the completions in rollouts/ ({look}); take easier problems, more batch.samples, or a better model "
            "to start from"
        )

    def _mismatch(self, nats: float) -> str:
        if nats <= MISMATCH:
            return ""
        return (
            f"hint: the policy that is trained differs from the one that sampled by {nats:.2g} nats per token (above "
            f"{MISMATCH:g}): go on with a lower staleness or optimizer.lr (--resume), or begin a run in which "
            "generators and trainer have one policy.dtype"
        )

    def _without(self, left_out: float) -> str:
        if left_out <= LEFT_OUT:
            return ""
        return (
            f"hint: algorithm.correction leaves {left_out:.0%} of the tokens out of the loss: go on with a "
            "lower optimizer.lr or staleness, or with wider bounds (algorithm.correction.low and .high), by --resume"
        )


def _usual(last: deque[float]) -> float:
    """The median of the last steps; 0 where there are too few."""
    return median(last) if len(last) == STEPS else 0.0
