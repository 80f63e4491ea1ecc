"""Where the work runs, as the user says it; without Dask, which takes half a second to import."""

import os
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

ADDRESS = re.compile(r"([a-z]+://)?[^\s/]+:\d{1,5}")


class ClusterConfig(BaseModel):
    """Where the work runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheduler: str | None = Field(
        None,
        description="address of a Dask scheduler to join (tls://host:8786); null takes $RLVF_SCHEDULER, or starts a "
        "local one",
    )
    generators: int = Field(1, description="local processes that sample completions", ge=0)
    verifiers: int = Field(1, description="local processes that judge completions", ge=0)
    references: int = Field(0, description="local processes for the role REFERENCE, for placement.reference", ge=0)
    critics: int = Field(0, description="local processes for the role CRITIC, for placement.value", ge=0)
    threads: int | None = Field(
        None, description="threads of each process that computes with a model; null divides the cores among them", ge=1
    )
    memory: float | None = Field(
        None,
        description="GB of models that each of them keeps on its device; models that need more take turns; null takes "
        "80% of the device's memory, divided among the processes",
        gt=0,
    )
    device: Literal["auto", "cuda", "mps", "cpu"] = Field(
        "auto", description="device tag of the local processes that compute with a model"
    )

    @field_validator("scheduler")
    @classmethod
    def _has_a_port(cls, address: str | None) -> str | None:
        if address is not None and not ADDRESS.fullmatch(address):
            raise ValueError("is no address of a scheduler; write it like tls://192.168.1.5:8786")
        return address


def joined_scheduler(config: ClusterConfig) -> str | None:
    """The address of the scheduler to join; None where the cluster is local, with its scheduler in this process."""
    return config.scheduler or os.environ.get("RLVF_SCHEDULER") or None
