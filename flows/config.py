"""The configuration trees of the three flows, put together from leaves that stand beside the code that reads them."""

from collections.abc import Set
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from flows.options.acted_on import own_problems, refuse_beside
from flows.options.config_tree import ConfigTree
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import ROLES, PlacementConfig
from infra.dispatch.lease_config import LeaseConfig
from infra.runs.checkpoints import CheckpointConfig
from infra.runs.tracking import TrackingConfig
from infra.weights.version import SyncConfig
from rl.algorithms import ALGORITHMS
from rl.audit import AuditConfig
from rl.config import (
    COLDEST_SERVED,
    OURS,
    TINY,
    PolicyConfig,
    ProblemsConfig,
    SamplingConfig,
    VerifierConfig,
    whole_path,
)
from rl.environments.environment_config import EnvironmentConfig
from rl.learning.algorithm_config import AlgorithmConfig
from rl.learning.critic_config import CriticConfig
from rl.learning.optimizer_config import OptimizerConfig
from rl.warm_up_config import WarmUpConfig
from tasks.batch.batch_config import BatchConfig
from tasks.calls.inflight import InflightConfig

SEED = Field(0, ge=0, lt=2**32, description="seed of problems, sampling and fresh weights")
MIX: tuple[ProblemsConfig, ...] = Field(
    (), description="further sets, each with the options of problems; each problem is drawn from one set, by weight"
)
RUN = Field(
    None,
    min_length=1,
    description="name or URI of the new run; null makes a name under runs/ of $RLVF_STORAGE, else of $RLVF_HOME",
)
MAX_STALENESS = 64
HELD_OUT = "held_out"  # as the path of an evaluation: the problems that are kept out of training


def _with_whole_path(policy: PolicyConfig) -> PolicyConfig:
    model = whole_path(policy.model)  # its workers stand elsewhere
    return policy if model == policy.model else policy.model_copy(update={"model": model})


def refuse_muon_of_adapters(policy: PolicyConfig, optimizer: OptimizerConfig) -> None:
    """Raise ValueError where Muon would train adapters."""
    if policy.lora.rank and optimizer.name == "muon":
        raise ValueError(
            "optimizer.name: 'muon' makes steps of matrices that are used whole, and an adapter is a product of two; "
            "take adamw with policy.lora"
        )


TrainedPolicy = Annotated[PolicyConfig, AfterValidator(_with_whole_path)]


class EvaluationConfig(ProblemsConfig):
    """A set that the policy is evaluated on while it trains."""

    OWN: ClassVar = ("every", "samples", "limit")  # fields that a set to train on lacks

    path: str = Field(
        HELD_OUT, min_length=1, description="held_out: what is kept out of training; else as problems.path"
    )
    every: int = Field(0, ge=0, description="steps between two evaluations; 0: only at the beginning and the end")
    samples: int | None = Field(None, ge=1, le=1024, description="completions per problem; null takes batch.samples")
    limit: int | None = Field(
        None,
        ge=1,
        description="at most this many of its problems, of held_out by the shares of the sets and at least one of "
        "each; null takes all, of problems made in code 200",
    )

    @model_validator(mode="after")
    def _of_use(self) -> Self:
        fields = type(self).model_fields
        given = [name for name in fields if getattr(self, name) != fields[name].default and name not in self.OWN]
        if "weight" in given:
            raise ValueError("weight: mixes what is trained on; an evaluation solves all of its problems")
        if self.path == HELD_OUT and given:
            raise ValueError(f"{given[0]}: the problems held out are those of the sets that are trained on")
        return self


