"""Newer weights in the middle of a lease: a generator goes on with those that its trainer has published meanwhile, once
they are here, between two tokens (PipelineRL, arXiv 2509.19128)."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from infra.cluster.resident import drop
from infra.cluster.timeline import waiting_for_weights
from infra.storage.fence import Fence
from infra.weights.version import PolicyVersion
from rl.config import OURS

if TYPE_CHECKING:
    from infra.weights.difference import Weights
    from infra.weights.mirror import Mirror
    from rl.model.parking import ModelMemory
    from rl.model.policy import Policy
    from rl.sampling.prefix_cache import PrefixCache
    from rl.sampling.slots import Slots


class InflightConfig(BaseModel):
    """Newer weights in the middle of completions, where generation runs ahead of training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: bool | None = Field(
        None,
        description="swap in newer weights between two tokens, once a generator has them; null does if staleness is "
        "above 0 and policy.engine is rlvf",
    )
    kv_versions: int = Field(
        1,
        ge=0,
        le=64,
        description="how many versions older than the weights keys and values may be; beyond that they are recomputed",
    )

    def in_use(self, staleness: int, engine: str) -> bool:
        """Whether weights are swapped so. Raises ValueError where that is asked for and cannot be."""
        if self.weights and staleness == 0:
            raise ValueError(
                "inflight.weights: at staleness 0 all tokens of a batch are of one version; give staleness 1 or more, "
                "or leave it out"
            )
        if self.weights and engine != OURS:
            raise ValueError(
                "inflight.weights: a server (policy.engine) is given weights between leases; leave one of them out"
            )
        return self.weights is not False and staleness > 0 and engine == OURS


@dataclass(frozen=True)
class Inflight:
    """That leases go on with newer weights."""

    session: Fence  # of the trainer, which alone makes these versions
    kv_versions: int  # see `rl.sampling.engine.Hooks`


@dataclass
class Sampler:
    """A generator's resident policy and the version in it."""

    policy: "Policy"
    slots: "Slots"  # what its leases so far have shown
    version: PolicyVersion
    kept: "PrefixCache"  # from turn to turn
    session: Fence | None = None  # of the trainer that has made it, where that is known

    @cached_property
    def memory(self) -> "ModelMemory":
        """What its policy holds, and what is kept from turn to turn."""
        from rl.sampling.prefix_cache import SamplerMemory

        return SamplerMemory(self.policy, self.kept)

    def load(self, weights: "Weights", version: PolicyVersion) -> bool:
        """Overwrite its weights with those of a version, in place. False where they are of another architecture, and
        nothing was changed; what fails later drops it, as it may be a mixture of both."""
        from infra.weights.quantization import restored

        try:
            self.policy.load_weights(restored(weights))
        except ValueError:
            return False
        except BaseException:
            drop("sampler")
            raise
        self.version = version
        return True


@dataclass(frozen=True)
class Swaps:
    """What the generator of a lease may go on with."""

    of: Inflight
    mirror: "Mirror"
    step: int  # of the lease: the newest version that its tokens may be of

    def newest(self, than: PolicyVersion) -> PolicyVersion:
        """The version that was prefetched last, if it is newer than this one and may be sampled from, else this one.
        Plain looks: nothing is waited for."""
        ahead = self.mirror.prefetched
        if ahead is None or ahead.session != self.of.session:
            return than
        return ahead.version if than.step < ahead.version.step <= self.step else than

    def passed(self, sampler: Sampler, version: PolicyVersion) -> bool:
        """Whether the sampler is at a newer version that may be sampled from: it does not go back."""
        return sampler.session == self.of.session and version.step < sampler.version.step <= self.step

    def into(self, sampler: Sampler) -> int | None:
        """Swap newer weights that are here into the sampler, whole; their version, None where there are none, or they
        are not free at this moment."""
        newest = self.newest(sampler.version)
        if newest == sampler.version:
            return None
        with self.mirror.now(newest) as found:
            if found is None:
                return None
            with waiting_for_weights(self.mirror.take_fetched):
                if newest.digest == sampler.version.digest:
                    sampler.version = newest
                elif not sampler.load(found, newest):
                    return None
        return newest.step
