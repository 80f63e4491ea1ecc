"""The scores that a run makes of its rollouts, as the graph of its calls says."""

from contextlib import suppress
from dataclasses import replace

from flows.config import TrainConfig
from flows.run.publishing import Publishing
from flows.run.workplace import Workplace
from flows.start.references import reference_source
from infra.storage.fence import Fence
from infra.weights.version import PolicyVersion
from rl.config import OURS
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.kl_config import START
from tasks.audit import Audits
from tasks.calls.generator import Generator
from tasks.calls.scorer import Referee, ReferenceSchedule, Scorer
from tasks.calls.trainer import Trainer
from tasks.calls.weights import Weights
from tasks.generate import Admission
from tasks.reference import OtherModel
from tasks.score import GreedyScores, ReferenceScores, Scores
from tasks.sets.problem_set import ProblemSet
from tasks.value import ValueScores


def reference_of(config: TrainConfig, algorithm: AlgorithmSpec) -> ReferenceSchedule | None:
    """Which versions are the reference policy; None where nothing needs one, or it is another model."""
    if "reference_logprobs" not in algorithm.needs or config.algorithm.kl.reference != START:
        return None
    return ReferenceSchedule(config.algorithm.kl.reference_every, config.staleness)


def other_model(config: TrainConfig, run_uri: str, fence: Fence) -> OtherModel | None:
    """The reference where it is no version of the run."""
    name, source = config.algorithm.kl.reference, None
    if name == START:
        return None
    with suppress(ValueError):  # a new run was refused then; one that goes on has a copy
        source = reference_source(name)
    return OtherModel(name, source, run_uri, config.sync.patience, fence)


def check_other_model(workplace: Workplace, config: TrainConfig, run_uri: str, fence: Fence) -> None:
    """Have the trainer's worker refuse a reference that cannot score what the policy samples, before the run exists."""
    if (other := other_model(config, run_uri, fence)) is not None:
        workplace.display.stage("check the reference")
        workplace.dispatch.run("train", other.check, config.policy.model)


def scores_of(
    config: TrainConfig,
    trainer: Trainer,
    workplace: Workplace,
    generator: Generator,
    publishing: Publishing,
    admission: Admission,
    problems: ProblemSet,
    values: ValueScores | None,
) -> list[Scores]:
    """Those that are made of each lease beside its verification; ``values``: the critic's, where there is one."""
    scores: list[Scores] = []
    if "baseline" in trainer.algorithm.needs:
        alone = replace(generator, greedy=True, samples=1, slice_seconds=None)
        scores.append(GreedyScores(alone, publishing.newest, admission, problems, publishing.mend))
    if (reference := reference_of(config, trainer.algorithm)) is not None:

        def version(step: int) -> PolicyVersion:
            return publishing.version(reference.version(step))

        scorer = Scorer(generator.weights, config.sampling.temperature)
        scores.append(ReferenceScores(scorer, version))
    elif (other := other_model(config, trainer.run_uri, trainer.fence)) is not None:
        stored, damaged = workplace.dispatch.run("train", other.stored)
        if damaged:
            workplace.display.say(f"warning: {damaged}")
        scorer = Scorer(Weights(config.policy.whole, patience=config.sync.patience), config.sampling.temperature)
        scores.append(ReferenceScores(scorer, lambda _: stored))
    return scores if values is None else [*scores, values]


def audits_of(config: TrainConfig, generator: Generator, publishing: Publishing) -> Audits | None:
    """What is audited; None where nothing is: a server has no weights to score by."""
    if not config.audit.share or config.policy.engine != OURS:
        return None
    referee = Referee(generator.weights, config.sampling.temperature)
    return Audits(config.audit, generator, referee, publishing.version, publishing.newest)