class EvalConfig(ConfigTree):
    """Flow `rlvf-eval`: how well a policy solves a set of problems. The model may also be a run, or `newest`: the run
    that was begun last. Of a run, what is not given is as it was trained: problems, verifier, sampling, seed."""

    first = ("policy", "problems", "verifier", "environment", "samples", "held_out", "sampling")
    # as the run was trained; a form would send the defaults that it shows
    left_out = ("problems", "verifier", "environment")

    policy: PolicyConfig = PolicyConfig()
    problems: ProblemsConfig = ProblemsConfig()
    mix: tuple[ProblemsConfig, ...] = MIX
    verifier: VerifierConfig = VerifierConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    held_out: int | None = Field(
        None,
        ge=0,
        description="take only the part that `rlvf train --held_out N` keeps out of training; 0 takes all; null takes "
        "all but what the run was trained on",
    )
    samples: int = Field(8, ge=1, le=1024, description="completions per problem; k of pass@k")
    again: bool = Field(
        True,
        description="false: a version of a run that was evaluated before, with the same problems, verifier and "
        "settings, is not evaluated again",
    )
    seed: int = SEED
    sampling: SamplingConfig = SamplingConfig()
    cluster: ClusterConfig = ClusterConfig()
    placement: PlacementConfig = PlacementConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="before")
    @classmethod
    def _problems_of_environment(cls, given: Any) -> Any:
        return own_problems(given)

    @model_validator(mode="after")
    def _acted_on(self) -> Self:
        judged = any(each.judged for each in self.sets)
        refuse_beside(self.environment, self.verifier, self.policy, self.sampling, judged=judged)
        return self

    @property
    def sets(self) -> tuple[ProblemsConfig, ...]:
        """All problem sets."""
        return (self.problems, *self.mix)


class ServeConfig(ConfigTree):
    """Command `rlvf verifier serve`."""

    verifier: VerifierConfig = VerifierConfig()
    host: str = Field("127.0.0.1", min_length=1, description="address to listen at")
    port: int | None = Field(
        None, ge=0, le=65535, description="null takes 8900, or a free one if that is taken; 0 takes a free one"
    )


class VerifyConfig(ConfigTree):
    """Command `rlvf verify`."""

    problems: ProblemsConfig = ProblemsConfig()
    verifier: VerifierConfig = VerifierConfig()


