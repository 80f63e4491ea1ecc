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
        description="that a lease takes where generation runs ahead: a generator gets as many prompts as it does in "
        "them, by its tokens/s and the lengths so far, and no more than its part of what waits for a batch. 0: always "
        "batch.lease, as at staleness 0, where runs repeat bit for bit",
    )
    patience: float = Field(
        PATIENCE,
        ge=1.5,
        le=100,
        description="times its expected time (the longest of its worker's last 16) after which another worker gets a "
        "lease too, but not before 10 s, 2 s where its worker gives no sign of life (later in "
        "a cluster of 10 or more, where signs are rarer); the first result counts",
    )
