"""The configuration trees of the three flows, put together from leaves that stand beside the code that reads them."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from infra.cluster.cluster import ClusterConfig
from infra.cluster.placement import PlacementConfig
from infra.runs.checkpoints import CheckpointConfig
from infra.runs.tracking import TrackingConfig
from infra.weights.version import SyncConfig
from rl.config import TINY, LossConfig, OptimizerConfig, PolicyConfig, ProblemsConfig, SamplingConfig, VerifierConfig
from tasks.collection import BatchConfig

SEED = Field(0, ge=0, lt=2**32, description="of problems, sampling and fresh weights")
MIX: tuple[ProblemsConfig, ...] = Field(
    (), description="further sets, each with the options of problems; every problem is drawn from one of all by weight"
)


class WarmUpConfig(BaseModel):
    """The supervised start of the tiny policy, on problems of the grammar. The result is kept and used again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(380, ge=1, description="updates; few enough that sampling stays varied")
    batch: int = Field(16, ge=1, description="problems per update")
    optimizer: OptimizerConfig = OptimizerConfig(name="muon", lr=6e-3, warmup_steps=20, betas=(0.9, 0.98))
    seed: int = Field(0, ge=0, lt=2**32, description="of the fresh weights and the problems")


class SftConfig(BaseModel):
    """Flow `rlvf-sft`: warm the tiny policy up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warm_up: WarmUpConfig = WarmUpConfig()
    policy: PolicyConfig = PolicyConfig()
    cluster: ClusterConfig = ClusterConfig()
    placement: PlacementConfig = PlacementConfig()


class EvalConfig(BaseModel):
    """Flow `rlvf-eval`: how well a policy solves a set of problems. The model may also be a run, or `newest`: the run
    that was begun last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: PolicyConfig = PolicyConfig()
    problems: ProblemsConfig = ProblemsConfig()
    mix: tuple[ProblemsConfig, ...] = MIX
    verifier: VerifierConfig = VerifierConfig()
    held_out: int = Field(
        0, ge=0, description="take only the part that `rlvf train --held_out N` keeps out of training; 0 takes all"
    )
    samples: int = Field(8, ge=1, le=1024, description="completions per problem; k of pass@k")
    again: bool = Field(
        True, description="false: a run's version that was evaluated on these problems before is not evaluated again"
    )
    seed: int = SEED
    sampling: SamplingConfig = SamplingConfig()
    cluster: ClusterConfig = ClusterConfig()
    placement: PlacementConfig = PlacementConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def sets(self) -> tuple[ProblemsConfig, ...]:
        """All problem sets."""
        return (self.problems, *self.mix)


class ServeConfig(BaseModel):
    """Command `rlvf verifier serve`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    verifier: VerifierConfig = VerifierConfig()
    host: str = Field("127.0.0.1", min_length=1, description="address to listen at")
    port: int = Field(8900, ge=0, le=65535, description="0 takes a free one")


class TrainConfig(BaseModel):
    """Flow `rlvf`: reinforcement learning with verifiable reward."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problems: ProblemsConfig = ProblemsConfig()
    mix: tuple[ProblemsConfig, ...] = MIX
    verifier: VerifierConfig = VerifierConfig()
    held_out: int = Field(
        200, ge=1, description="problems of each set kept out of training, to evaluate on before and after"
    )
    steps: int = Field(200, ge=1, description="updates, counted from the start of the run")
    staleness: int = Field(
        1, ge=0, le=64, description="versions that generation may run ahead of training; 0 is strictly on-policy"
    )
    seed: int = SEED
    run: str | None = Field(
        None,
        min_length=1,
        description="name or URI of the new run; none makes a name under runs/ of $RLVF_STORAGE, else of $RLVF_HOME",
    )
    batch: BatchConfig = BatchConfig()
    policy: PolicyConfig = PolicyConfig()
    sampling: SamplingConfig = SamplingConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    warm_up: WarmUpConfig = WarmUpConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    sync: SyncConfig = SyncConfig()
    cluster: ClusterConfig = ClusterConfig()
    placement: PlacementConfig = PlacementConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _public_base(self) -> Self:
        if self.sync.base == "public" and self.policy.model == TINY:
            raise ValueError("sync.base: 'public' needs a model that every machine can load; the tiny policy is none")
        return self

    @property
    def sets(self) -> tuple[ProblemsConfig, ...]:
        """All problem sets."""
        return (self.problems, *self.mix)
