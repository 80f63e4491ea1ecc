"""Chains of stored folders that make a version of weights, as plain data: the cheapest one, and which must stay.

Under `weights/` lies, for every version, `v<step>`: whole, or the difference from the version before. Every second
version has a difference from two versions before as well (`v6-from-v4`), every fourth from four, and so on up to the
anchors, from which on all are from the last whole version. So the chain from there to any later one has at most an
anchor and a folder for every bit that is set in the number of versions since. Where its differences would take more
bytes than a whole version, the version is stored whole (`v6-whole`), and those that follow count from it.
"""

import heapq
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from infra.storage import place, store
from infra.storage.manifest import NotThere, StoreError, Torn
from infra.weights.version import PolicyVersion, VersionId, VersionManifest, version_manifest

_NAME = re.compile(r"v\d+(-from-v\d+|-whole)?")


@dataclass(frozen=True)
class Edge:
    """One stored folder: it makes a version of nothing, or of the version `base`."""

    uri: str
    manifest: VersionManifest
    bytes: int  # of its files

    @property
    def makes(self) -> VersionId:
        return VersionId(step=self.manifest.step, digest=self.manifest.digest)

    @property
    def base(self) -> VersionId | None:
        return self.manifest.base


def read_edge(uri: str) -> Edge:
    """The folder at `uri`; raises NotThere and Torn."""
    manifest = store.read_manifest(uri)
    return Edge(uri, version_manifest(uri, manifest), manifest.size)


def read_edges(weights: str) -> list[Edge]:
    """All whole folders under `weights`, but for those that cannot be read."""
    edges = []
    for name, whole in sorted(place.subfolders(weights).items()):
        if whole and _NAME.fullmatch(name):
            try:
                edges.append(read_edge(place.join(weights, name)))
            except (NotThere, Torn):
                continue
    return edges


def cheapest_chain(edges: Iterable[Edge], want: VersionId, have: VersionId | None = None) -> list[Edge] | None:
    """The chain to `want` that reads the fewest bytes, from nothing or from `have`; None where there is none."""
    leaving: dict[VersionId | None, list[Edge]] = defaultdict(list)
    for edge in edges:
        leaving[edge.base].append(edge)
    best: dict[VersionId | None, list[Edge]] = {}
    order = 0  # so that chains of equal cost are never compared
    ways: list[tuple[int, int, VersionId | None, list[Edge]]] = [(0, 0, None, [])]
    if have is not None:
        ways.append((0, 1, have, []))
    while ways:
        cost, _, at, way = heapq.heappop(ways)
        if at == want:
            return way
        if at in best:
            continue
        best[at] = way
        for edge in leaving[at]:
            order += 2
            heapq.heappush(ways, (cost + edge.bytes, order, edge.makes, [*way, edge]))
    return None


def stored_version(weights: str, step: int) -> PolicyVersion:
    """The version of that number under `weights`, whichever folders make it by now. Raises NotThere, and what the
    storage raises."""
    for edge in read_edges(weights):
        if edge.makes.step == step:
            return PolicyVersion(step, place.join(weights, f"v{step}"), edge.makes.digest, edge.manifest.files)
    raise NotThere(f"{weights} holds no version {step}")


def is_whole(version: PolicyVersion) -> bool:
    """Whether a chain from nothing leads to the version; each folder of it is checked. Raises what the storage
    raises."""
    way = cheapest_chain(read_edges(version.uri.rpartition("/")[0]), version.id)
    try:
        for edge in way or ():
            store.check_whole(edge.uri)
    except StoreError:
        return False
    return way is not None


def needed(edges: Collection[Edge], newest: int, window: int, pinned: Collection[int] = ()) -> set[str]:
    """The URIs of the folders that must stay: for generators that start with nothing, those up to `window` versions
    behind the newest, and readers of the `pinned` versions."""
    recent = {edge.makes for edge in edges if newest - window <= edge.makes.step <= newest}
    stays = {edge.uri for edge in edges if edge.makes in recent and edge.base in recent}
    for version in recent | {edge.makes for edge in edges if edge.makes.step in pinned}:
        way = cheapest_chain(edges, version)
        if way is None:  # a folder of the chain could not be read just now: the others must stay
            return {edge.uri for edge in edges}
        stays.update(edge.uri for edge in way)
    return stays
