"""The calls of a step as the cluster places them."""

from collections.abc import Iterable, Mapping

from infra.cluster.costs import Places, Work
from infra.cluster.placement import ALONE, WORKER, PlacementConfig
from rl.graph import Graph

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
