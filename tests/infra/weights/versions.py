"""Versions of weights that are published, read and damaged."""

from collections.abc import Callable

import torch
from torch import Tensor

from infra.storage import place as places
from infra.weights.difference import weights_digest
from infra.weights.mirror import Mirror
from infra.weights.publisher import Publisher
from infra.weights.version import Published, SyncConfig, VersionId

CELLS = 4000
CONFIG = SyncConfig(anchor_every=8, patience=0.0)
WINDOW = 3


def version(step: int, seed: int = 0) -> dict[str, Tensor]:
    """Weights of which every step changes about a percent, whatever `seed` another future."""
    made = {"a": torch.zeros(CELLS // 8, 8, dtype=torch.bfloat16), "b": torch.arange(9, dtype=torch.float32)}
    for i in range(step + 1):
        draws = torch.Generator().manual_seed(1000 * seed + i if i else 0)
        at = torch.randperm(CELLS, generator=draws)[: CELLS // 100 if i else CELLS]
        made["a"].view(-1)[at] += torch.randn(len(at), generator=draws).bfloat16() / 16
    return made


def version_id(step: int) -> VersionId:
    return VersionId(step=step, digest=weights_digest(version(step)))


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return set(found) == set(wanted) and all(
        found[name].dtype == tensor.dtype
        and bytes(found[name].view(torch.uint8).numpy()) == bytes(tensor.view(torch.uint8).numpy())
        for name, tensor in wanted.items()
    )


def fresh(place: str) -> Mirror:
    return Mirror(places.join(place, "weights"), patience=0.0)


def publish_all(publisher: Publisher, steps: range) -> list[Published]:
    done = [publisher.publish(step, version(step)) for step in steps]
    publisher.finish()
    return done


def damage(uri: str, name: str, change: Callable[[bytes], bytes]) -> None:
    data = places.read(f"{uri}/{name}")
    assert data is not None
    places.write_bytes(f"{uri}/{name}", change(data))
