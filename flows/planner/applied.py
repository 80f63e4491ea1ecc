"""A proposal as settings: in a run's own, or in a YAML file."""

import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from flows.config import TrainConfig
from flows.options.plain_yaml import load_yaml
from flows.options.reading import read_config, to_yaml
from flows.options.tree import flatten, known_options, nest
from flows.planner.proposal import Recommendation
from flows.start.saved import change_config
from infra import disk
from infra.runs.checkpoints import CONFIG
from infra.storage import place


def settings(changes: Sequence[Recommendation]) -> dict[str, object]:
    """Values by dotted path, the last of each."""
    return {path: value for change in changes for path, value in change.options.items()}


def written(path: str, value: object) -> str:
    """A setting as an option of the command line."""
    return f"--{path} {','.join(map(str, value)) if isinstance(value, list) else value}"


def changed_config(config: TrainConfig, changes: Mapping[str, object]) -> TrainConfig:
    """The configuration with these settings. Raises OptionError."""
    base = dict(flatten(known_options(TrainConfig), load_yaml(to_yaml(config))))
    return read_config(TrainConfig, file=None, overrides={}, base={**base, **changes})


def apply_to_run(uri: str, config: TrainConfig, changes: Mapping[str, object]) -> str:
    """Save them as the run's settings, with which `rlvf train --resume` goes on; returns where."""
    change_config(uri, changed_config(config, changes))
    return place.join(uri, CONFIG)


def apply_to_file(path: Path, changes: Mapping[str, object]) -> str:
    """Write them into a YAML file, new or with other settings; its comments are lost, its permissions kept. Returns
    where. Raises OptionError where the settings do not fit together."""
    options = known_options(TrainConfig)
    there = load_yaml(path.read_bytes()) if path.exists() else {}
    if there is not None and not isinstance(there, Mapping):
        raise ValueError(f"--config {path}: holds no settings")
    merged = {**dict(flatten(options, there or {})), **changes}
    read_config(TrainConfig, file=None, overrides={}, base=merged)
    text = yaml.safe_dump(nest(merged), sort_keys=False, allow_unicode=True)
    where = path.resolve()  # not in place of a link
    mode = stat.S_IMODE(where.stat().st_mode) if where.exists() else None
    disk.write_file(where, text.encode(), 0o666 if mode is None else mode)
    if mode is not None:
        where.chmod(mode)  # the umask is for new files
    return str(path)
