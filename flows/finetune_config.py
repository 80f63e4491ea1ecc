"""The configuration trees of training on examples: demonstrations, and pairs of completions."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from flows.config import RUN, TrainedPolicy, refuse_muon_of_adapters
from flows.options.config_tree import ConfigTree
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import PlacementConfig
from infra.runs.checkpoints import CheckpointConfig
from infra.runs.tracking import TrackingConfig
from rl.config import OURS, PolicyConfig
from rl.learning.optimizer_config import OptimizerConfig
from rl.problems.examples import DemonstrationsConfig, ExamplesConfig, PairsConfig
from rl.warm_up_config import WarmUpConfig


class FinetuneConfig(ConfigTree):
    """Training on a fixed set of examples: what `rlvf sft`, `rlvf dpo` and `rlvf reward-model` share."""

    method: ClassVar[str]  # the command
    first = ("problems", "policy", "steps", "run", "batch", "max_tokens", "optimizer", "held_out")

    problems: ExamplesConfig
    held_out: int | None = Field(
        None,
        ge=0,
        description="prompts kept out of training, on which the loss is measured; null takes 200, of a file with fewer "
        "than 1000 a fifth",
    )
    steps: int | None = Field(None, ge=1, description="updates; null takes one epoch: every example once")
    batch: int = Field(32, ge=1, description="examples per update")
    max_tokens: int = Field(
        2048,
        ge=1,
        le=131072,
        description="completions are cut at this many tokens, and at the model's context length",
    )
    evaluate_every: int = Field(
        0, ge=0, description="steps between two evaluations on held-out examples; 0: only at the beginning and the end"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of the order of examples, and of fresh adapters")
    run: str | None = RUN
    policy: TrainedPolicy = PolicyConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    warm_up: WarmUpConfig = WarmUpConfig()
    cluster: ClusterConfig = ClusterConfig()
    placement: PlacementConfig = PlacementConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _of_use(self) -> Self:
        if self.policy.engine != OURS:
            raise ValueError("policy.engine: nothing is generated here; leave it out")
        refuse_muon_of_adapters(self.policy, self.optimizer)
        return self


class SftConfig(FinetuneConfig):
    """Flow `rlvf-sft`: supervised fine-tuning on demonstrations; without such, the warm-up of the tiny policy."""

    method = "sft"

    problems: DemonstrationsConfig = DemonstrationsConfig()


class DpoConfig(FinetuneConfig):
    """Flow `rlvf-dpo`: Direct Preference Optimization on pairs."""

    method = "dpo"

    problems: PairsConfig = PairsConfig()
    beta: float = Field(
        0.1, gt=0, le=100, description="how strongly the policy is held to where it started (DPO's beta)"
    )


class RewardModelConfig(FinetuneConfig):
    """Flow `rlvf-reward-model`: a reward model of pairs."""

    method = "reward-model"

    problems: PairsConfig = PairsConfig()

    @model_validator(mode="after")
    def _whole_model(self) -> Self:
        if self.policy.lora.rank:
            raise ValueError("policy.lora: a reward model is trained whole; leave it out")
        if given := [name for name in ("system", "template") if getattr(self.problems, name, None) is not None]:
            raise ValueError(
                f"problems.{given[0]}: a reward model is given prompts as they are, whatever a policy is told; "
                "leave it out"
            )
        return self
