"""The reference of a KL where it is another model: by which name it is kept, and where it comes from."""

from pathlib import Path
from typing import Any

from flows.config import TrainConfig
from flows.start.finetunes import made_model
from flows.start.model_files import ModelFilesError, find_model
from flows.start.runs import existing_run, meant, newest_weights
from flows.start.saved import saved_config
from infra.home import in_home
from infra.runs.checkpoints import NotARun, is_run, resolve_run
from infra.security.secrets import masked
from infra.storage import place
from infra.storage.manifest import NotThere
from infra.weights.chain import stored_version
from infra.weights.version import published
from rl.config import whole_path
from rl.learning.kl_config import START
from tasks.reference import RunVersion


class ReferenceNameError(ValueError):
    """What is named as the reference is no model."""


def with_named_reference(config: Any, home_runs: str) -> Any:
    """The configuration with its reference by a name that holds from anywhere and later: of a run the version that is
    the newest now, where none is given. Nothing is asked of what is named but whether it is a run.

    Raises ReferenceNameError."""
    if not isinstance(config, TrainConfig) or (name := config.algorithm.kl.reference) == START:
        return config
    run, step = _run_and_step(name)
    try:
        uri = existing_run(run, home_runs)
        if is_run(uri):
            found = f"{uri}:{newest_weights(uri).step if step is None else step}"
        else:
            model = None if step is not None else made_model(name, home_runs)
            found = whole_path(name) if model is None else str(place.local_path(model) or model)
    except NotARun as error:
        raise ReferenceNameError(f"algorithm.kl.reference {masked(name)!r}: {error}") from error
    if found == name:
        return config
    kl = config.algorithm.kl.model_copy(update={"reference": found})
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"kl": kl})})


def check_reference(config: TrainConfig, home_runs: str) -> str:
    """Refuse a reference that is not there, before anything starts or is written; returns a note for a person. Raises
    ReferenceNameError."""
    name = config.algorithm.kl.reference
    if name == START:
        return ""
    named = f"algorithm.kl.reference {masked(name)!r}: "
    run, step = _run_and_step(name)
    uri = resolve_run(run, home_runs)
    if is_run(uri) and step is not None:
        try:
            stored_version(place.join(uri, "weights"), step)
        except NotThere:
            there = ", ".join(map(str, published(uri)[-5:])) or "none"
            raise ReferenceNameError(
                f"{named}version {step} is not published, or was removed when no generator needed it; the run holds "
                f"{there}. A version that is to stay: rlvf export, or checkpoint.keep_best and RUN/model-best"
            ) from None
        reference_source(name)
        return ""
    try:
        return find_model(name).note
    except ModelFilesError as error:
        raise ReferenceNameError(f"{named}is no run, and as a model: {error}{meant(run, home_runs)}") from error


def reference_source(name: str) -> str | RunVersion | None:
    """Where the reference of that name, as `with_named_reference` gives it, comes from; None of a run that is not there
    any more. Raises ReferenceNameError."""
    run, step = _run_and_step(name)
    if step is None:
        return name
    if not is_run(run):
        return None
    config = saved_config(run)
    public = config.policy.model if config.sync.base == "public" else None
    here = place.local_path(run)
    if public is not None and (here is None or not in_home(Path(here))):
        raise ReferenceNameError(
            f"algorithm.kl.reference {masked(name)!r}: it starts from {public}, which a run from elsewhere has chosen; "
            "name the folder that rlvf export --merge makes of it"
        )
    return RunVersion(run, step, config.policy, public)


def _run_and_step(name: str) -> tuple[str, int | None]:
    run, _, step = name.rpartition(":")
    return (run, int(step)) if run and step.isdecimal() and step.isascii() else (name, None)
