"""The leaf of the configuration that says how much one step trains on."""

from pydantic import BaseModel, ConfigDict, Field

from rl.config import OURS

SLICE_SECONDS = 60.0


class BatchConfig(BaseModel):
    """How much one step trains on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompts: int = Field(32, ge=1, description="groups that one update trains on")
    samples: int = Field(8, ge=2, description="completions per prompt (the group size G)")
    oversample: float = Field(
        2.0,
        ge=1,
        le=100,
        description="at most this many times prompts are generated, to replace groups whose rewards are all equal",
    )
    lease: int = Field(
        16,
        ge=1,
        description="prompts that a generator gets at a time; where generation runs ahead until its speed is known "
        "(lease.seconds). A lost worker costs one lease, or one slice of it",
    )
    slice_seconds: float | None = Field(
        None,
        ge=0,
        le=86400,
        description="after which a generator hands in what it has of a lease: whole completions, and the tokens so far "
        "of others, which whoever is free first goes on with; one that is asked to leave does so at once. Longer where "
        "the first step, which computes keys and values of the tokens so far, takes more than a tenth of it. 0: leases "
        "are handed in whole, as with a server (policy.engine) always; none takes 60, at staleness 0 whole leases, as "
        "the log-probs of a completion that moved differ by rounding",
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
