"""What the models of a run hold in memory, and what its workers have."""

from collections.abc import Mapping

from infra.runs.record import Record
from rl.graph import Graph

TRAINING = 8  # bytes in training per byte of weights in 16 bits: float32 weights, gradients and two moments of Adam


def sizes(graph: Graph, record: Record) -> dict[str, float]:
    """Bytes by what is held (`Work.holds`): from those that the actor's versions have whole. A critic and a reference
    are models of the same size. Nothing where no version was published as a difference yet."""
    bytes_, ratios = record.curve("sync/bytes"), record.curve("sync/ratio")
    whole = max((moved * ratios.get(step, 1.0) for step, moved in bytes_.items()), default=0.0)
    if not whole:
        return {}
    held = dict.fromkeys(graph.models, whole)
    return held | {f"{call.model} in training": TRAINING * whole for call in graph.calls if call.trains}


def memory(record: Record) -> Mapping[str, float]:
    """Bytes of each worker's device, as it announced them."""
    announced: Mapping[str, float] = record.about.get("memory_gb", {})
    return {name: gigabytes * 1e9 for name, gigabytes in announced.items()}
