"""The models that a run trains: the policy, and the critic where the algorithm has one."""

from dataclasses import dataclass, replace
from typing import Any

from flows.config import TrainConfig
from flows.run.publishing import Publishing
from flows.run.scores import reference_of
from flows.run.workplace import Workplace
from infra.dispatch.dispatch import Dispatch
from infra.runs.tracking import Tracker
from infra.storage.fence import Fence
from rl.learning.algorithm_config import AlgorithmSpec
from rl.records import Learned
from tasks.calls.critic import Critic, Valuer
from tasks.calls.start import RunStart
from tasks.calls.trained import Trained
from tasks.calls.trainer import Trainer
from tasks.value import ValueScores


@dataclass
class CriticState:
    """The critic of a run while it goes on."""

    trained: Critic
    publishing: Publishing  # of its versions
    scores: ValueScores
    kl_coefficient: float | None  # that the policy's next update takes; None before the first

    def beside(self, policy: Learned, own: Learned) -> Learned:
        """What came of a step of the policy and this critic; the next one goes on from there."""
        self.kl_coefficient = policy.kl_coefficient
        return both(policy, own, self.scores.age(policy.step - 1))


def policy_trainer(
    config: TrainConfig,
    algorithm: AlgorithmSpec,
    *,
    run_uri: str,
    source: str,
    fence: Fence,
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
        reference=reference_of(config, algorithm),
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
        window=config.staleness + 1,
        steps=config.steps,
        fence=trainer.fence,
        beside=True,
        critic=config.critic,
    )


def critic_state(
    workplace: Workplace, config: TrainConfig, critic: Critic | None, tracker: Tracker, begun: RunStart
) -> CriticState | None:
    """The critic, once it is at the version that has ``begun``, which is published."""
    if critic is None:
        return None
    publishing = Publishing(workplace, critic, tracker, begun.step)
    valuer = Valuer(config.policy, config.sync.patience)
    scores = ValueScores(valuer, publishing.newest, config.staleness, publishing.mend)
    coefficient = None if begun.learned is None else begun.learned.kl_coefficient
    return CriticState(critic, publishing, scores, coefficient)


def begin_together(dispatch: Dispatch, trainer: Trainer, critic: Critic | None) -> RunStart:
    """Where they stand: at the newest step of which each has an intact checkpoint, or at version 0. The critic is the
    first to begin, so that a policy's checkpoint is never there without one. Later checkpoints are removed once all
    have begun. Raises CheckpointsLostError, and has removed nothing."""
    models: list[Trained[Any]] = [trainer] if critic is None else [critic, trainer]
    begun: dict[str, RunStart] = {}
    step: int | None = None
    while any(model.role not in begun or begun[model.role].step != step for model in models):
        for model in models:
            if model.role not in begun or begun[model.role].step != step:
                begun[model.role] = found = dispatch.run(model.call, model.begin, step)
                step = found.step
    if step is not None and critic is not None:
        for model in models:
            dispatch.run(model.call, model.go_back, step)
    of_policy = begun[trainer.role]
    if critic is None or of_policy.learned is None:
        return of_policy
    of_critic = begun[critic.role]
    assert of_critic.learned is not None
    warnings = (*of_policy.warnings, *of_critic.warnings)
    return replace(of_policy, learned=both(of_policy.learned, of_critic.learned), warnings=warnings)


def both(policy: Learned, critic: Learned, age: int | None = None) -> Learned:
    """What came of a step of both: as the policy's, with the critic's metrics and whatever it has to say. ``age``: of
    the critic that made the values, in versions."""
    worse = max(policy, critic, key=lambda learned: learned.refusals)
    return replace(
        policy,
        refusals=worse.refusals,
        refused=worse.refused,
        said="; ".join(filter(None, (policy.said, critic.said))),
        metrics={**policy.metrics, **critic.metrics, **({} if age is None else {"critic/staleness": float(age)})},
        seconds=max(policy.seconds, critic.seconds),
    )
