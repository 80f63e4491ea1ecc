"""The policy of a published version on a worker that does not train it: a generator's, or a frozen one to score by."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.cluster.resident import resident
from infra.home import rlvf_home
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig

if TYPE_CHECKING:
    from infra.weights.mirror import Mirror
    from rl.model.policy import Policy


@dataclass(frozen=True)
class Weights:
    """Where versions come from, and how their policy computes."""

    policy: PolicyConfig
    public: str | None = None  # the model that the run started from, where each machine loads it by itself
    patience: float = 300.0  # seconds that the storage may be away

    def mirror(self, version: PolicyVersion) -> "Mirror":
        """The worker's copy of the run's weights, which goes from version to version."""
        return resident("mirror", versions_of(version), lambda: self.copy(version))

    def copy(self, version: PolicyVersion) -> "Mirror":
        """A copy of the run's weights for the caller alone; nothing is fetched yet."""
        from infra.weights.mirror import Mirror
        from tasks.calls.published import public_model

        public = None if self.public is None or self.policy.lora.rank else public_model(self.public, self.policy)
        cache = rlvf_home() / "cache" / "weights"
        return Mirror(versions_of(version), patience=self.patience, cache=cache, public=public)

    def load(self, mirror: "Mirror", version: PolicyVersion, check: Callable[[], None]) -> "Policy":
        """The policy of this version, new in memory; with adapters on the frozen model of its run. ``check`` is called
        while the storage is away, and may raise. Raises as `Mirror.at` and `load_policy` do, and BaseDamaged."""
        from infra.weights.quantization import restored
        from rl.loading.policy import load_policy
        from tasks.calls.base import base_of

        with mirror.at(version, check) as found:
            if not self.policy.lora.rank:
                return load_policy(str(mirror.root), self.policy, weights=restored(found))
            run = versions_of(version).rpartition("/")[0]
            with base_of(run, self.public, self.patience, check) as path:
                return load_policy(path, self.policy, weights=restored(found), adapters=mirror.root)

    def key(self, version: PolicyVersion) -> Hashable:
        """What tells a resident policy from others: which weights, and how to compute. The model is that of the
        weights, whatever it was named by: an evaluation names the run that trains meanwhile."""
        return self.policy.model_copy(update={"model": ""}), self.public, versions_of(version), version.files


def versions_of(version: PolicyVersion) -> str:
    """The URI of the versions of its run."""
    return version.uri.rpartition("/")[0]
