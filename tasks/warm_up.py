"""The warm-up: supervised updates of a fresh tiny policy on the trainer."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch.dispatch import Dispatch
from infra.storage import place, store
from infra.storage.manifest import StoreError
from rl.problems.streams import module_of
from rl.sources import closure, path_of
from tasks.calls import warm_up as calls
from tasks.calls.warm_up import WarmUp

SECONDS = 2.0  # of updates in one call: how often the display moves


def warm_up_uri(storage: str | Path, spec: WarmUp) -> str:
    """Where the result of a warm-up is kept: its name is a digest of the settings and of the code that determine it."""
    digest = hashlib.sha256(json.dumps(spec.determining(), sort_keys=True).encode())
    for path in closure([Path(calls.__file__), path_of(module_of(spec.problems))]):
        digest.update(path.read_bytes())
    return place.join(str(storage), "warmup", digest.hexdigest()[:16])


def is_kept(uri: str) -> bool:
    """Whether a warm-up is stored there, whole."""
    try:
        with store.read_folder(uri):
            return True
    except StoreError:
        return False


def bring(source: str, uri: str) -> bool:
    """Copy the warm-up that is kept at ``source``; False if there is none."""
    if not is_kept(source):
        return False
    with store.read_folder(source) as kept:
        store.write_folder(uri, kept.path, meta=kept.manifest.meta)
    return True


@task(name="warm up", cache_policy=NO_CACHE)
def warm_up(dispatch: Dispatch, spec: WarmUp, uri: str, report: Callable[[int, float], None]) -> None:
    """Make the warmed-up policy and store it at ``uri`` in Hugging Face layout.

    ``report`` is called with the updates made and their last loss. A trainer that dies starts the warm-up again.
    """
    made = 0
    while made < spec.steps:
        made, loss = dispatch.run("train", spec.updates, made + 1, SECONDS)
        report(made, loss)
    dispatch.run("train", spec.keep, uri)
