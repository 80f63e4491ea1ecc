"""What can be found wrong with a request before anything is started or written."""

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flows.config import TrainConfig
from flows.start.defaults import with_defaults
from flows.start.model_files import CONFIG, ModelFilesError, UnknownModel, find_model
from flows.start.runs import NEWEST, meant
from infra.cluster.cluster_config import ClusterConfig, joined_scheduler
from infra.home import rlvf_home
from infra.interrupts import put_off
from infra.runs.checkpoints import is_run, resolve_run
from infra.runs.tracking import TrackingConfig, tracking_uri
from infra.security.secrets import masked, without_userinfo
from infra.services.http import status_of
from infra.storage.place import local_path
from infra.storage.usable import PROBE, StorageError, probe_storage
from rl.config import OURS, TINY, PolicyConfig
from rl.environments.interface import Interface
from rl.environments.opened import close
from rl.judging import warm
from rl.records import Problem
from rl.sampling.server import Server
from tasks.calls.episodes import try_environment
from tasks.sets.problem_set import ProblemSet


def check_shape(model: str, runs: str) -> None:
    """Refuse a model of which not even the shape can be known: of a folder, its configuration is enough."""
    if not (Path(model) / CONFIG).is_file():
        check_model(model, runs)


@functools.cache  # a command asks before it starts anything, its flow before it makes a run
def check_model(model: str, runs: str, *, also_run: bool = False) -> str:
    """Refuse a model that cannot be loaded, before anything starts or is written; returns a note for a person.

    Args:
        runs: where runs lie; the model is none of them.
        also_run: whether it might have been one.
    """
    if model == TINY:
        return ""
    if model == NEWEST and not also_run and not Path(model).is_dir():
        raise ValueError(
            f"policy.model {model!r}: means a run for eval, report and resume alone; begin with RUN/model of a run, or "
            f"go on with the newest by --resume {NEWEST}"
        )
    try:
        found = find_model(model)
        _check_kind(found.source)
    except UnknownModel as error:
        run = resolve_run(model, runs)
        why = f"{error}{meant(model, runs, TINY)}"
        if also_run:
            what = f"there is no run {model if '/' in model else run}, and {why}"
        else:
            what = f"is a run, whose policy is the folder {run}/model" if is_run(run) else why
        raise ValueError(f"policy.model {model!r}: {what}") from error
    except ModelFilesError as error:
        raise ValueError(f"policy.model {model!r}: {'is no run; ' if also_run else ''}{error}") from error
    return found.note


def _check_kind(source: str) -> None:
    """Raise ModelFilesError unless transformers has a causal language model and a tokenizer for the files."""
    with put_off():
        from transformers import AutoConfig
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        from rl.model.tokenizer import read_tokenizer
        from rl.model.unloadable import reason

    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = read_tokenizer(source)
    except Exception as error:
        raise ModelFilesError(f"not a model that transformers can load: {reason(error)}") from error
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelFilesError(f"transformers has no causal language model of type {config.model_type!r}")
    # without its files transformers makes an empty one of the right class
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
        raise ModelFilesError(
            "it has no tokenizer files (tokenizer.json, or tokenizer.model, vocab.json and the like); copy them there, "
            "or save them with tokenizer.save_pretrained(FOLDER)"
        )


def check_verifiers_here(problems: ProblemSet, cluster: ClusterConfig) -> None:
    """Refuse a verifier that cannot work, or fails on the first problem of its set, before anything starts or is
    written. Where a cluster judges, the flow asks that: this machine may lack what a verifier imports."""
    if joined_scheduler(cluster) is None:
        isolated = {name: spec for name, spec in problems.verifiers.items() if not spec.runs_here}
        warm(isolated, problems.some() if isolated else (), rlvf_home())


def check_environment_here(problems: ProblemSet, cluster: ClusterConfig) -> Interface | None:
    """Refuse an environment that cannot be loaded, or not begin with the first problem, before anything starts or is
    written. How it is acted on; None without one, and where a cluster plays: the flow asks that."""
    if problems.environment is None or joined_scheduler(cluster) is not None:
        return None
    try:
        return try_environment(problems.environment, problems.some_played())
    finally:
        close(problems.environment)


def check_configuration_here(
    config: TrainConfig, problems: Sequence[Problem], interface: Interface | None = None
) -> None:
    """Refuse, before anything starts or is written, what the configuration and the tokenizer of a new run's model tell:
    layers without a match, prompts that its chat template does not take, completions beyond its context, turns that
    nothing can be put behind. What takes its weights is asked of the trainer: whether sampler and learner agree with
    it, and whether they fit."""
    given = config.policy.lora.targets or config.sampling.max_tokens is not None or config.environment.name is not None
    if config.policy.model == TINY and not given:
        return  # nothing was asked that it may lack
    limit = with_defaults(config)[0].sampling.limit
    with put_off():
        from tasks.calls.start import check_configuration  # with torch

        check_configuration(config.policy, problems, limit, interface)


def check_engine_here(policy: PolicyConfig, cluster: ClusterConfig) -> None:
    """Refuse a server that does not answer or cannot be given weights, before anything starts or is written. Where a
    cluster generates, the flow asks that: the server is beside each generator."""
    if policy.engine != OURS and joined_scheduler(cluster) is None:
        Server(policy.engine).open()


def check_place(uri: str) -> None:
    """Refuse a new run where nothing can be written, before anything starts; its folder is not made yet. Raises
    StorageError."""
    path = local_path(uri)
    if path is None:
        probe_storage(uri, answered=True)
    elif rlvf_home() not in path.parents:  # else it is said of the home
        try:
            nearest = next(each for each in (path, *path.parents) if each.exists())
            with tempfile.TemporaryDirectory(prefix=f".{PROBE}", dir=nearest):
                pass
        except OSError as error:
            where = Path(str(error.filename)).parent
            raise StorageError(
                f"run {path}: cannot be written, as {where} takes no folder ({error.strerror}); name a place elsewhere"
            ) from error


def check_tracking(config: TrackingConfig) -> None:
    """Refuse an MLflow server that is not there, before anything starts or is written."""
    uri = tracking_uri(config)
    if uri is None or not uri.startswith(("http://", "https://")):
        return
    named, leave = ("tracking.uri", "leave it out") if config.uri else ("MLFLOW_TRACKING_URI", "unset it")
    address = without_userinfo(uri)
    try:
        status_of(address, timeout=10)  # whether it is MLflow shows later
    except ConnectionError as error:
        raise ValueError(
            f"{named}: no MLflow server answers at {masked(address)} ({error}); start it, or {leave} to use a file "
            "under the home"
        ) from error
