"""What is left of a run none of whose checkpoints can be read: it must not begin anew, which would remove the rest."""

import shlex
from collections.abc import Sequence

from infra.runs.checkpoints import CRITIC, MODEL, state_uri
from infra.runs.record import last_step
from infra.security.secrets import masked
from infra.storage import place, store
from infra.storage.manifest import StoreError
from infra.weights.chain import read_edges
from infra.weights.version import ADAPTERS, weights_uri

SHOWN = 2  # unreadable checkpoints that are named


class CheckpointsLostError(RuntimeError):
    """A run has got beyond version 0, and no checkpoint of it can be read: only a person can say what to do."""


def none_as_old(model_uri: str, version: int, skipped: Sequence[str]) -> CheckpointsLostError:
    """The error for a model that has no checkpoint of a version or of one before, as those trained beside it have."""
    why = f": {'; '.join(skipped)}" if skipped else ""
    return CheckpointsLostError(
        f"{masked(model_uri)} cannot go on: it has no checkpoint of version {version} or before, as other models of "
        f"the run have{why}; start a new run under another name"
    )


def has_versions(run_uri: str) -> bool:
    """Whether there are checkpoints or published weights, whole or not."""
    return bool(store.list_versions(state_uri(run_uri)) or store.list_versions(place.join(run_uri, "weights"), "v"))


def refuse_to_begin_anew(run_uri: str, skipped: Sequence[str], folder: str = "") -> None:
    """Raise CheckpointsLostError if anything in the storage of the run knows a version above 0: a checkpoint or
    published weights of its policy or critic, metrics, a result. For whoever has found no checkpoint whole of the model
    in `folder`, the policy by default; `skipped` says why not, the newest first. Nothing is written or removed."""
    published = _versions(run_uri, "weights", "v")
    of_critic = place.join(run_uri, CRITIC)
    others = (*_versions(run_uri, "state"), *_versions(of_critic, "state"), *_versions(of_critic, "weights", "v"))
    version = max(0, last_step(run_uri), *published, *others)
    if version == 0 and not place.exists(place.join(run_uri, MODEL)):
        return
    more = f"; and {len(skipped) - SHOWN} more" if len(skipped) > SHOWN else ""
    states = state_uri(place.join(run_uri, folder) if folder else run_uri)
    why = "; ".join(skipped[:SHOWN]) + more if skipped else f"there is none in {states}"
    known = f"it has been at version {version}" if version else f"it has a {MODEL}/"
    whose = f"its {folder}" if folder else "it"
    copied = f"If the run was copied, copy {folder}/ too. " if folder and not skipped else ""
    message = (
        f"{run_uri} cannot go on: {known}, and no checkpoint of {whose} is whole ({why}); to begin at step 0 would "
        f"remove what is left of it. {copied}{_remedy(run_uri, max(published, default=0))}"
    )
    raise CheckpointsLostError(masked(message))


def _versions(uri: str, folder: str, prefix: str = "") -> list[int]:
    return [version.number for version in store.list_versions(place.join(uri, folder), prefix)]


def _remedy(run_uri: str, last: int) -> str:
    """Where its last weights are, and what a new run can start from; `last`: the newest published version."""
    source, at = _whole(run_uri, last), weights_uri(run_uri, last)
    words = [f"Its last weights are at {at}"] if last else []
    if last and source not in (at, f"{at}-whole"):
        words[-1] += ", which --policy does not take as they are"
    if source:
        words.append(f"a new run starts from {source} by: rlvf train --policy {shlex.quote(source)}")
        if place.local_path(source) is None:
            words[-1] = f"a new run starts from a copy of {source}: rlvf train --policy COPY"
    return "; ".join(words or ["Nothing else of it is whole: start a new run under another name"])


def _whole(run_uri: str, last: int) -> str | None:
    """The folder that `--policy` takes: weights of the `last` version, else the run's result, else the newest whole
    ones; differences and adapters it does not take, and a version in 8 bits is no model for others."""
    edges = [
        edge
        for edge in read_edges(place.join(run_uri, "weights"))
        if edge.makes.step > 0 and edge.base is None and edge.manifest.public is None and edge.manifest.dtype != "int8"
    ]
    newest = sorted(edges, key=lambda edge: edge.makes.step, reverse=True)
    of_last = [edge.uri for edge in newest if edge.makes.step == last]
    for uri in (*of_last, place.join(run_uri, MODEL), *(edge.uri for edge in newest)):
        try:
            store.check_whole(uri)
            if ADAPTERS[1] in store.read_manifest(uri).files:
                continue
        except StoreError:
            continue
        return uri
    return None
