"""The leaf of the configuration that says how much one step trains on."""

from pydantic import BaseModel, ConfigDict, Field

from rl.config import OURS

SLICE_SECONDS = 60.0


class BatchConfig(BaseModel):
    """How much one step trains on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompts: int = Field(32, ge=1, description="prompts, so groups, that one update trains on")
    samples: int = Field(8, ge=2, description="completions per prompt (the group size G)")
    oversample: float = Field(
        2.0,
        ge=1,
        le=100,
        description="at most this many times batch.prompts groups are generated, to replace those whose rewards are "
        "all equal",
    )
    lease: int = Field(
        16,
        ge=1,
        description="prompts per lease of a generator; where generation runs ahead, only until its speed is known "
        "(lease.seconds). A lost worker costs one lease, or one slice of it",
    )
    slice_seconds: float | None = Field(
        None,
        ge=0,
        le=86400,
        description="seconds after which a generator hands in what it has of a lease: finished completions, and the "
        "tokens so far of others, with which the first free generator continues; one that is asked to leave does so "
        "at once. Longer where the first step, which computes keys and values of the tokens so far, takes more than a "
        "tenth of it. 0: whole leases, as always with a server (policy.engine); null takes 60, at staleness 0 whole "
        "leases, as the log-probs of a completion that moved differ by rounding",
    )

    def slices(self, staleness: int, engine: str) -> float | None:
        """Seconds of a slice; None where leases are handed in whole. Raises ValueError where slices are asked for and
        cannot be."""
        if self.slice_seconds and engine != OURS:
            raise ValueError(
                "batch.slice_seconds: a server (policy.engine) is asked for whole completions; leave one of them out"
            )
        if self.slice_seconds is None:
            return SLICE_SECONDS if staleness > 0 and engine == OURS else None
        return self.slice_seconds or None
