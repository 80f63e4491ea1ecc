"""The models that a run trains: the policy, and the critic where the algorithm has one."""

from dataclasses import dataclass, replace
from typing import Any

from flows.config import TrainConfig
from flows.run.publishing import Publishing
from infra.cluster.dispatch import Dispatch
from infra.storage.fence import Fence
from rl.algorithm_config import AlgorithmSpec
from rl.records import Learned
from tasks.calls.critic import Critic, Valuer
from tasks.calls.scorer import Reference
from tasks.calls.trained import Begun, Trained
from tasks.calls.trainer import Trainer


@dataclass(frozen=True)
class Criticism:
    """The critic of a run while it goes on."""

    critic: Critic
    valuer: Valuer
    publishing: Publishing  # of its versions


def policy_trainer(
    config: TrainConfig,
    algorithm: AlgorithmSpec,
    *,
    run_uri: str,
    source: str,
    fence: Fence,
    reference: Reference | None,
) -> Trainer:
    """The policy's, from its version 0 at ``source``."""
    return Trainer(
        run_uri=run_uri,
        source=source,
        policy=config.policy,
        optimizer=config.optimizer,
        algorithm=algorithm,
        sampling=config.sampling,
        checkpoint=config.checkpoint,
        sync=config.sync,
        window=config.staleness + 1,
        steps=config.steps,
        fence=fence,
        beside="values" in algorithm.needs,
        seed=config.seed,
        reference=reference,
    )


def critic_trainer(trainer: Trainer, config: TrainConfig) -> Critic | None:
    """The critic's beside it; None where the algorithm has none. Its version 0 is stored, as no machine has it."""
    if "values" not in trainer.algorithm.needs:
        return None
    return Critic(
        run_uri=trainer.run_uri,
        source=trainer.source,
        policy=config.policy,
        optimizer=config.critic.optimizer(config.optimizer),
        algorithm=trainer.algorithm,
        sampling=config.sampling,
        checkpoint=config.checkpoint,
        sync=config.sync.model_copy(update={"base": "stored"}),
        window=1,
        steps=config.steps,
        fence=trainer.fence,
        beside=True,
        critic=config.critic,
    )


def begin_together(dispatch: Dispatch, trainer: Trainer, critic: Critic | None) -> Begun:
    """Where they stand: at the newest step of which each has an intact checkpoint, or at version 0. The critic is the
    first to begin, so that a policy's checkpoint is never there without one. Raises CheckpointsLostError."""
    models: list[Trained[Any]] = [trainer] if critic is None else [critic, trainer]
    begun: dict[str, Begun] = {}
    step: int | None = None
    while any(model.role not in begun or begun[model.role].step != step for model in models):
        for model in models:
            if model.role not in begun or begun[model.role].step != step:
                begun[model.role] = found = dispatch.run(model.call, model.begin, step)
                step = found.step
    of_policy = begun[trainer.role]
    if critic is None or of_policy.learned is None:
        return of_policy
    of_critic = begun[critic.role]
    assert of_critic.learned is not None
    warnings = (*of_policy.warnings, *of_critic.warnings)
    return replace(of_policy, learned=both(of_policy.learned, of_critic.learned), warnings=warnings)


def both(policy: Learned, critic: Learned) -> Learned:
    """What came of a step of both: as the policy's, with the critic's metrics and whatever it has to say."""
    worse = max(policy, critic, key=lambda learned: learned.refusals)
    return replace(
        policy,
        refusals=worse.refusals,
        refused=worse.refused or policy.refused or critic.refused,
        said="; ".join(filter(None, (policy.said, critic.said))),
        metrics={**policy.metrics, **critic.metrics},
        seconds=max(policy.seconds, critic.seconds),
    )
