"""The scores that a run makes of its rollouts, as the graph of its calls says."""

from flows.config import TrainConfig
from flows.run.publishing import Publishing
from infra.weights.version import PolicyVersion
from rl.graph import SCORES, Graph
from tasks.calls.generator import Generator
from tasks.calls.scorer import Reference, Scorer
from tasks.score import ReferenceScores, Scores


def reference_of(config: TrainConfig, graph: Graph) -> Reference | None:
    """Which versions are the reference policy; None where nothing needs one."""
    if SCORES["reference_logprobs"] not in graph.scores:
        return None
    return Reference(config.algorithm.kl.reference_every, config.staleness)


def scores_of(config: TrainConfig, graph: Graph, generator: Generator, publishing: Publishing) -> list[Scores]:
    """Those that are made of each lease beside its verification."""
    scores: list[Scores] = []
    if (reference := reference_of(config, graph)) is not None:

        def version(step: int) -> PolicyVersion:
            return publishing.version(reference.version(step))

        scorer = Scorer(generator.weights, config.sampling.temperature)
        scores.append(ReferenceScores(SCORES["reference_logprobs"], scorer, version))
    return scores
