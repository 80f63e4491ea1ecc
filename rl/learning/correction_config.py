"""Options of the correction for tokens that an older policy sampled: see `rl.learning.corrections`."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl.algorithms.algorithm import Algorithm

# Low and high, by kind, where they are not given: TIS's and IcePop's as published, DPPO's as prime-rl has them. Those
# of a geometric mean are published as 0.999 to 1.001 (verl, for what two programs make of the same weights), by which
# nearly all that older versions sampled is left out, and as 0.1 to 10 (prime-rl), by which nothing is: here they are as
# far as PPO's clip, for an average token (docs/benchmarks/learning.md#corrections).
BOUNDS = {
    "none": (0.0, float("inf")),
    "truncate": (0.0, 2.0),
    "mask": (0.5, 5.0),
    "sequence_mask": (0.8, 1.25),
    "divergence": (0.2, 0.2),
}


def _by_kind(index: int, *kinds: str) -> str:
    return ", ".join(f"{BOUNDS[kind][index]:g} of {kind}" for kind in kinds)


class CorrectionConfig(BaseModel):
    """What is done about tokens that the policy has moved away from since mu sampled them: a weight, or a mask. The
    ratio to mu is that of the proximal policy, where `proximal` names another one than mu, else that of pi."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "kind"
    by_kind: ClassVar = ("low", "high")  # what they are bounds of, so that those of another kind are left behind

    kind: Literal["none", "truncate", "mask", "sequence_mask", "divergence"] = Field(
        "none",
        description="truncate: weights old/mu of proximal are cut (TIS). The others leave tokens out of the loss, and "
        "change no weight: mask, by a token's ratio to mu (IcePop); sequence_mask, whole completions by its geometric "
        "mean; divergence, by pi - mu, in the direction of the advantage (DPPO)",
    )
    low: float | None = Field(
        None,
        ge=0,
        description="a ratio below this is left out; of divergence a probability that has fallen by more, where the "
        f"advantage is negative (null takes {_by_kind(0, 'mask', 'sequence_mask', 'divergence')})",
    )
    high: float | None = Field(
        None,
        gt=0,
        description="a ratio above this is cut or left out; of divergence a probability that has risen by more, where "
        f"the advantage is positive (null takes {_by_kind(1, 'truncate', 'mask', 'sequence_mask', 'divergence')})",
    )

    @model_validator(mode="after")
    def _keeps_what_has_not_moved(self) -> Self:
        if self.kind == "none":
            given = next((name for name in ("low", "high") if getattr(self, name) is not None), None)
            if given is not None:
                raise ValueError(f"{given}: needs a kind other than none")
            return self
        low, high = self.bounds
        if high == float("inf") and low == (high if self.kind == "divergence" else 0):
            raise ValueError(
                f"high: with inf {self.kind} corrects nothing; give a bound, or leave algorithm.correction out"
            )
        if self.kind == "truncate":
            if self.low is not None:
                raise ValueError("low: truncate cuts from above alone; leave it out")
            if high < 1:
                raise ValueError(f"high: {high:g} would weigh on-policy tokens less; give at least 1")
        elif self.kind == "divergence":
            if low == 0:
                raise ValueError("low: 0 would leave out what rounding moves; give more")
            for name, bound in (("low", low), ("high", high)):
                if 1 <= bound < float("inf"):  # a ratio's, by mistake; whoever wants none there says so
                    less = f"give less, such as {BOUNDS['divergence'][0]:g}, or inf for no bound on that side"
                    raise ValueError(f"{name}: probabilities differ by less than 1; {less}")
        elif low >= 1 or high <= 1:
            raise ValueError(
                f"{'low' if low >= 1 else 'high'}: on-policy tokens, of a ratio of 1, would be left out; give "
                f"{'less' if low >= 1 else 'more'} than 1"
            )
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Low and high, with their defaults resolved."""
        low, high = BOUNDS[self.kind]
        return low if self.low is None else self.low, high if self.high is None else self.high

    @property
    def masks(self) -> bool:
        """Whether it leaves tokens out."""
        return self.kind in ("mask", "sequence_mask", "divergence")

    def contradicts(self, algorithm: Algorithm, name: str, proximal: str) -> str:
        """Why it does not go with an algorithm of that name, whose ratio is to the policy `proximal`; "" where it does:
        what moves too far from mu is left out once."""
        if self.masks and type(algorithm).token_mask is not Algorithm.token_mask:
            again = f"leaves tokens out by their ratio to mu itself, and {self.kind} would do it again"
            return f"{name} {again}; leave algorithm.correction out"
        if self.kind == "divergence" and algorithm.trust_region and proximal == "behaviour":
            return (
                f"divergence stands in place of a clip, and {name} clips the same ratio to mu; take cispo or "
                "reinforce, which do not, or proximal recomputed or interpolated, which clips another"
            )
        return ""
