"""How long a worker keeps a lease; without Dask, which takes half a second to import."""

from pydantic import BaseModel, ConfigDict, Field

PATIENCE = 3.0  # times the longest of late
SECONDS = 30.0


class LeaseConfig(BaseModel):
    """How large a lease is, and when it is given to another worker too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float = Field(
        SECONDS,
        ge=0,
        le=86400,
        description="target duration of a lease where generation runs ahead: a generator gets as many prompts as it "
        "does in that time, by its tokens/s and the lengths so far, and no more than its share of what waits for a "
        "batch. 0: always batch.lease, as at staleness 0, where runs are reproducible bit for bit",
    )
    patience: float = Field(
        PATIENCE,
        ge=1.5,
        le=100,
        description="a lease goes to another worker too after this many times its expected time (the longest of its "
        "worker's last 16), but not before 10 s, 2 s where its worker gives no sign of life (later in a cluster of 10 "
        "or more, where signs are rarer); the first result counts",
    )
