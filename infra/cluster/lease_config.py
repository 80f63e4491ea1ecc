"""How long a worker keeps a lease; without Dask, which takes half a second to import."""

from pydantic import BaseModel, ConfigDict, Field

PATIENCE = 3.0  # times the longest of late


class LeaseConfig(BaseModel):
    """When a lease is given to another worker too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    patience: float = Field(
        PATIENCE,
        ge=1.5,
        le=100,
        description="times its expected time (the longest of its worker's last 16) after which another worker gets a "
        "lease too, but not before 10 s, 2 s where its worker gives no sign of life; the first result counts",
    )
