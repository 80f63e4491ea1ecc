"""Checkpoints of a run, and what a run is: `config.yaml`, `weights/v<version>/` and `state/<step>/` under one URI."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from infra.storage import place, store
from infra.storage.fence import Fence
from infra.storage.manifest import MANIFEST, NotThere, Torn
from infra.storage.retry_policy import RetryPolicy
from infra.storage.store import Folder

CONFIG = "config.yaml"
SETTINGS, EXAMPLES = "finetune.yaml", "examples.json"  # of a run on examples: its settings, a digest of those
MODEL = "model"  # the folder of a run's result
CRITIC = "critic"  # the folder of its value model, with checkpoints and versions of its own
BEST = "model-best"  # the folder of the version with the best evaluation, in Hugging Face layout


class CheckpointConfig(BaseModel):
    """How the state of a run is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: int = Field(
        1,
        ge=1,
        description="steps between two checkpoints, of weights and optimizer state; --resume repeats the steps since "
        "the last one",
    )
    keep_last: int = Field(2, ge=1, description="checkpoints kept; older ones are removed after each new one")
    keep_best: bool = Field(
        False, description="keep the version with the best mean reward in the first of evals, as model-best/"
    )


class NotARun(ValueError):  # noqa: N818
    """What was named is no run; the message is one line that says why."""


def save(
    run_uri: str,
    step: int,
    source: Path,
    meta: Mapping[str, JsonValue],
    keep_last: int,
    *,
    patience: float = 0.0,
    fence: Fence | None = None,
) -> None:
    """Store the local folder `source` as the run's checkpoint of `step`, then prune to the newest `keep_last`. A
    storage elsewhere may be away for `patience` seconds. `source` is gone afterwards.

    Checkpoints of later steps are removed: a run that went back continues from here. Raises LockLostError, and neither
    replaces nor removes anything, where the `fence` says that another process has the run.
    """
    uri = state_uri(run_uri)
    store.write_patiently(place.join(uri, str(step)), source, meta, patience, fence)

    def prune() -> None:
        reached = [version for version in store.versions(uri) if version <= step]
        store.prune(uri, keep=reached[-keep_last:], fence=fence)

    RetryPolicy(patience)(prune)


def forget_after(run_uri: str, step: int, fence: Fence | None = None) -> None:
    """Remove the checkpoints of later steps than this one."""
    for version in store.list_versions(state_uri(run_uri)):
        if version.number > step:
            store.check_of(fence)()
            place.remove(version.uri)


def load(run_uri: str, step: int) -> Folder:
    """The checkpoint of `step`, verified; raises `NotThere` and `Torn`."""
    named = [version.uri for version in store.list_versions(state_uri(run_uri)) if version.number == step]
    return store.read_folder(named[-1] if named else place.join(state_uri(run_uri), str(step)))


def newest(run_uri: str, *, warn: Callable[[str], None], at_most: int | None = None) -> Folder | None:
    """The newest intact checkpoint, of step ``at_most`` or before if given; None if there is none. `warn` gets a line
    for each newer one that is not intact."""
    tried: set[store.Version] = set()

    def there() -> list[store.Version]:
        listed = store.list_versions(state_uri(run_uri))
        return [each for each in listed if each not in tried and (at_most is None or each.number <= at_most)]

    # again after all were tried: a writer may have removed the one that was being read, and stored another
    while untried := there():
        for version in reversed(untried):
            try:
                return store.read_folder(version.uri)
            except (NotThere, Torn) as error:
                warn(f"checkpoint {version.number} is skipped: {error}")
        tried.update(untried)
    return None


@dataclass(frozen=True)
class Best:
    """The version with the best evaluation."""

    uri: str
    step: int
    reward: float  # mean, by which it was chosen
    plan: str = ""  # digest of what it was evaluated on; older runs do not say


def best_version(run_uri: str, patience: float = 0.0) -> Best | None:
    """The version that was kept as the best so far, if one was; its storage may be away for `patience` seconds. Raises
    Torn."""
    uri = place.join(run_uri, BEST)
    try:
        meta = RetryPolicy(patience)(store.read_manifest, uri).meta
    except NotThere:
        return None
    try:
        return TypeAdapter(Best).validate_python({**meta, "uri": uri})
    except ValidationError:
        raise Torn(f"{uri} is torn: {MANIFEST} does not say which version it is; remove it") from None


def is_run(uri: str) -> bool:
    """Whether `uri` is a run's."""
    return place.exists(place.join(uri, CONFIG))


def require_run(uri: str) -> None:
    """Raise NotARun, saying why, unless `uri` is a run's."""
    if not is_run(uri):
        why = f"it has no {CONFIG}" if place.exists(uri) else "there is nothing"
        raise NotARun(f"{uri} is not a run: {why}")


def resolve_run(name_or_uri: str, home_runs: str) -> str:
    """The URI of a run that is named by its URI, its path, or its folder's name under `home_runs`.

    A bare name is looked for under `home_runs` first, then where the process stands. It need not exist: see
    `require_run`.
    """
    is_name = "/" not in name_or_uri and not name_or_uri.startswith(("~", "."))
    if "://" in name_or_uri:
        return name_or_uri.rstrip("/")
    here = str(place.local_path(name_or_uri))  # absolute: its workers may stand elsewhere
    if not is_name:
        return here
    at_home = place.join(home_runs, name_or_uri)
    return here if is_run(here) and not is_run(at_home) else at_home


def base_uri(run_uri: str) -> str:
    """Where the model lies that the adapters of a run are put on."""
    return place.join(run_uri, "base")


def state_uri(run_uri: str) -> str:
    """Where the checkpoints of a run lie."""
    return place.join(run_uri, "state")
