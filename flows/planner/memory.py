"""What the models of a run hold in memory, and what its workers have."""

from collections.abc import Mapping

from flows.config import TrainConfig
from infra.runs.record import Record
from rl.graph import Graph
from rl.kl_config import START

TRAINING = 8  # bytes in training per byte of weights in 16 bits: float32 weights, gradients and two moments of Adam


def sizes(graph: Graph, record: Record, config: TrainConfig) -> dict[str, float]:
    """Bytes by what is held (`Work.holds`), of the models whose size a run tells.

    The policy's versions have the parameters that it trains whole, at times; adapters stand on a frozen model of the
    same type. A critic is trained whole, and a reference that is a version of the run is as large as the policy. Left
    out are a reference that is another model, a reward model, everything where no version was published as a difference
    yet, and where an older run has not told how many parameters its adapters stand on.
    """
    bytes_, ratios = record.curve("sync/bytes"), record.curve("sync/ratio")
    trained = max((moved * ratios.get(step, 1.0) for step, moved in bytes_.items()), default=0.0)
    adapters = config.policy.lora.rank > 0
    count, every = record.about.get("parameters", (0, 0)) if adapters else (1, 1)
    if not trained or not count:
        return {}
    frozen = trained * (every - count) / count
    whole = frozen if adapters else trained
    held = {
        "actor": frozen + trained,
        "actor in training": frozen + TRAINING * trained,
        "critic": whole,
        "critic in training": TRAINING * whole,
    }
    if config.algorithm.kl.reference == START:
        held["reference"] = frozen + trained
    return {name: size for name, size in held.items() if name.removesuffix(" in training") in graph.models}


def memory(record: Record) -> Mapping[str, float]:
    """Bytes of each worker's device, as it announced them."""
    announced: Mapping[str, float] = record.about.get("memory_gb", {})
    return {name: gigabytes * 1e9 for name, gigabytes in announced.items()}
