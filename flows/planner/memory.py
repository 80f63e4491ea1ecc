"""What the models of a run hold in memory, and what its workers have."""

from collections.abc import Mapping

from flows.config import TrainConfig
from infra.runs.record import Record
from infra.weights.version import newest_manifest
from rl.graph import Graph
from rl.learning.kl_config import START

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}  # bytes of a number
NARROWEST = 2  # of a model that computes: what is published in int8 is widened


def sizes(graph: Graph, record: Record, config: TrainConfig, uri: str) -> dict[str, float]:
    """Bytes by what is held (`Work.holds`), of the models whose size the run at ``uri`` tells.

    Numbers of parameters are those that the run has noted, else follow from its newest version. The policy is trained
    whole, or adapters on a frozen model. A critic is trained whole, and a reference that is a version of the run is as
    large as the policy. Left out are a reference that is another model, a reward model, everything where no version was
    published yet, and where an older run has not told how many parameters its adapters stand on.

    Raises:
        StoreError: the newest version does not say what it is.
    """
    newest = newest_manifest(uri)
    adapters = config.policy.lora.rank > 0
    count, every = record.about.get("parameters", (0, 0))
    if newest is None or newest.dtype not in WIDTHS:
        return {}
    if not adapters and not count:
        count = every = newest.bytes // WIDTHS[newest.dtype]
    if not count:
        return {}
    arithmetic, base = str(config.policy.dtype), config.policy.lora.base
    if arithmetic == "auto":  # an older run has not told, and published its versions so
        arithmetic = record.about.get("dtype") or newest.dtype
    width = max(NARROWEST, WIDTHS[arithmetic])
    frozen = every - count
    whole = frozen if adapters else count
    training = config.optimizer.training_bytes
    held = {
        "actor": width * every,
        "actor in training": (width if base == "auto" else WIDTHS[base]) * frozen + training * count,
        "critic": width * whole,
        "critic in training": training * whole,
    }
    if config.algorithm.kl.reference == START:
        held["reference"] = width * every
    return {name: size for name, size in held.items() if name.removesuffix(" in training") in graph.models}


def memory(record: Record) -> Mapping[str, float]:
    """Bytes of each worker's device, as it announced them."""
    announced: Mapping[str, float] = record.about.get("memory_gb", {})
    return {name: gigabytes * 1e9 for name, gigabytes in announced.items()}