class TrainConfig(ConfigTree):
    """Flow `rlvf`: reinforcement learning with verifiable reward."""

    first = (
        *("problems", "verifier", "policy", "steps", "environment", "run", "batch", "sampling", "optimizer"),
        *("algorithm", "staleness", "held_out"),
    )

    problems: ProblemsConfig = ProblemsConfig()
    mix: tuple[ProblemsConfig, ...] = MIX
    verifier: VerifierConfig = VerifierConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    held_out: int | None = Field(
        None,
        ge=0,
        description="problems of each set kept out of training, to evaluate on; null takes 200 (environments 50), of a "
        "file with fewer than 1000 a fifth; 0 trains on all and evaluates on none",
    )
    evals: tuple[EvaluationConfig, ...] = Field(
        (),
        description="sets to evaluate on, such as '[{path: held_out, every: 20}, {path: test.jsonl, samples: 4}]'; "
        "problems that are trained on are left out, and options not given are those of training; held_out is always "
        "among them",
    )
    steps: int = Field(150, ge=1, description="updates, counted from the start of the run")
    staleness: int = Field(
        1,
        ge=0,
        le=MAX_STALENESS,
        description="versions that generation may run ahead of training; 0 is strictly on-policy",
    )
    seed: int = SEED
    run: str | None = RUN
    batch: BatchConfig = BatchConfig()
    policy: TrainedPolicy = PolicyConfig()
    sampling: SamplingConfig = SamplingConfig()
    inflight: InflightConfig = InflightConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    critic: CriticConfig = CriticConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    warm_up: WarmUpConfig = WarmUpConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    sync: SyncConfig = SyncConfig()
    audit: AuditConfig = AuditConfig()
    lease: LeaseConfig = LeaseConfig()
    cluster: ClusterConfig = ClusterConfig()
    placement: PlacementConfig = PlacementConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="before")
    @classmethod
    def _problems_of_environment(cls, given: Any) -> Any:
        return own_problems(given)

    @model_validator(mode="after")
    def _acted_on(self) -> Self:
        judged = any(each.judged for each in (*self.sets, *self.evals))
        refuse_beside(self.environment, self.verifier, self.policy, self.sampling, judged=judged)
        return self

    @model_validator(mode="after")
    def _public_base(self) -> Self:
        if self.sync.base == "public" and self.policy.model == TINY:
            raise ValueError("sync.base: 'public' needs a model that every machine can load; the tiny policy is none")
        return self

    @model_validator(mode="after")
    def _adapters(self) -> Self:
        refuse_muon_of_adapters(self.policy, self.optimizer)
        return self

    @model_validator(mode="after")
    def _models(self) -> Self:
        if (of := ALGORITHMS.get(self.algorithm.name)) is not None:  # what one's own needs is known when it is opened
            self.refuse_by_needs(of.needs | self.algorithm.kl.needs)
        return self

    def refuse_by_needs(self, needs: Set[str]) -> None:
        """Raise ValueError where something is said of a critic or a reference, and the algorithm ``needs`` none; or
        where it needs a greedy completion, which has one turn, and an environment is acted on."""
        name, fields = self.algorithm.name, CriticConfig.model_fields
        if "baseline" in needs and self.environment.name is not None:
            raise ValueError(
                f"algorithm.name: {name} has a greedy completion of one turn as its baseline; leave out the environment"
            )
        changed = [each for each, field in fields.items() if getattr(self.critic, each) != field.default]
        if changed and "values" not in needs:
            raise ValueError(
                f"critic.{changed[0]}: {name} has no critic; take one that has, such as ppo, or leave it out"
            )
        workers = {
            "critics": ("CRITIC", "values", f"{name} has no critic"),
            "references": ("REFERENCE", "reference_logprobs", f"{name} has no reference without algorithm.kl"),
        }
        for option, (role, read, why) in workers.items():
            if getattr(self.cluster, option) and read not in needs and self.idle(role):
                raise ValueError(f"cluster.{option}: {why}, so that they would have nothing to do; leave it out")

    def idle(self, role: str) -> bool:
        """Whether no call is placed on workers of that role: by its name, or as one without any role may be."""
        return all(set(self.placement.tags(call)) & (set(ROLES) - {role}) for call in self.placement.calls)

    @model_validator(mode="after")
    def _parts(self) -> Self:
        if (parts := self.algorithm.minibatches) > self.batch.prompts:
            raise ValueError(f"algorithm.minibatches {parts}: a batch has {self.batch.prompts} groups (batch.prompts)")
        return self

    @model_validator(mode="after")
    def _in_flight(self) -> Self:
        self.inflight.in_use(self.staleness, self.policy.engine)
        self.batch.slices(self.staleness, self.policy.engine)
        return self

    @model_validator(mode="after")
    def _served(self) -> Self:
        if self.policy.engine != OURS and self.sampling.temperature < COLDEST_SERVED:
            raise ValueError(
                f"sampling.temperature: {self.sampling.temperature:g} is taken for {COLDEST_SERVED:g} by a server "
                "(policy.engine), whose log-probs would be of another distribution"
            )
        return self

    @model_validator(mode="after")
    def _evaluations(self) -> Self:
        held_out = [each for each in self.evals if each.path == HELD_OUT]
        if len(held_out) > 1:
            raise ValueError("evals: held_out is there more than once")
        if held_out and self.held_out == 0:
            raise ValueError("evals: held_out evaluates on nothing where --held_out is 0")
        if self.checkpoint.keep_best and not (self.evals and self.evals[0].every):
            raise ValueError(
                "checkpoint.keep_best needs an evaluation during training, the first of evals; "
                "for example --evals '[{path: held_out, every: 10}]'"
            )
        return self

    @property
    def sets(self) -> tuple[ProblemsConfig, ...]:
        """All problem sets."""
        return (self.problems, *self.mix)
