"""The chain of folders to a version, however much of the weights every step changes."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infra.storage.place import subfolders
from infra.weights import publisher as publishing
from infra.weights.chain import cheapest_chain, read_edges
from infra.weights.difference import DifferenceError
from infra.weights.publisher import Publisher
from infra.weights.version import Published, SyncConfig
from tests.infra.weights.versions import WINDOW, fresh, same

pytestmark = pytest.mark.usefixtures("impatient")
VERSIONS = 130
FEW, ALL = 0.002, 1.0  # shares of the cells that a step changes


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "run")


def trained(shares: list[float], seed: int) -> Iterator[dict[str, Tensor]]:
    """Adapters, of which each step changes a share: B begins with zeros, as that of LoRA does."""
    draws = torch.Generator().manual_seed(seed)
    weights = {"l.lora_A.weight": torch.randn(8, 512, generator=draws), "l.lora_B.weight": torch.zeros(512, 8)}
    for share in shares:
        yield {name: tensor.clone() for name, tensor in weights.items()}
        for tensor in weights.values():
            moved = torch.rand(tensor.shape, generator=draws) < share
            tensor += 1e-3 * moved * torch.randn(tensor.shape, generator=draws)


def shares(kind: str, seed: int) -> list[float]:
    draws = torch.Generator().manual_seed(seed)
    of = {"dense": [ALL], "sparse": [FEW], "mixed": [FEW, 0.1, ALL], "phases": [FEW, ALL]}[kind]
    length = 20 if kind == "phases" else 1
    drawn = torch.randint(len(of), (VERSIONS // length + 1,), generator=draws).tolist()
    return [of[i] for i in drawn for _ in range(length)][:VERSIONS]


def check(place: str, published: list[Published], wanted: dict[int, dict[str, Tensor]], config: SyncConfig) -> None:
    """What docs/weights.md promises of the newest version and those that generators may have."""
    edges = read_edges(f"{place}/weights")
    whole = published[0].bytes
    promised = [done for done in published if done.version.step >= published[-1].version.step - WINDOW]
    for done in promised:
        way = cheapest_chain(edges, done.version.id)
        assert way is not None
        assert sum(edge.bytes for edge in way) <= 2 * whole
        assert len(way) <= 2 + math.log2(config.anchor_every)  # whole, an anchor, and one for each bit
    for done in promised[:: max(1, len(promised) - 1)]:
        with fresh(place).at(done.version) as found:
            assert same(dict(found), wanted[done.version.step])
    assert len(edges) <= 2 * (WINDOW + 1) + 6


QUICK = [("sparse", 0), ("mixed", 1)]
SLOW = [
    pytest.param(kind, seed, marks=pytest.mark.slow)
    for kind, seed in product(("dense", "sparse", "mixed", "phases"), range(2))
    if (kind, seed) not in QUICK
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [*QUICK, *SLOW])
def test_the_way_of_a_newcomer_is_at_most_two_whole_versions(
    kind: str, seed: int, place: str, open_publisher: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = 0

    def counted(*given: Any) -> Any:
        nonlocal stored
        manifest = write(*given)
        stored += manifest.size
        return manifest

    write = publishing.store.write_patiently
    monkeypatch.setattr(publishing.store, "write_patiently", counted)
    draws = torch.Generator().manual_seed(seed)
    config = SyncConfig(anchor_every=32, patience=0.0)
    writer, published, wanted, step = open_publisher(config), [], {}, 0
    for weights in trained(shares(kind, seed), seed):
        published.append(writer.publish(step, weights))
        writer.finish()
        assert not published[-1].warnings
        wanted[step] = weights
        check(place, published, wanted, config)
        chance = float(torch.rand((), generator=draws)) if seed else 1.0
        if chance < 0.05:  # a trainer that was killed, and goes on
            writer.close()
            writer = open_publisher(config)
        step += 3 if chance > 0.95 and seed else 1  # updates that failed to be published
    own = sum(done.bytes for done in published)
    assert stored <= own * (2 if kind == "dense" else 1 + math.log2(config.anchor_every))


@pytest.mark.slow
def test_a_difference_that_cannot_be_merged_is_said_and_costs_no_more_than_a_whole_version(
    place: str, open_publisher: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise DifferenceError("2-3: ends too early")

    monkeypatch.setattr(publishing, "merge_differences", broken)
    config = SyncConfig(anchor_every=4, patience=0.0)
    writer, published, wanted = open_publisher(config), [], {}
    for step, weights in enumerate(trained([FEW] * 20, 0)):
        published.append(writer.publish(step, weights))
        writer.finish()
        wanted[step] = weights
        way = cheapest_chain(read_edges(f"{place}/weights"), published[-1].version.id)
        assert way is not None
        assert len(way) <= 5
        assert len(subfolders(f"{place}/weights")) <= 12
        with fresh(place).at(published[-1].version) as found:
            assert same(dict(found), weights)
    said = "for those who are behind nothing shorter was stored: 2-3: ends too early"
    assert said in published[3].warnings


@pytest.mark.slow
def test_what_cannot_be_removed_is_said(
    open_publisher: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise PermissionError("it is not yours")

    monkeypatch.setattr(publishing, "needed", broken)
    writer = open_publisher()
    first, second = trained([FEW] * 2, 0)
    writer.publish(0, first)
    assert writer.publish(1, second).warnings == ("versions that nobody needs were not removed: it is not yours",)
