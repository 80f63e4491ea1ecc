"""Published weights: what generators load. A policy is a version of weights at a URI."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from infra import store
from infra.store import Folder, Torn


@dataclass(frozen=True)
class PolicyVersion:
    """Weights in Hugging Face layout, published and immutable."""

    step: int  # how many updates made it
    uri: str
    digest: str  # of the manifest: the weights and every file beside them
    size: int = field(default=0, compare=False)  # bytes that its publication wrote

    def __str__(self) -> str:
        return f"v{self.step}"


def weights_uri(run_uri: str, step: int) -> str:
    """Where version ``step`` of a run lies."""
    return store.join(run_uri, "weights", f"v{step}")


def publish(run_uri: str, step: int, source: Path, *, move: bool = False) -> PolicyVersion:
    """Store the local folder ``source`` as version ``step``: payload first, manifest last. Publishing the same files
    again changes nothing."""
    uri = weights_uri(run_uri, step)
    manifest = store.write_folder(uri, source, move=move)
    return PolicyVersion(step, uri, manifest.digest, manifest.size)


def fetch(policy: PolicyVersion) -> Folder:
    """The version's files on this machine, verified.

    Raises ``store.NotThere`` if it is not there (any more) and ``store.Torn`` if it is not what was published.
    """
    folder = store.read_folder(policy.uri)
    if folder.manifest.digest != policy.digest:
        raise Torn(f"{policy.uri} holds other weights than were published as {policy}")
    return folder


def published(run_uri: str) -> list[int]:
    """The versions that a run holds, oldest first."""
    return store.versions(store.join(run_uri, "weights"), prefix="v")


def newest_version(run_uri: str) -> PolicyVersion | None:
    """The newest published version of a run."""
    steps = published(run_uri)
    if not steps:
        return None
    uri = weights_uri(run_uri, steps[-1])
    return PolicyVersion(steps[-1], uri, store.read_manifest(uri).digest)


def prune(run_uri: str, keep: Collection[int]) -> None:
    """Remove the versions that are not named."""
    store.prune(store.join(run_uri, "weights"), keep=keep, prefix="v")
