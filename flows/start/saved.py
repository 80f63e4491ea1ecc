"""A run's `config.yaml`: the settings that it goes on with; where they were changed since its last session, that one's
beside it."""

from collections.abc import Mapping
from typing import Any

import yaml

from flows.config import TrainConfig
from flows.options.plain_yaml import load_yaml
from flows.options.reading import read_config, to_yaml
from flows.options.tree import flatten, known_options
from infra.runs.checkpoints import CONFIG, NotARun, require_run
from infra.storage import place
from rl.algorithms import ALGORITHMS

# The first and the last line. A file that was cut off between two settings reads as one that has fewer, and what is
# missing would be trained by its default. Neither is in a file of an older version.
MOST_BYTES = 2**20
LAST = "last_session.yaml"
BEGIN, END = "# written by rlvf: whole if its last line says that it ends", "# ends here"
SAVED_BEFORE: Mapping[str, Any] = {  # the defaults of all options of that time, which older runs have saved
    "ratio_cap": 2.0,
    "weight_cap": 5.0,
    "clip": 0.2,
    "dual_clip": 3.0,
    "clip_low": None,
    "clip_high": None,
    "second_moment": 0.04,
    "gamma": 1.0,
    "lam": 0.95,
    "whiten": True,
    "tau_positive": 1.0,
    "tau_negative": 1.05,
}


def whole_text(config: TrainConfig) -> str:
    """The content of the file."""
    return f"{BEGIN}\n{to_yaml(config)}{END}\n"


def write_config(uri: str, config: TrainConfig) -> None:
    """Save what a session of the run is trained with, without secrets."""
    place.write_text(place.join(uri, CONFIG), whole_text(config))
    place.remove_file(place.join(uri, LAST))


def change_config(uri: str, config: TrainConfig) -> None:
    """Save what the run's next session is trained with, and keep what its last one was."""
    if not place.exists(last := place.join(uri, LAST)):
        place.write_text(last, place.read_text(place.join(uri, CONFIG), MOST_BYTES))
    place.write_text(place.join(uri, CONFIG), whole_text(config))


def last_session(uri: str) -> TrainConfig | None:
    """What the run's last session was trained with, where that has been changed since. Raises as `saved_config`."""
    return _read(place.join(uri, LAST)) if place.exists(place.join(uri, LAST)) else None


def saved_config(uri: str) -> TrainConfig:
    """The configuration that a run goes on with, without secrets. Whoever can write where it lies may have
    changed it since it was read last: what was trusted of it is passed on, not read anew.

    Raises:
        NotARun: there is none, or it is damaged: what rlvf writes ends with a line that says so.
        OptionError: it does not fit this version of the program.
    """
    require_run(uri)
    return _read(place.join(uri, CONFIG))


def _read(saved: str) -> TrainConfig:
    try:
        text = place.read_text(saved, MOST_BYTES)
        base = load_yaml(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NotARun(f"{saved} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(base, Mapping):
        raise NotARun(f"{saved} is damaged: it holds no settings")
    lines = text.splitlines()
    if BEGIN in lines and END not in lines:
        raise NotARun(
            f"{saved} is damaged: its last line, {END!r}, is missing: it was cut off; restore the file, or write again "
            "what is missing (its defaults would be trained instead) and that line"
        )
    return read_config(TrainConfig, file=None, overrides={}, base=_without_others_defaults(base))


def _without_others_defaults(saved: Mapping[Any, Any]) -> dict[str, Any]:
    """Settings by dotted path, without what older runs have saved of other algorithms' options, whatever their
    defaults are by now."""
    given = dict(flatten(known_options(TrainConfig), saved))
    of = ALGORITHMS.get(str(given.get("algorithm.name", TrainConfig().algorithm.name)))
    others = SAVED_BEFORE.keys() - (of.model_fields if of is not None else {})
    unsaid = {f"algorithm.{name}": (None, SAVED_BEFORE[name]) for name in others}
    return {path: value for path, value in given.items() if value not in unsaid.get(path, ())}
