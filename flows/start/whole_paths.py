"""Paths of a configuration that hold in any working directory."""

from pathlib import Path
from typing import TypeVar

from flows.config import HELD_OUT, TrainConfig
from infra.storage.place import local_path
from rl.config import ENVIRONMENTS, ProblemsConfig, is_in_code
from rl.environments.environment_config import EnvironmentConfig
from rl.environments.spec import split_name
from rl.verifiers.spec import is_file

S = TypeVar("S", bound=ProblemsConfig)


def with_whole_paths(config: TrainConfig) -> TrainConfig:
    """The configuration with the files of its problems, evaluations and verifiers by their absolute paths: a run is
    gone on with, and evaluated, from anywhere."""
    whole = {
        "problems": _whole_set(config.problems),
        "mix": tuple(map(_whole_set, config.mix)),
        "evals": tuple(map(_whole_set, config.evals)),
        "verifier": config.verifier.model_copy(update={"name": whole_verifier(config.verifier.name)}),
        "environment": _whole_environment(config.environment),
        "algorithm": config.algorithm.model_copy(update={"name": whole_verifier(config.algorithm.name)}),
    }
    return config.model_copy(update={name: of for name, of in whole.items() if of != getattr(config, name)})


def whole_problems(path: str) -> str:
    """A problem file or pattern by its absolute path; what lies elsewhere, or in no file, as it is."""
    if is_in_code(path) or path == HELD_OUT:
        return path
    if "::" in path and not Path(path).is_file():  # fsspec's chain: `zip://a.csv::here.zip`
        first, _, last = path.rpartition("::")
        return f"{first}::{whole_problems(last)}"
    local = local_path(path)
    return path if local is None else str(local)


def whole_verifier(name: str) -> str:
    """The same of a verifier's name, where it names a file."""
    return whole_problems(name) if is_file(name) else name


def _whole_environment(environment: EnvironmentConfig) -> EnvironmentConfig:
    name = environment.name
    if name is None or name in ENVIRONMENTS:
        return environment
    path, of = split_name(name)
    return environment.model_copy(update={"name": f"{whole_problems(path)}:{of}"})


def _whole_set(each: S) -> S:
    verifier = None if each.verifier is None else whole_verifier(each.verifier)
    whole = {"path": whole_problems(each.path), "verifier": verifier}
    return each.model_copy(update={name: of for name, of in whole.items() if of != getattr(each, name)})
