"""The calls of a step: those of an algorithm, and where the cluster places them."""

from collections.abc import Iterable, Mapping
from typing import Any

from infra.cluster.placement import ALONE, WORKER, PlacementConfig
from infra.planning.costs import Places, Work
from rl.algorithms import ALGORITHMS
from rl.graph import REWARD, SCORES, Graph, graph_of
from rl.learning.algorithm_config import CommonAlgorithmConfig
from rl.learning.kl_config import KlConfig

COMPUTING = ("GENERATOR", "TRAINER", "REFERENCE", "CRITIC")  # tags of workers that run models
JUDGING = ("VERIFIER",)
Tags = Mapping[str, frozenset[str]]  # of each worker


def able(call: str, tags: Tags) -> tuple[str, ...]:
    """The workers that may be given a call: those that are there to judge, or to run models."""
    wanted = set(JUDGING if call == "verify" else COMPUTING)
    return tuple(worker for worker in sorted(tags) if tags[worker] & wanted)


def places_by_tags(placement: PlacementConfig, tags: Tags, calls: Iterable[str]) -> Places:
    """The workers that a placement means, of each of the calls; of training the first of them. Raises ValueError for a
    call without any."""
    found: dict[str, tuple[str, ...]] = {}
    for call in calls:
        needs = placement.tags(call)
        named = {need.removeprefix(WORKER) for need in needs if need.startswith(WORKER)}
        plain = {need for need in needs if not need.startswith(WORKER)}
        fit = tuple(worker for worker in sorted(tags) if plain <= tags[worker] and (not named or worker in named))
        if not fit:
            raise ValueError(f"placement.{call}: no worker offers {' and '.join(needs)}; see rlvf status")
        found[call] = fit[:1] if call in ALONE else fit
    return found


def planned_calls(graph: Graph) -> tuple[Work, ...]:
    """Those of the graph, on no workers yet."""
    return tuple(
        Work(call.name, call.model, call.each, graph.before(call), call.trains, seconds={}) for call in graph.calls
    )


def graph_of_config(config: CommonAlgorithmConfig, calls: Iterable[str] = ()) -> Graph:
    """The graph of an algorithm with its options; see `graph_named`."""
    return graph_named(config.name, config.kl.coefficient > 0, calls)


def graph_named(name: str, kl: bool, calls: Iterable[str] = ()) -> Graph:
    """The graph of an algorithm, with a divergence from a reference if `kl`, and a reward model where it is among the
    `calls` that a run has made. A user's own is not run here: what it needs is seen from these calls, too."""
    made = set(calls)
    needs = KlConfig(coefficient=float(kl)).needs
    if name not in ALGORITHMS:
        name, needs = "reinforce", needs | {field for field, call in SCORES.items() if call.name in made}
    return graph_of(ALGORITHMS[name](), needs, reward_model=REWARD.name in made)


def graph_of_settings(config: Mapping[str, Any], calls: Iterable[str]) -> Graph:
    """The graph of a run's settings as they were read, whatever they hold, and of the calls that it has made."""
    coefficient = _section(_algorithm(config), "kl").get("coefficient")
    return graph_named(algorithm_of(config), isinstance(coefficient, int | float) and coefficient > 0, calls)


def algorithm_of(config: Mapping[str, Any]) -> str:
    """The name of the algorithm in settings, whatever they hold."""
    return str(_algorithm(config).get("name", "reinforce"))


def _algorithm(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return _section(config, "algorithm") or _section(config, "loss")  # as older versions called it


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}
