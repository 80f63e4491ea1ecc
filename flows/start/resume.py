"""Resuming a run with the settings of a flow run, laid over the saved ones as `rlvf train --resume` does."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.options.tree import flatten, known_options, leaf_values, nest
from flows.start.defaults import with_defaults
from flows.start.runs import Run, resumed
from flows.start.trust import trusted


def resume_with(name: str, home_runs: str, config: TrainConfig, *, form: bool = False) -> tuple[Run, list[str]]:
    """The saved run with the settings that are set in ``config``, and a line for each that was set in vain: with
    ``form`` a default changes nothing, as Prefect's form sends the defaults that it shows. Nothing is written yet.

    Raises:
        NotARun: there is no such run.
        NotTrustedError: what it brings is not `trusted`.
        OptionError: a change contradicts what the run has learned so far.
    """
    options = known_options(TrainConfig)
    sent = dict(flatten(options, config.model_dump(mode="json", exclude_unset=True)))
    given = dict(flatten(options, config.model_dump(mode="json", exclude_unset=True, exclude_defaults=form)))

    def over(base: Mapping[str, Any]) -> TrainConfig:
        whole = nest({**dict(flatten(options, base)), **given})
        return read_config(TrainConfig, file=None, overrides={}, base=whole)

    run = resumed(name, home_runs, over)
    trusted(run)  # before anything that it names is asked: its model has the number of parameters
    run = replace(run, config=with_defaults(run.config)[0])
    before, unchanged = dict(leaf_values(run.saved or run.config)), dict(leaf_values(config))
    kept = [
        f"{path} stays {_plain(before[path])!r}, as saved: {_plain(unchanged[path])!r} is the default, which a form "
        "sends unasked"
        for path in sent.keys() - given.keys() - {"run"}
        if before[path] != unchanged[path]
    ]
    return run, sorted(kept)


def _plain(value: Any) -> Any:
    """As a YAML file has it."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value
