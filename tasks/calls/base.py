"""The frozen model of a run with adapters: where every machine takes it from."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from infra import disk
from infra.errors import one_line
from infra.home import rlvf_home
from infra.runs.checkpoints import base_uri
from infra.storage import place, store
from infra.storage.fence import Fence
from infra.storage.manifest import NotThere, StoreError, Torn
from infra.storage.retry_policy import RetryPolicy
from rl.lora_config import OtherBaseError

if TYPE_CHECKING:
    from rl.model.policy import Policy


class BaseDamaged(StoreError):  # noqa: N818
    """The frozen model that is stored with a run is missing or damaged. No published version mends that."""

    remedy = "where policy.model is as it was, `rlvf train --resume RUN` stores it anew; else restore it"


class BaseLost(BaseDamaged):
    """And the model that the run started from cannot take its place."""

    remedy = "restore it, or policy.model as it was"


KEPT = 3  # bases of runs that lie elsewhere, on this machine


@contextmanager
def base_of(
    run_uri: str, public: str | None, patience: float, check: Callable[[], None] = lambda: None
) -> Iterator[str]:
    """What transformers can load: the `public` model, where every machine takes that, or the one that is stored with
    the run. `check` is called while the storage is away, and may raise. Raises BaseDamaged."""
    if public is not None:
        yield public
        return
    uri, into = base_uri(run_uri), None
    if place.local_path(uri) is None:  # other processes of this machine need it too
        into = rlvf_home() / "cache" / "bases" / hashlib.sha256(uri.encode()).hexdigest()[:32]
    try:
        folder = RetryPolicy(patience, check=check)(store.read_folder, uri, into)
    except (NotThere, Torn) as error:
        raise BaseDamaged(f"the frozen model of the run is missing or damaged: {error}") from None
    if into is not None:
        disk.keep_newest(into, KEPT)
    with folder:
        yield str(folder.path)


def store_base(run_uri: str, policy: "Policy", patience: float, fence: Fence) -> None:
    """Store the frozen model of this policy with the run, for `base_of`."""
    from rl.model.policy import DTYPES, save_base

    assert policy.base is not None
    with store.scratch(run_uri) as folder:
        save_base(policy, folder, DTYPES[policy.base.dtype])
        store.write_patiently(base_uri(run_uri), folder, {}, patience, fence)


def mended_base(
    run_uri: str,
    source: str,
    load: Callable[[str], "Policy"],
    damaged: BaseDamaged,
    patience: float,
    fence: Fence,
) -> "Policy":
    """The policy that is loaded from the model that the run started from, ``source``, by its checkpoint, which says
    which model that was; it is stored anew with the run. Raises BaseLost where it cannot be loaded or is another."""
    from rl.model.policy import UnknownModelError
    from tasks.calls.start import weights_of

    try:
        if not source:
            raise UnknownModelError("the warm-up of the tiny policy is not kept here")
        with weights_of(source) as path:
            policy = load(path)
    except (UnknownModelError, OtherBaseError, StoreError) as error:
        raise BaseLost(f"{damaged}; nothing can take its place: {one_line(error)}") from None
    store_base(run_uri, policy, patience, fence)
    return policy
